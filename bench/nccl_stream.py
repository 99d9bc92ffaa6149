"""How long a full verdict takes on a large INFO log, against grep and wc on the same file in the same run.

    python bench/nccl_stream.py --bytes 1G

Prints seconds (best of --repeat, in turn), the ratios, and the memory of the whole process tree (PSS).
The file is made by nccl_biglog.py in the system's temporary folder and removed at the end.
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

SAMPLE_SECONDS = 0.02


def tree(pid: int) -> list[int]:
    """PID and all its descendants."""
    found = [pid]
    for process in found:
        try:
            for task in os.listdir(f"/proc/{process}/task"):
                children = Path(f"/proc/{process}/task/{task}/children").read_text().split()
                found += [int(c) for c in children]
        except OSError:
            continue
    return found


def pss_mib(pid: int) -> float:
    """Proportional set size of the process tree: memory that it really takes, shared pages counted once."""
    total = 0
    for process in tree(pid):
        try:
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
        except OSError:
            continue
    return total / 1024


def _watch(process: subprocess.Popen[bytes]) -> float:
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, pss_mib(process.pid))
        time.sleep(SAMPLE_SECONDS)
    return peak


def timed(command: list[str], *, memory: bool = False, expect: int = 0) -> tuple[float, float]:
    """Seconds and peak MiB of COMMAND. Raises RuntimeError on another exit code than EXPECT."""
    start = time.perf_counter()
    # into a file: grep stops at its first hit when it sees /dev/null
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, env={**os.environ, "LC_ALL": "C"})
        peak = _watch(process) if memory else 0.0
        code = process.wait()
    seconds = time.perf_counter() - start
    if code != expect:
        raise RuntimeError(f"{' '.join(command[:4])} ended with {code}, expected {expect}")
    return seconds, peak


def measure(path: Path, ranks: int, repeat: int) -> None:
    """Print one line of figures for PATH."""
    nodes = str(ranks // nccl_biglog.GPUS)
    check = [sys.executable, "-m", "busbar", "nccl", "check", str(path), "--json"]
    check += ["--profile", "h100-ib-8x400", "--expect-nodes", nodes]
    commands = {"grep": ["grep", "-c", "via NET", str(path)], "wc": ["wc", "-l", str(path)], "check": check}
    best = dict.fromkeys(commands, float("inf"))
    for _ in range(repeat):
        for name, command in commands.items():
            best[name] = min(best[name], timed(command)[0])
    empty = min(timed([*check[:5], "/dev/null", *check[6:]], expect=2)[0] for _ in range(repeat))
    peak = timed(check, memory=True)[1]
    mib = path.stat().st_size / 2**20
    print(
        f"{mib:7.0f} MiB  grep {best['grep']:.2f} s  wc {best['wc']:.2f} s  verdict {best['check']:.2f} s "
        f"(of which start-up {empty:.2f})  = {best['check'] / best['grep']:.1f} x grep, "
        f"{best['check'] / best['wc']:.1f} x wc, peak {peak:.0f} MiB",
        flush=True,
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bytes", type=nccl_biglog.size, default=nccl_biglog.size("1G"))
    parser.add_argument("--ranks", type=int, default=3520)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    for share in (4, 2, 1):
        with tempfile.TemporaryDirectory(prefix="busbar-bench-") as folder:
            path = Path(folder) / "big.log"
            with path.open("w") as out:
                nccl_biglog.write(out, args.ranks, args.bytes // share)
            measure(path, args.ranks, args.repeat)


if __name__ == "__main__":
    main()
