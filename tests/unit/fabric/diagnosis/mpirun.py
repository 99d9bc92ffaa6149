"""Takes the place of mpirun: prints what nccl-tests print for the nodes of its hostfile, at their speed.

The folder of this file has `nodes/HOST`, the node of a worker, and `speed`: lines "KEY SHARE", where KEY is
a node, NODE/RAIL, GROUP/RAIL of a leaf, or "alone/NODE". One of 0 fails, one below it hangs.
"""

import os
import sys
import time
from pathlib import Path

RANKS = 8
BUSBW = {1: 480.0, 2: 400.0}
RAIL = 50.0
HERE = Path(__file__).resolve().parent


def words_after(option: str) -> str:
    return sys.argv[sys.argv.index(option) + 1]


def share(nodes: list[str], rail: str) -> float:
    speed = dict(line.split() for line in (HERE / "speed").read_text().splitlines())
    keys = [f"alone/{node}" for node in nodes] if len(nodes) == 1 else list(nodes)
    if len(nodes) > 1:
        keys += [f"{node}/{each}" for node in nodes for each in ([rail] if rail else range(RANKS))]
    return min(float(speed.get(key, 1)) for key in keys)


def main() -> int:
    if "--version" in sys.argv:
        print("mpirun (Open MPI) 4.1.4")
        return 0
    lines = Path(words_after("--hostfile")).read_text().split()
    hosts = [line for line in lines if not line.startswith("slots=")]
    nodes = [(HERE / "nodes" / host).read_text().strip() for host in hosts]
    rail = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    found = share(nodes, rail)
    if found == 0:
        return 3
    # Without the sign NCCL takes mlx5_10 for mlx5_1 too.
    if rail and os.environ["NCCL_IB_HCA"] != f"=mlx5_{rail}":
        return 4
    if found < 0:
        time.sleep(60)
    ranks, size = int(words_after("-np")), int(words_after("-b"))
    # Without NVLink each GPU sends by its own HCA.
    busbw = found * (RAIL if rail or os.environ.get("NCCL_P2P_DISABLE") == "1" else BUSBW[len(nodes)])
    each = ranks // len(hosts)
    print("# nccl-tests version 2.17.8 nccl-headers=22803 nccl-library=22803")
    print("# Collective test starting: all_reduce_perf")
    print(
        f"# nThread 1 nGpus 1 minBytes {size} maxBytes {size} step: 2(factor) warmup iters: 5 iters: 20 "
        "agg iters: 1 validation: 1 graph: 0"
    )
    print("#\n# Using devices")
    for rank in range(ranks):
        host, device = hosts[rank // each].partition(".")[0], rank % each
        print(
            f"#  Rank {rank:2d} Group  0 Pid {100 + rank:6d} on {host:>10s} device {device:2d} "
            f"[0000:{device + 16:02x}:00] NVIDIA H100 80GB HBM3"
        )
    if os.environ["NCCL_DEBUG"] == "INFO":
        hcas = " ".join(f"[{index}]mlx5_{index}:1/IB" for index in range(RANKS))
        for rank in range(ranks):
            process = f"{hosts[0].partition('.')[0]}:{100 + rank}:{200 + rank}"
            print(f"{process} [{rank}] NCCL INFO NET/IB : Using {hcas} [RO]; OOB eth0:10.42.0.7<0>")
    print(
        "#\n#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        "     time   algbw   busbw  #wrong "
    )
    algbw = busbw / (2 * (ranks - 1) / ranks)
    micros = size / algbw / 1000
    half = f"  {micros:7.1f}  {algbw:6.2f}  {busbw:6.2f}  {0:6d}"
    print(f"{size:12d}  {size // 4:12d}     float     sum      -1{half}{half}")
    print(f"# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {round(busbw, 2):g} \n#")
    print("# Collective test concluded: all_reduce_perf")
    return 0


sys.exit(main())
