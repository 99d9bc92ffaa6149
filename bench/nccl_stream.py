"""How long a full verdict takes on a large INFO log, against a bare loop over the same file in the same run.

    python bench/nccl_stream.py                     # 16, 64 and 256 MiB of both mixes
    python bench/nccl_stream.py --bytes 64M 1G --mix ib

The bare loop searches each line for one compiled alternation, and does nothing else. Times are CPU seconds of
all processes (best of --repeat, in turn) and wall seconds; memory is the peak of the process tree (PSS). The
files are made by nccl_biglog.py in the system's temporary folder and removed at the end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import nccl_biglog

SAMPLE_SECONDS = 0.02
ALTERNATION = rb"via (?:NET|COLLNET|P2P|SHM)|NCCL WARN|Using network|set by environment|Init COMPLETE|nRanks"
BARE = """
import re, sys
search = re.compile({pattern!r}).search
found = 0
with open(sys.argv[1], "rb") as log:
    for line in log:
        if search(line) is not None:
            found += 1
print(found)
"""
HEADER = (
    "mix", "MiB", "lines", "NET", "P2P", "other", "bare s", "verdict s", "wall s", "ratio", "start-up s",
    "MiB/s", "peak MiB",
)  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """What a command took: seconds, and MiB at its peak (0: not sampled)."""

    cpu: float
    wall: float
    peak: float


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


def run(command: list[str], environment: dict[str, str], *, memory: bool = False, expect: int = 0) -> Cost:
    """What COMMAND and its children took. Raises RuntimeError on another exit code than EXPECT."""
    start = time.perf_counter()
    peak = 0.0
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, env=environment)
        while memory and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            peak = max(peak, pss_mib(process.pid))
            time.sleep(SAMPLE_SECONDS)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    if process.returncode != expect:
        raise RuntimeError(f"{' '.join(command[:4])} ended with {process.returncode}, expected {expect}")
    return Cost(used.ru_utime + used.ru_stime, wall, peak)


def measure(path: Path, mix: nccl_biglog.Mix, ranks: int, repeat: int) -> list[str]:
    """Figures for PATH, as HEADER names them from `lines` on."""
    nodes = str(ranks // nccl_biglog.GPUS)
    check = [sys.executable, "-m", "busbar", "nccl", "check", str(path), "--json"]
    check += ["--profile", mix.profile, "--expect-nodes", nodes]
    bare = [sys.executable, "-c", BARE.format(pattern=ALTERNATION), str(path)]
    # as installed: modules are compiled once
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(path.parent / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    nothing = [*check[:5], os.devnull, *check[6:]]
    run(nothing, environment, expect=2)
    costs: dict[str, list[Cost]] = {"bare": [], "check": []}
    for _ in range(repeat):
        costs["bare"].append(run(bare, environment))
        costs["check"].append(run(check, environment))
    bare_cpu, cpu = (min(c.cpu for c in costs[name]) for name in ("bare", "check"))
    wall = min(c.wall for c in costs["check"])
    empty = min(run(nothing, environment, expect=2).cpu for _ in range(repeat))
    peak = run(check, environment, memory=True).peak
    lines, net, p2p = count(path)
    mib = path.stat().st_size / 2**20
    return [
        f"{lines}", f"{net / lines:.0%}", f"{p2p / lines:.0%}", f"{(lines - net - p2p) / lines:.0%}",
        f"{bare_cpu:.2f}", f"{cpu:.2f}", f"{wall:.2f}", f"{cpu / bare_cpu:.2f}", f"{empty:.2f}",
        f"{mib / cpu:.1f}", f"{peak:.0f}",
    ]  # fmt: skip


def count(path: Path) -> tuple[int, int, int]:
    """Lines of PATH, and how many of them are edges between and inside hosts."""
    lines = net = p2p = 0
    with path.open("rb") as log:
        for line in log:
            lines += 1
            net += b" via NET/" in line
            p2p += b" via P2P/" in line
    return lines, net, p2p


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = [nccl_biglog.size(text) for text in ("16M", "64M", "256M")]
    parser.add_argument("--bytes", type=nccl_biglog.size, nargs="+", default=sizes)
    parser.add_argument("--mix", choices=nccl_biglog.MIXES, nargs="+", default=list(nccl_biglog.MIXES))
    parser.add_argument("--ranks", type=int, default=3520)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    print("  ".join(f"{name:>10}" for name in HEADER), flush=True)
    for name in args.mix:
        for size in args.bytes:
            # a small log is one of fewer ranks
            ranks = min(args.ranks, max(16, size // 2**20 * args.ranks // 64 // 8 * 8))
            with tempfile.TemporaryDirectory(prefix="busbar-bench-") as folder:
                path = Path(folder) / "big.log"
                with path.open("w") as out:
                    nccl_biglog.write(out, ranks, size, nccl_biglog.MIXES[name])
                figures = measure(path, nccl_biglog.MIXES[name], ranks, args.repeat)
            print("  ".join(f"{x:>10}" for x in [name, str(size // 2**20), *figures]), flush=True)


if __name__ == "__main__":
    main()
