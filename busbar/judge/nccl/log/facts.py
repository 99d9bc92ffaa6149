"""Kinds of NCCL messages that state a fact, each beside an example, and the facts that are kept.

The text that a message must contain is a part of its pattern, so a quick search for the texts loses nothing.
What a group `value` of a pattern matches is kept for each host, so that hosts can be compared.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from busbar.judge.nccl.log import patterns as p
from busbar.judge.nccl.log.evidence import EVIDENCE_WIDTH, KEEP, KEEP_HOSTS, KEEP_LABELS, Evidence, keep
from busbar.judge.nccl.log.records import LogLine

Match = re.Match[str]
Keep = Callable[[Evidence, Match, str, int, str], None]  # match, host, line, text
LONGEST_VALUE = 200


@dataclass(frozen=True, slots=True)
class Fact:
    """A kind of message. `pattern` includes the text `contains`; `keep` adds a match to the evidence.

    `of_host`: the name of what each host says, in which {} is the pattern's group `key`; "" for nothing.
    """

    contains: str
    pattern: re.Pattern[str]
    keep: Keep | None
    of_host: str = ""
    example: str = ""

    def take(self, evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
        """Add a MATCH in a message of HOST to EVIDENCE."""
        if self.keep is not None:
            self.keep(evidence, match, host, line, text)
        if self.of_host:
            groups = match.groupdict("")
            name = self.of_host.format(groups.get("key", ""))
            evidence.of_host(name, groups["value"][:LONGEST_VALUE], host)


FoundFact = tuple[Fact, Match]


def find(body: str) -> list[FoundFact]:
    """The facts that a message states."""
    return [(f, m) for f in FACTS if f.contains in body and (m := f.pattern.search(body)) is not None]


def _fact(before: str, contains: str, behind: str, keeper: Keep) -> Fact:
    return Fact(contains, re.compile(before + re.escape(contains) + behind, re.ASCII), keeper)


def _of_host(
    name: str, example: str, before: str, contains: str, behind: str, keeper: Keep | None = None
) -> Fact:
    """A fact of each host: NAME of the value in messages such as EXAMPLE."""
    pattern = re.compile(before + re.escape(contains) + behind, re.ASCII)
    return Fact(contains, pattern, keeper, name, example)


def _value(field_name: str) -> Keep:
    """Keep the pattern's first group in the dictionary FIELD_NAME."""

    def take(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
        evidence.keep(field_name, match[1], line, text)

    return take


def _environment(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
    evidence.keep("environment", f"{match['key']}={match['value']}", line, text)
    if match["key"] == "NCCL_TOPO_FILE":
        evidence.keep("topology_set", match["value"], line, text)


def _hcas(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
    keep(evidence.hcas, match["list"], line, text)  # a list for each host is not needed: hcas_of_host has it
    found = list(p.HCA.finditer(match["list"]))
    names = tuple({m.group("name", "port"): m["name"] for m in found}.values())  # each port once
    evidence.of_host("HCAs", ", ".join(names), host)
    merged = "{" in match["list"]  # [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE}
    links = {(-1 if merged else int(m["device"][:4]), m["name"], m["layer"]) for m in found}
    if links and (host in evidence.hca_links or len(evidence.hca_links) < KEEP_HOSTS):
        kept = evidence.hca_links.setdefault(host, set())
        if len(kept) < KEEP_LABELS:
            kept |= links
        elif not links <= kept:
            evidence.lost.add("hca_links")
    before = evidence.hcas_of_host.get(host)
    if before is not None:
        # processes of a host may open different HCAs; only those that all of them opened count
        evidence.hcas_of_host[host] = tuple(name for name in before if name in names)
    elif names and len(evidence.hcas_of_host) < KEEP_HOSTS:
        evidence.hcas_of_host[host] = names


def _without_gdr(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
    evidence.keep("without_gdr", f"{host} {match[1]}", line, text)


def _ranks(field_name: str) -> Keep:
    """Keep the rank (first group) of a communicator of so many ranks (second group) in FIELD_NAME."""

    def take(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
        of_size: dict[int, set[int]] = getattr(evidence, field_name)
        ranks = of_size.setdefault(int(match[2][:7]), set())
        if len(of_size) <= KEEP:
            ranks.add(int(match[1][:7]))
        else:
            evidence.lost.add(field_name)

    return take


def _counts(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
    key = (int(match[2][:7]), int(match[3][:7]))
    if key not in evidence.counts and len(evidence.counts) < KEEP:
        evidence.counts[key] = LogLine(f"{key[0]}/{key[1]}", line, text[:EVIDENCE_WIDTH])
    elif key not in evidence.counts:
        evidence.lost.add("counts")
    evidence.keep("local_ranks", match[4][:7], line, text)


def _channels(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
    evidence.keep("channels", match[2], line, text)
    if match[3] is not None:
        evidence.keep("nvls_channels", match[3], line, text)


def _ring(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
    order = match[3].split()
    if len(evidence.rings) < KEEP and len(order) <= KEEP_HOSTS:
        evidence.rings.setdefault(int(match[1][:4]), array("l", [int(rank[:7]) for rank in order]))


TREE = re.compile(r"\[(\d+)\] -?\d+/-?\d+/-?\d+->(\d+)->(-?\d+)(?: |$)", re.ASCII)


def _trees(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
    trees = TREE.findall(match[1])
    ranks = {rank for _, rank, _ in trees}
    # NCCL before 2.7 prints two trees in one entry, which are not read
    if len(ranks) == 1 and len(evidence.parents) < KEEP_HOSTS and len(trees) == match[1].count("["):
        parents = array("l", [int(parent[:7]) for _, _, parent in trees])
        evidence.parents.setdefault(int(ranks.pop()[:7]), parents)


def _algorithm(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
    chosen, size = f"{match[1]} {match[3]}", int(match[2][:20])
    evidence.keep("algorithms", chosen, line, text)
    if chosen in evidence.algorithms:
        evidence.algorithm_sizes[chosen] = max(size, evidence.algorithm_sizes.get(chosen, 0))


FACTS = (
    # NCCL version 2.22.3+cuda12.6
    _fact(r"(?:^|\s)(?:N|R)", "CCL version", r"[ :]+v?(\d+\.\d+[\w.+\-]*)", _value("versions")),
    # Using network IBext | Using network AWS Libfabric
    _fact("^", "Using network ", r"(\S.*)", _value("networks")),
    # Initialized NET plugin IB | Assigned NET plugin Socket to comm       from 2.27
    _fact("^(?:Initialized|Assigned)", " NET plugin ", r"(\S.*?)(?: to comm)?$", _value("networks")),
    # NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'
    _fact("", "GPU Direct RDMA Disabled for HCA ", r"(\d{1,4})\b", _without_gdr),
    # NET/OFI Could not disable CUDA API usage for HMEM, disabling GDR
    _fact("", "disabling GDR", "()", _without_gdr),
    # Could not open XML topology file /opt/x.xml : No such file or directory
    _fact("", "Could not open XML topology file ", r"(\S+)", _value("topology_failed")),
    # NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB eth0:10.42.4.34<0>
    _fact("^NET/g?", "IB", r"\s*: Using (?P<list>[^;]*);", _hcas),
    # ncclCommInitRank comm 0x.. rank 8 nranks 16 cudaDev 0 nvmlDev 0 busId 11000 commId 0x.. - Init COMPLETE
    _fact(r"comm \S{1,40} rank (\d+) nranks (\d+) .{0,400}", "Init COMPLETE", "", _ranks("initialized")),
    _fact(r"comm \S{1,40} rank (\d+) nranks (\d+) .{0,400}", "Destroy COMPLETE", "", _ranks("destroyed")),
    # comm 0x.. rank 8 nranks 16 cudaDev 0 nvmlDev 0 busId 11000 - Destroy COMPLETE        also Init START
    _fact(r"\brank \d+", " nranks ", r"(\d{1,7}) ", _value("communicators")),
    # comm 0x.. rank 7 nRanks 8 nNodes 2 localRanks 4 localRank 3 MNNVL 0
    _fact(
        r"comm \S{1,40} rank (\d+)", " nRanks ",
        r"(\d+) nNodes (\d+) localRanks (\d+)", _counts,
    ),
    _fact("comm .{1,200}", " MNNVL ", r"([01])\b", _value("mnnvl")),
    # Connected all rings, use ring PXN 0 GDR 1 | Connected all trees | Connected NVLS tree
    _fact("^", "Connected ", r"(all rings|all trees|NVLS tree)", _value("connected")),
    _fact(r"^Connected all rings, use ring PXN \d", " GDR ", r"([01])", _value("ring_gdr")),
    # NVLS comm 0x.. headRank 6 nHeads 8 buffSize ..
    _fact(r"^NVLS comm \S+ headRank -?\d+", " nHeads ", r"(\d+)", _value("heads")),
    # Channel 00/32 :    0   7   6   5        the ring of channel 0, of 32
    _fact("^", "Channel ", r"(\d+)/(\d+) :((?:\s+\d+)+)$", _ring),
    # Trees [0] 1/4/-1->0->-1 [1] -1/-1/-1->0->3        children, rank, parent in each channel
    _fact("^", "Trees ", r"(\[.*)$", _trees),
    # AllReduce: 2147483648 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..31}
    _fact(r"^(\w+): (\d+) Bytes", " -> Algo ", r"(\w+) proto (\w+)", _algorithm),
    # ---- what each host says
    # also NCCL_IB_HCA set to mlx5
    _of_host("{}", "NCCL_ALGO set by environment to RING.",
             r"^(?P<key>NCCL_\w+)", " set ", r"(?:by environment )?to (?P<value>.*?)\.?$", _environment),
    _of_host("plugin path", "Plugin Path : /opt/hpcx/libnccl-net.so",
             "^", "Plugin Path", r"\s*:\s*(?P<value>\S+)", _value("plugin_paths")),
    _of_host("plugin path", "Successfully loaded external network plugin /opt/x/libnccl-net.so",  # from 2.28
             "^", "Successfully loaded external network plugin ", r"(?P<value>\S+)", _value("plugin_paths")),
    _of_host("channels", "16 coll channels, 16 collnet channels, 16 nvls channels, 16 p2p channels",
             r"^(?P<value>(\d+)", " coll channels,",
             r"(?: \d+ collnet channels,)?(?: (\d+) nvls channels,)?)", _channels),
    _of_host("NVLS multicast", "NVLS multicast support is not available on dev 3",
             "^", "NVLS multicast support is ", r"(?P<value>(?:not )?available)\b", _value("multicast")),
    _of_host("speed of {}", "NET/IB: [0] mlx5_0:uverbs0:1/IB provider=Mlx5 speed=400000 ar=1",  # from 2.26
             r"^NET/IB ?: \[\d+\] ?(?P<key>[\w.\-]+):.*", " speed=", r"(?P<value>\d+)"),
    _of_host("adaptive routing of {}", "NET/IB: [0] mlx5_0:uverbs0:1/IB provider=Mlx5 speed=400000 ar=1",
             r"^NET/IB ?: \[\d+\] ?(?P<key>[\w.\-]+):.*", " ar=", r"(?P<value>\d+)"),
    # of fused NICs the device is a new one
    _of_host("NET device {}", "NET/IB : Made virtual device [16] name=a_0+a_1 speed=400000 ndevs=2",
             "^NET/", "IB : Made virtual device [", r"(?P<key>\d+)\] name=(?P<value>\S+ speed=\d+ ndevs=\d)"),
    _of_host("MTU of device {}", "NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 312 mtu 5 LID 7",
             r"^NET/IB ?: .{0,80}Dev (?P<key>\d+) Port \d+ qpn \d+", " mtu ", r"(?P<value>\d+)"),
    _of_host("GID index of device {}", "NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 31 mtu 5 GID 3 (80FE/0)",
             r"^NET/IB ?: .{0,80}Dev (?P<key>\d+) Port \d+ qpn .{0,300}", " GID ", r"(?P<value>\d+) \("),
    _of_host("GPUDirect RDMA of {}", "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'",
             "", "GPU Direct RDMA ", r"(?P<value>\w+) for HCA \d+ '(?P<key>[^']*)'"),
    _of_host("DMA-BUF", "DMA-BUF is available on GPU 3", "^", "DMA-BUF is ", r"(?P<value>.*available)\b"),
    _of_host("topology", "=== System : maxBw 48.0 totalBw 360.0 ===",
             r"^=== System : (?P<value>maxBw \S+", " totalBw ", r"\S+)"),
    _of_host("topology links {}", "+ NVL[360.0] - NVS/0",
             r"\+ (?P<key>[A-Z\d]+)\[(?P<value>[\d.]+)", "] - ", ""),
    _of_host("graph of pattern {}", "Pattern 4, crossNic 0, nChannels 16, bw 20.0/20.0, type NVL/PIX",
             r"^Pattern (?P<key>\d+), (?P<value>", "crossNic ", r".*?)(?:, sameChannels|$)"),
    _of_host("NVLink fabric", "MNNVL busId 0x901000 fabric UUID 1f.2c cliqueId 0x1 state 3 healthMask 0x0",
             "^MNNVL busId .*", "fabric UUID ", r"(?P<value>\S+ cliqueId \S+)"),
    _of_host("transport protocol", "NET/OFI Using transport protocol RDMA (platform set)",
             "", "Using transport protocol ", r"(?P<value>\S+)"),
    _of_host("libfabric provider", "NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)",
             r"Selected [Pp]", "rovider is ", r"(?P<value>\S.*)"),
    _of_host("rails of a device", "NET/OFI Created device with 3 rails (originally found 4 rails)",
             r"NET/OFI Created device", " with ", r"(?P<value>\d+ rails \(originally found \d+ rails\))"),
    _of_host("local Net devices", "Rank 11: 7 Net devices", r"^Rank \d+: (?P<value>\d+)", " Net devices", ""),
    _of_host("NVLink clique", "MNNVL 1 cliqueId 7ffe cliqueSize 36 cliqueRank 0 nvlDomainSize 72",
             "^MNNVL 1 cliqueId .*", "cliqueSize ", r"(?P<value>\d+)"),
    _of_host("bootstrap interface", "Bootstrap : Using eth0:10.1.13.167<0>",
             r"^Bootstrap ?", ": Using ", r"(?:\[\d+\] ?)?(?P<value>[\w.\-]+):"),
    _of_host("{} plugin", "NET/Plugin: Loaded net plugin NCCL RDMA Plugin v6 (v6)",
             r"(?:Loaded|Using|Assigned|Initialized) (?P<key>\w+)", " plugin ",
             r"(?P<value>.+?)(?: to comm)?$"),
    _of_host("aws-ofi-nccl", "Initializing aws-ofi-nccl 1", "", "izing aws-ofi-nccl ", r"(?P<value>\S+)"),
    _of_host("NCCL git version", "NCCL git version HEAD ebd1e92", "^", "NCCL git version ", r"(?P<value>.*)"),
    # also NCCL version 2.22.3+cuda12.6 | cudaDriverVersion 12020 | HIP version : 6.2.41133
    _of_host("{}", "NET/OFI Using Libfabric version 1.21",
             r"^(?P<key>(?!NCCL git)\w.{0,80}?[Vv]", "ersion", r")\b[ :=]{1,4}v?(?P<value>\d[\w.+\-]*)"),
)  # fmt: skip
