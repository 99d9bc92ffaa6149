"""Make an NCCL_DEBUG=INFO log of any size, as N hosts of 8 H100 with 8 rails print it (up to 3,520 ranks).

    python bench/nccl_biglog.py --ranks 3520 --bytes 1G > big.log

Each rank's start-up lines, then ring edges channel by channel, then connections to further peers until the
size is reached, then a table whose numbers agree with each other, so that a verdict is possible (pass).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import count
from typing import TextIO

GPUS = 8
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
PEAK_GBPS = 345.0
FIRST_SIZE, LAST_SIZE = 2**29, 2**33


def size(text: str) -> int:
    """1G -> 1073741824."""
    return int(float(text[:-1]) * UNITS[text[-1].upper()]) if text[-1].upper() in UNITS else int(text)


class Rank:
    """One process: how its lines begin."""

    def __init__(self, number: int) -> None:
        self.number, self.device = number, number % GPUS
        self.host = f"nccl-h100-worker-{number // GPUS}"
        self.tag = f"[1,{number}]<stdout>:"
        self.process = f"{self.tag}{self.host}:{42 + self.device}:{100 + self.device} [{self.device}]"
        self.head = f"{self.process} NCCL INFO"


def preamble(ranks: list[Rank]) -> Iterator[str]:
    """Banner and device list, printed by rank 0."""
    tag = "[1,0]<stdout>:"
    yield f"{tag}# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807"
    yield f"{tag}# Collective test starting: all_reduce_perf"
    yield (
        f"{tag}# nThread 1 nGpus 1 minBytes {FIRST_SIZE} maxBytes {LAST_SIZE} step: 2(factor) "
        "warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0"
    )
    yield f"{tag}#"
    yield f"{tag}# Using devices"
    for r in ranks:
        yield (
            f"{tag}#  Rank {r.number:2d} Group  0 Pid {42 + r.device:6d} on {r.host} device {r.device:2d} "
            f"[0000:{27 + r.device:02x}:00] H100 80GB"
        )


def startup(r: Rank, ranks: int) -> Iterator[str]:
    """What each rank says before its channels."""
    hcas = " ".join(f"[{d}]mlx5_{d}:1/IB/SHARP" for d in range(GPUS))
    node, n, d = r.number // GPUS, r.number, r.device
    comm = f"comm 0x55d{n:09x} rank {n}"
    for body in (
        "cudaDriverVersion 12080",
        "NCCL version 2.28.7+cuda12.9",
        "NET/Plugin: Loaded net plugin NCCL RDMA Plugin v10 (v10)",
        "Plugin Path : /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so",
        "P2P plugin IBext_v10",
        "NCCL_IB_QPS_PER_CONNECTION set by environment to 2.",
        f"NET/IB : Using {hcas} [RO]; OOB eth0:10.42.{node // 250}.{node % 250}<0>",
        "Using network IBext_v10",
        f"DMA-BUF is available on GPU device {d}",
        f"{comm} nRanks {ranks} nNodes {ranks // GPUS} localRanks 8 localRank {d} MNNVL 0",
        f"Trees [0] {n + 1}/-1/-1->{n}->{n - 1} [1] {n + 1}/-1/-1->{n}->{n - 1}",
        "P2P Chunksize set to 524288",
        "Connected all rings, use ring PXN 0 GDR 1",
        "16 coll channels, 16 nvls channels, 32 p2p channels, 2 p2p channels per peer",
        f"ncclCommInitRank {comm} nranks {ranks} cudaDev {d} nvmlDev {d} busId {d:x}1000 commId 0x5aa5 - "
        "Init COMPLETE",
    ):
        yield f"{r.head} {body}"


def ring(ranks: list[Rank], channel: int) -> Iterator[str]:
    """One channel's ring: it leaves each host from the channel's own GPU, over that GPU's rail."""
    n, rail = len(ranks), channel % GPUS
    wire, words = f"via NET/IBext_v10/{rail}/GDRDMA", f"NCCL INFO Channel {channel:02d}/0"
    for r in ranks:
        local = (r.device - rail) % GPUS
        base = r.number - r.device
        me = f"{r.number}[{r.device}]"
        if local == 0:
            source = (base - GPUS) % n + (rail + GPUS - 1) % GPUS
            yield f"{r.process} {words} : {source}[{source % GPUS}] -> {me} [receive] {wire}"
        if local == GPUS - 1:
            target = (base + GPUS) % n + rail
            yield f"{r.process} {words} : {me} -> {target}[{rail}] [send] {wire}"
        else:
            peer = base + (r.device + 1) % GPUS
            yield f"{r.process} {words} : {me} -> {peer}[{peer % GPUS}] via P2P/CUMEM"


