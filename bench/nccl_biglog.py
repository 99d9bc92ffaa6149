"""Make an NCCL_DEBUG=INFO log of any size, as N hosts of 8 H100 with 8 rails print it (up to 3,520 ranks).

    python bench/nccl_biglog.py --mix ib --ranks 3520 --bytes 64M > big.log

The shares of the kinds of lines are those of two public logs of 16 ranks (MIXES). Messages of all ranks are
interleaved. The edges are complete and the table's numbers agree with each other: the log passes.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, cycle, islice, pairwise
from typing import TextIO

GPUS = 8
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
FIRST_SIZE, LAST_SIZE = 2**29, 2**33
CHANNELS = 16
WINDOW = 6000  # lines that are printed at the same time, in any order


@dataclass(frozen=True)
class Mix:
    """Lines of a rank of 100: edges between hosts, edges inside a host; the rest is OTHER.

    `network` is its name in edges, `once` and `again` are texts of other messages: each rank prints the
    first ones once, the second ones as often as the share asks for.
    """

    profile: str
    peak_gbps: float
    net: float
    p2p: float
    network: str
    once: tuple[str, ...]
    again: tuple[str, ...]


COMM = "comm {comm} rank {n} nranks {ranks} cudaDev {d} nvmlDev {d} busId {d:x}1000 commId 0x5aa5f0"
START = (
    "cudaDriverVersion {driver}",
    "NCCL version 2.28.7+cuda12.9",
    "Bootstrap : Using eth0:{address}<0>",
    "DMA-BUF is available on GPU device {d}",
    f"{COMM} - Init START",
    "comm {comm} rank {n} nRanks {ranks} nNodes {nodes} localRanks 8 localRank {d} MNNVL 0",
    "Setting affinity for GPU {d} to ffff,ffffffff,ffffffff",
    "NVLS multicast support is available on dev {d}",
    "NVLS Head  0:  0  {n}",
    "NVLS Head  1:  1  {n}",
    "Trees {trees}",
    "P2P Chunksize set to 524288",
)
END = (
    "Connected all rings",
    "Connected all trees",
    "threadThresholds 8/8/64 | {ranks}/8/64 | 512 | 512",
    "16 coll channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer",
    f"{COMM} - Init COMPLETE",
)
HCAS = " ".join(f"[{d}]mlx5_{d}:1/IB/SHARP" for d in range(GPUS))
MIXES = {
    # two hosts with InfiniBand: 2,284 lines, 31 % over a network, 42 % inside a host, 27 % other
    "ib": Mix(
        "h100-ib-8x400", 345.0, 0.308, 0.420, "IBext_v10",
        (
            "NET/Plugin: Loaded net plugin NCCL RDMA Plugin v10 (v10)",
            "NET/Plugin: Loaded coll plugin SHARP (v10)",
            "Plugin Path : /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so",
            "P2P plugin IBext_v10",
            "NCCL_IB_PCI_RELAXED_ORDERING set by environment to 1.",
            "NCCL_IB_QPS_PER_CONNECTION set by environment to 2.",
            f"NET/IB : Using {HCAS} [RO]; OOB eth0:{{address}}<0>",
            "Using non-device net plugin version 0",
            "Using network IBext_v10",
            "NCCL_ALGO set by environment to RING",
        ),
        (
            "NET/Plugin: Failed to find ncclNetPlugin_v{i} symbol.",
            "NVLS Head {i:2d}: {i:2d} {n}",
        ),
    ),
    # two hosts with EFA: 2,957 lines, 17 % over a network, 15 % inside a host, 68 % other
    "efa": Mix(
        "efa", 380.0, 0.173, 0.152, "AWS Libfabric",
        (
            "NET/OFI Initializing aws-ofi-nccl 1.9.2-aws",
            "NET/OFI Using Libfabric version 1.22",
            "NET/OFI Using CUDA driver version {driver}",
            "NET/OFI Configuring AWS-specific options",
            "NET/OFI Setting NCCL_NVLS_CHUNKSIZE to 512KiB",
            "NET/OFI Running on p5.48xlarge, setting NCCL_TOPO_FILE environment variable to /opt/t.xml",
            "NET/OFI Using transport protocol RDMA",
            "NET/OFI Selected Provider is efa (found 32 nics)",
            "Using network AWS Libfabric",
            "NCCL_TOPO_FILE set by environment to /opt/t.xml",
            "NCCL_NVLS_CHUNKSIZE set by environment to 524288.",
        ),
        (
            "NET/OFI Libfabric provider associates MRs with domains",
            "NET/OFI NIC group {d} device #{i} 0000:{i:02x}:00.0",
            "NET/OFI Libfabric provider associates MRs with domains",
        ),
    ),
}  # fmt: skip


def size(text: str) -> int:
    """1G -> 1073741824."""
    return int(float(text[:-1]) * UNITS[text[-1].upper()]) if text[-1].upper() in UNITS else int(text)


class Rank:
    """One process: how its lines begin, and what it puts into its messages."""

    def __init__(self, number: int, ranks: int) -> None:
        self.number, self.device = number, number % GPUS
        node = number // GPUS
        self.host = f"nccl-h100-worker-{node}"
        self.tag = f"[1,{number}]<stdout>:"
        self.head = f"{self.tag}{self.host}:{42 + self.device}:{100 + self.device} [{self.device}] NCCL INFO"
        self.values = {
            "n": number,
            "d": self.device,
            "ranks": ranks,
            "nodes": ranks // GPUS,
            "comm": f"0x55d{number:09x}",
            "driver": 12080,
            "address": f"10.42.{node // 250}.{node % 250}",
            "trees": " ".join(self._tree(channel) for channel in range(CHANNELS)),
        }

    def _tree(self, channel: int) -> str:
        """Its place in a tree that enters each host at one GPU, and goes on from GPU to GPU."""
        base, behind = self.number - self.device, (self.device - channel) % GPUS
        parent = self.number - GPUS if behind == 0 else base + (self.device - 1) % GPUS
        child = base + (self.device + 1) % GPUS if behind < GPUS - 1 else -1
        return f"[{channel}] {child}/-1/-1->{self.number}->{max(parent, -1)}"

    def say(self, text: str, i: int = 0) -> str:
        """A message; I is filled in, too."""
        return f"{self.head} {text.format(i=i, **self.values)}"


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
            f"[0000:{27 + r.device:02x}:00] NVIDIA H100 80GB HBM3"
        )


def network_edges(ranks: list[Rank], network: str) -> Iterator[list[str]]:
    """Both ends of edges between hosts, without end: rings and trees first, then any two GPUs, both ways.

    A channel enters each host at a GPU of its own; its ring leaves the host from the GPU before that.
    """
    n = len(ranks)

    def both(channel: int, connection: int, a: Rank, b: Rank) -> Iterator[str]:
        link = f"Channel {channel:02d}/{connection} : {a.number}[{a.device}] -> {b.number}[{b.device}]"
        yield f"{a.head} {link} [send] via NET/{network}/{a.device}/GDRDMA"
        yield f"{b.head} {link} [receive] via NET/{network}/{a.device}/GDRDMA"

    for channel in range(CHANNELS):
        rail = channel % GPUS
        for last in ranks[(rail - 1) % GPUS :: GPUS]:
            base = last.number - last.device
            yield list(both(channel, 0, last, ranks[(base + GPUS) % n + rail]))
        for a, b in pairwise(ranks[rail::GPUS]):
            yield [*both(channel, 0, a, b), *both(channel, 0, b, a)]
    for distance in count(2):
        for a in ranks:
            b = ranks[(a.number + distance * GPUS) % n]
            channel, connection = distance % CHANNELS, distance // CHANNELS % 10
            yield [*both(channel, connection, a, b), *both(channel, connection, b, a)]


def local_edges(ranks: list[Rank]) -> Iterator[list[str]]:
    """Edges inside a host, without end."""
    for step in count():
        for r in ranks:
            base = r.number - r.device
            peer = ranks[base + (r.device + 1 + step // CHANNELS % (GPUS - 1)) % GPUS]
            link = f"Channel {step % CHANNELS:02d}/0 : {r.number}[{r.device}] -> {peer.number}[{peer.device}]"
            yield [f"{r.head} {link} via P2P/CUMEM"]


def table(ranks: int, peak: float) -> Iterator[str]:
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
        time = round(bytes_ / (peak * (1 - 2**26 / bytes_) / k) / 1000)
        algbw = bytes_ / time / 1000
        values.append(round(algbw * k, 2))
        half = f"  {time:7d}  {algbw:6.2f}  {algbw * k:6.2f}  {0:5d}"
        yield f"{tag}{bytes_:12d}  {bytes_ // 4:12d}  {'float':>8s}  {'sum':>6s}  {-1:6d}{half}{half}"
        bytes_ *= 2
    yield f"{tag}# Out of bounds values : 0 OK"
    yield f"{tag}# Avg bus bandwidth    : {sum(values) / len(values):g} "
    yield f"{tag}#"
    yield f"{tag}# Collective test concluded: all_reduce_perf"


def others(ranks: list[Rank], texts: tuple[str, ...], rounds: int) -> Iterator[str]:
    """ROUNDS messages of each rank, from TEXTS again and again."""
    for i, text in enumerate(islice(cycle(texts), rounds)):
        for r in ranks:
            yield r.say(text, i)


def edges(ranks: list[Rank], mix: Mix, net: int, p2p: int) -> Iterator[str]:
    """NET edges between hosts (or a few more: they end in pairs) and P2P edges inside, evenly spread."""
    network, local = network_edges(ranks, mix.network), local_edges(ranks)
    sent, inside = 0, 0
    while sent < net or inside < p2p:
        if (inside * net <= sent * p2p and inside < p2p) or sent >= net:
            yield from next(local)
            inside += 1
        else:
            lines = next(network)
            sent += len(lines)
            yield from lines


def interleaved(lines: Iterator[str]) -> Iterator[str]:
    """LINES as many processes print them: in order, but for their neighbours. Always the same."""
    rng = random.Random(1)
    while window := list(islice(lines, WINDOW)):
        rng.shuffle(window)
        yield from window


def write(out: TextIO, ranks: int, bytes_: int, mix: Mix) -> None:
    """Write a log of about BYTES_ to OUT; it is never shorter than what the ranks print at least once."""
    everyone = [Rank(i, ranks) for i in range(ranks)]
    once = len(START) + len(mix.once) + len(END)
    # the length of lines differs: a first guess, then what a small log shows
    per_line = 112.0
    for _ in range(3):
        total = bytes_ / per_line / ranks
        rest = max(0, round(total * (1 - mix.net - mix.p2p)) - once)
        sample = everyone[-GPUS * 2 :]
        counts = round(total * mix.net) * len(sample), round(total * mix.p2p) * len(sample)
        some = [r.say(t) for r in sample for t in (*START, *mix.once, *END)]
        some += [*others(sample, mix.again, rest), *_sample_edges(everyone, mix, *counts)]
        per_line = sum(len(line) + 1 for line in some) / len(some)
    net, p2p = round(total * mix.net) * ranks, round(total * mix.p2p) * ranks
    for lines in (
        preamble(everyone),
        interleaved(others(everyone, (*START, *mix.once), len(START) + len(mix.once))),
        interleaved(others(everyone, mix.again, rest)),
        interleaved(edges(everyone, mix, net, p2p)),
        interleaved(others(everyone, END, len(END))),
        table(ranks, mix.peak_gbps),
    ):
        for line in lines:
            out.write(line + "\n")


def _sample_edges(ranks: list[Rank], mix: Mix, net: int, p2p: int) -> list[str]:
    """As many edges as NET and P2P say, of some ranks: only their lengths count."""
    network = [line for pair in islice(network_edges(ranks, mix.network), 1000) for line in pair]
    local = [line for pair in islice(local_edges(ranks), 1000) for line in pair]
    return [*islice(cycle(network), net), *islice(cycle(local), p2p)]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mix", choices=MIXES, default="ib", help="whose kinds of lines")
    parser.add_argument("--ranks", type=int, default=3520, help="a multiple of 8, at most 3520")
    parser.add_argument("--bytes", type=size, default=size("64M"), help="size, such as 256M or 1G")
    args = parser.parse_args()
    if args.ranks % GPUS or not 2 * GPUS <= args.ranks <= 3520:
        parser.error(f"--ranks {args.ranks}: give a multiple of 8 from 16 to 3520")
    write(sys.stdout, args.ranks, args.bytes, MIXES[args.mix])


if __name__ == "__main__":
    main()
