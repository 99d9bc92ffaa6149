"""A launcher's log as a run of two ranks on two pods over TCP prints it, for a bus bandwidth of choice."""

from busbar.judge import COUNT_LINE, FIRST_LINE, LAST_LINE

SIZES = (1 << 20, 1 << 21, 1 << 22)


# What a measurement is to show for a pass at 2 GB/s.
EXPECTED = {
    "nodes": 2, "gpus_per_node": 1, "rails": 1, "rate_gbps": 400, "transport": "socket",
    "collectives": ["all_reduce"], "min_bytes": SIZES[0], "max_bytes": SIZES[-1], "step_factor": 2,
    "expected_busbw_gbps": 2.0,
}  # fmt: skip


def text(busbw: float = 2.0, *, exit_code: int = 0, counted: bool = True) -> str:
    """The whole log. Two ranks: an all_reduce's busbw is its algbw."""
    lines = [
        FIRST_LINE,
        "# busbar: measuring all_reduce",
        "# nccl-tests version 2.17.8 nccl-headers=22803 nccl-library=22803",
        "# Collective test starting: all_reduce_perf",
        f"# nThread 1 nGpus 1 minBytes {SIZES[0]} maxBytes {SIZES[-1]} step: 2(factor) warmup iters: 5 "
        "iters: 20 agg iters: 1 validation: 1 graph: 0",
        "#",
        "# Using devices",
        "#  Rank  0 Group  0 Pid     21 on nccl-worker-0 device  0 [0000:00:00] CPU",
        "#  Rank  1 Group  0 Pid     22 on nccl-worker-1 device  0 [0000:00:00] CPU",
        *(
            f"nccl-worker-{rank}:2{rank + 1}:3{rank + 1} [0] NCCL INFO {message}"
            for rank in (0, 1)
            for message in (
                "NCCL version 2.28.3+cuda12.9",
                "NET/Socket : Using [0]eth0:10.42.0.7<0>",
                "Using network Socket",
                f"comm 0x1 rank {rank} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
                f"Channel 00/0 : {rank}[0] -> {1 - rank}[0] [send] via NET/Socket/0",
                f"Channel 00/0 : {1 - rank}[0] -> {rank}[0] [receive] via NET/Socket/0",
                f"ncclCommInitRank comm 0x1 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 0 - Init COMPLETE",
            )
        ),
        "#",
        "#                                                              out-of-place"
        "                       in-place          ",
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        "     time   algbw   busbw  #wrong ",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
        "             (us)  (GB/s)  (GB/s)         ",
    ]
    for size in SIZES:
        micros = size / busbw / 1000
        half = f"  {micros:6.1f}  {size / micros / 1000:6.2f}  {size / micros / 1000:6.2f}  {0:6d}"
        lines.append(f"{size:12d}  {size // 4:12d}     float     sum      -1{half}{half}")
    lines += [
        "# Out of bounds values : 0 OK",
        f"# Avg bus bandwidth    : {busbw:g} ",
        "#",
        "# Collective test concluded: all_reduce_perf",
        f"# busbar: all_reduce ended with exit code {exit_code}",
    ]
    if counted:
        lines.append(f"{COUNT_LINE} {len(lines)} lines, {sum(len(line) + 1 for line in lines)} bytes")
    lines.append(f"{LAST_LINE} {exit_code}")
    return "".join(f"{line}\n" for line in lines)


def stamped(log: str) -> bytes:
    """The log as the kubelet serves it with timestamps: a hundred lines a second."""
    return b"".join(
        b"2026-01-01T00:00:%02d.%02d0000000Z %s" % (number // 100, number % 100, line)
        for number, line in enumerate(log.encode().splitlines(keepends=True))
    )
