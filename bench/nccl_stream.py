"""What a verdict on a large INFO log costs. Goal: 36 MB of 3,520 ranks in 10 s and 100 MiB, one process.

Start-up and sha256 are included; the best of three runs counts, of memory the worst. The log is written into
the system's temporary folder and removed at the end.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.unit.judge.nccl.logs import Made

PROFILE, GPUS = "h100-ib-8x400", 8
BYTES, RANKS, RUNS = 36_000_000, 3520, 3
HEADER = ("MiB", "lines", "CPU s", "wall s", "MiB/s", "peak MiB")


def write(out: TextIO, ranks: int, size: int) -> None:
    """Write the log of a good run, in which all ranks print their messages again until it has SIZE bytes.

    Messages of all ranks are interleaved. About 30 % are edges between hosts, 40 % edges inside a host.
    """
    made, rng = Made(), random.Random(1)
    made.hosts = [f"nccl-h100-worker-{n}" for n in range(ranks // GPUS)]
    lines = made.lines()
    network = [line for line in lines if " via NET/" in line]
    end = lines.index(network[-1]) + 1
    out.writelines(f"{line}\n" for line in lines[:end] if " via NET/" not in line)
    channel = 0
    while out.tell() < size:
        messages = [line.replace("/0 : ", f"/{channel // 16} : ") for line in network]
        for rank in range(ranks):
            device = rank % GPUS
            peer = rank - device + (device + 1) % GPUS
            head = f"nccl-h100-worker-{rank // GPUS}:{40 + device}:90 [{device}] NCCL INFO"
            for n in range(channel, channel + 3):
                link = f"Channel {n % 16:02d}/0 : {rank}[{device}] -> {peer}[{peer % GPUS}]"
                messages.append(f"{head} {link} via P2P/CUMEM")
            messages += [f"{head} NVLS Head {n:2d}: {n:2d} {rank}" for n in range(2)]
        rng.shuffle(messages)
        out.write("\n".join(messages) + "\n")
        channel += 3
    out.write("\n".join(lines[end:]) + "\n")


def check(path: Path, ranks: int) -> tuple[float, float, float]:
    """CPU seconds, wall seconds and peak MiB of one verdict. Raises RuntimeError where it is no pass."""
    command = [sys.executable, "-m", "busbar", "nccl", "check", str(path), "--json"]
    command += ["--profile", PROFILE, "--expect-nodes", str(ranks // GPUS)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[:5])} exited {process.returncode}, expected 0")
    return used.ru_utime + used.ru_stime, time.perf_counter() - start, used.ru_maxrss / 1024


def main() -> None:
    """Print the figures."""
    print("  ".join(f"{name:>8}" for name in HEADER), flush=True)
    with tempfile.TemporaryDirectory(prefix="busbar-bench-") as folder:
        path = Path(folder) / "big.log"
        with path.open("w") as out:
            write(out, RANKS, BYTES)
        costs = [check(path, RANKS) for _ in range(RUNS)]
        mib = path.stat().st_size / 2**20
        with path.open("rb") as log:
            lines = sum(1 for _ in log)
    cpu, wall = (min(cost[i] for cost in costs) for i in (0, 1))
    peak = max(cost[2] for cost in costs)
    figures = [f"{mib:.1f}", f"{lines}", f"{cpu:.2f}", f"{wall:.2f}", f"{mib / cpu:.1f}", f"{peak:.0f}"]
    print("  ".join(f"{x:>8}" for x in figures))


if __name__ == "__main__":
    main()