def peers(ranks: list[Rank]) -> Iterator[str]:
    """Connections to further hosts, one rail each, without end."""
    n = len(ranks)
    for distance in count(1):
        for r in ranks:
            other = ranks[(r.number + distance * GPUS) % n]
            channel = distance % 32
            words = f"Channel {channel:02d}/1 : {r.number}[{r.device}] -> {other.number}[{other.device}]"
            wire = f"via NET/IBext_v10/{r.device}/GDRDMA"
            yield f"{r.head} {words} [send] {wire}"
            yield f"{other.head} {words} [receive] {wire}"


def table(ranks: int) -> Iterator[str]:
    """Header, rows and summary of an all_reduce."""
    tag, k = "[1,0]<stdout>:", 2 * (ranks - 1) / ranks
    yield f"{tag}#"
    yield f"{tag}#{'':62s}out-of-place{'':23s}in-place"
    columns = "time   algbw   busbw #wrong"
    yield f"{tag}#       size         count      type   redop    root     {columns}     {columns}"
    yield f"{tag}#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
    values = []
    bytes_ = FIRST_SIZE
    while bytes_ <= LAST_SIZE:
        time = round(bytes_ / (PEAK_GBPS * (1 - 2**26 / bytes_) / k) / 1000)
        algbw = bytes_ / time / 1000
        values.append(round(algbw * k, 2))
        half = f"  {time:7d}  {algbw:6.2f}  {algbw * k:6.2f}  {0:5d}"
        yield f"{tag}{bytes_:12d}  {bytes_ // 4:12d}  {'float':>8s}  {'sum':>6s}  {-1:6d}{half}{half}"
        bytes_ *= 2
    yield f"{tag}# Out of bounds values : 0 OK"
    yield f"{tag}# Avg bus bandwidth    : {sum(values) / len(values):g} "
    yield f"{tag}#"
    yield f"{tag}# Collective test concluded: all_reduce_perf"


def write(out: TextIO, ranks: int, bytes_: int) -> None:
    """Write the log to OUT; it is never shorter than what the ranks say at least once."""
    everyone = [Rank(i) for i in range(ranks)]
    written = 0
    chunk: list[str] = []

    def put(lines: Iterator[str], limit: int | None = None) -> None:
        nonlocal written, chunk
        for index, line in enumerate(lines, 1):
            chunk.append(line)
            written += len(line) + 1
            if len(chunk) >= 8192:
                out.write("\n".join(chunk) + "\n")
                chunk = []
            # connections end in pairs: a sender without its receiver would be a damaged log
            if limit is not None and written >= limit and index % 2 == 0:
                return

    put(preamble(everyone))
    for rank in everyone:
        put(startup(rank, ranks))
    for channel in range(16):
        put(ring(everyone, channel))
    if written < bytes_:
        put(peers(everyone), bytes_)
    put(table(ranks))
    out.write("\n".join(chunk) + "\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=3520, help="a multiple of 8, at most 3520")
    parser.add_argument("--bytes", type=size, default=size("64M"), help="size, such as 256M or 1G")
    args = parser.parse_args()
    if args.ranks % GPUS or not 2 * GPUS <= args.ranks <= 3520:
        parser.error(f"--ranks {args.ranks}: give a multiple of 8 from 16 to 3520")
    write(sys.stdout, args.ranks, args.bytes)


if __name__ == "__main__":
    main()
