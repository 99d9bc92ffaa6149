"""What a verdict on a large INFO log costs. Goal: 36 MB of 3,520 ranks in 10 s and 100 MiB, one process.

    python bench/nccl_stream.py                      # 36 MB of both mixes
    python bench/nccl_stream.py --bytes 64M 1G --mix ib

Start-up and sha256 are included; the best of --repeat runs counts, of memory the worst. The files are made by
nccl_biglog.py in the system's temporary folder and removed at the end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import nccl_biglog

HEADER = ("mix", "MiB", "lines", "CPU s", "wall s", "MiB/s", "peak MiB")


def check(path: Path, mix: nccl_biglog.Mix, ranks: int) -> tuple[float, float, float]:
    """CPU seconds, wall seconds and peak MiB of one verdict. Raises RuntimeError where it is no pass."""
    command = [sys.executable, "-m", "busbar", "nccl", "check", str(path), "--json"]
    command += ["--profile", mix.profile, "--expect-nodes", str(ranks // nccl_biglog.GPUS)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[:5])} exited {process.returncode}, expected 0")
    return used.ru_utime + used.ru_stime, time.perf_counter() - start, used.ru_maxrss / 1024


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bytes", type=nccl_biglog.size, nargs="+", default=[36_000_000])
    parser.add_argument("--mix", choices=nccl_biglog.MIXES, nargs="+", default=list(nccl_biglog.MIXES))
    parser.add_argument("--ranks", type=int, default=3520)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    print("  ".join(f"{name:>8}" for name in HEADER), flush=True)
    for name in args.mix:
        for size in args.bytes:
            with tempfile.TemporaryDirectory(prefix="busbar-bench-") as folder:
                path = Path(folder) / "big.log"
                with path.open("w") as out:
                    nccl_biglog.write(out, args.ranks, size, nccl_biglog.MIXES[name])
                costs = [check(path, nccl_biglog.MIXES[name], args.ranks) for _ in range(args.repeat)]
                mib = path.stat().st_size / 2**20
                with path.open("rb") as log:
                    lines = sum(1 for _ in log)
            cpu, wall = (min(cost[i] for cost in costs) for i in (0, 1))
            peak = max(cost[2] for cost in costs)
            figures = [
                f"{mib:.1f}",
                f"{lines}",
                f"{cpu:.2f}",
                f"{wall:.2f}",
                f"{mib / cpu:.1f}",
                f"{peak:.0f}",
            ]
            print("  ".join(f"{x:>8}" for x in [name, *figures]), flush=True)


if __name__ == "__main__":
    main()
