"""Kinds of NCCL messages that state a fact, each beside an example, and the facts that are kept.

The text that a message must contain is a part of its pattern, so a quick search for the texts loses nothing.
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


@dataclass(frozen=True, slots=True)
class Fact:
    """A kind of message. `pattern` includes the text `contains`; `keep` adds a match to the evidence."""

    contains: str
    pattern: re.Pattern[str]
    keep: Keep


FoundFact = tuple[Fact, Match]


def find(body: str) -> list[FoundFact]:
    """The facts that a message states."""
    return [(f, m) for f in FACTS if f.contains in body and (m := f.pattern.search(body)) is not None]


def _fact(before: str, contains: str, behind: str, keeper: Keep) -> Fact:
    return Fact(contains, re.compile(before + re.escape(contains) + behind, re.ASCII), keeper)


def _value(field_name: str) -> Keep:
    """Keep the pattern's first group in the dictionary FIELD_NAME."""

    def take(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
        evidence.keep(field_name, match[1], line, text)

    return take


def _environment(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
    evidence.keep("environment", f"{match[1]}={match[2].removesuffix('.')}", line, text)
    if match[1] == "NCCL_TOPO_FILE":
        evidence.keep("topology_set", match[2].removesuffix("."), line, text)
        if len(evidence.topology_hosts) < KEEP_HOSTS:
            evidence.topology_hosts.add(host)


def _hcas(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
    keep(evidence.hcas, match["list"], line, text)  # a list for each host is not needed: hcas_of_host has it
    found = list(p.HCA.finditer(match["list"]))
    names = tuple({m.group("name", "port"): m["name"] for m in found}.values())  # each port once
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


def _fused(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
    if host in evidence.members or len(evidence.members) < KEEP_HOSTS:
        evidence.members.setdefault(host, {})[int(match[1][:4])] = int(match[2])


def _without_gdr(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
    evidence.keep("without_gdr", f"{host} {match[1]}", line, text)


def _initialized(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
    ranks = evidence.initialized.setdefault(int(match[2][:7]), set())
    if len(evidence.initialized) <= KEEP:
        ranks.add(int(match[1][:7]))
    else:
        evidence.lost.add("initialized")


def _counts(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
    key = (int(match[2][:7]), int(match[3][:7]))
    if key not in evidence.counts and len(evidence.counts) < KEEP:
        evidence.counts[key] = LogLine(f"{key[0]}/{key[1]}", line, text[:EVIDENCE_WIDTH])
    elif key not in evidence.counts:
        evidence.lost.add("counts")
    evidence.keep("local_ranks", match[4][:7], line, text)
    if match[5] == "1" and evidence.mnnvl is None:
        evidence.mnnvl = LogLine("1", line, text[:EVIDENCE_WIDTH])
    if match[5] == "0" and evidence.without_mnnvl is None:
        evidence.without_mnnvl = LogLine("0", line, text[:EVIDENCE_WIDTH])


def _connected(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
    evidence.keep("connected", match[1], line, text)
    if match[2] == "0" and evidence.ring_without_gdr is None:
        evidence.ring_without_gdr = LogLine("0", line, text[:EVIDENCE_WIDTH])


def _channels(evidence: Evidence, match: Match, host: str, line: int, text: str) -> None:
    evidence.keep("channels", match[1], line, text)
    if match[2] is not None:
        evidence.keep("nvls_channels", match[2], line, text)


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
    # NCCL_ALGO set by environment to RING
    _fact(r"^(NCCL_\w+)", " set by environment to ", r"(.*)", _environment),
    # Could not open XML topology file /opt/x.xml : No such file or directory
    _fact("", "Could not open XML topology file ", r"(\S+)", _value("topology_failed")),
    # NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB eth0:10.42.4.34<0>
    _fact("^", "NET/IB", r"\s*: Using (?P<list>[^;]*);", _hcas),
    # NET/IB : Made virtual device [16] name=mlx5_0+mlx5_1 speed=400000 ndevs=2
    _fact("^", "NET/IB : Made virtual device [", r"(\d+)\] name=\S+ speed=\d+ ndevs=(\d)\b", _fused),
    # Plugin Path : /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so
    _fact("^", "Plugin Path", r"\s*:\s*(\S+)", _value("plugin_paths")),
    # Successfully loaded external network plugin /opt/aws-ofi-nccl/lib/libnccl-net.so      from 2.28
    _fact("^", "Successfully loaded external network plugin", r"\s*(\S+)", _value("plugin_paths")),
    # ncclCommInitRank comm 0x.. rank 8 nranks 16 cudaDev 0 nvmlDev 0 busId 11000 commId 0x.. - Init COMPLETE
    _fact(r"comm \S{1,40} rank (\d+) nranks (\d+) .*", "Init COMPLETE", "", _initialized),
    # comm 0x.. rank 8 nranks 16 cudaDev 0 nvmlDev 0 busId 11000 - Destroy COMPLETE        also Init START
    _fact(r"\brank \d+", " nranks ", r"(\d{1,7}) ", _value("communicators")),
    # comm 0x.. rank 7 nRanks 8 nNodes 2 localRanks 4 localRank 3 MNNVL 0
    _fact(
        r"comm \S{1,40} rank (\d+)", " nRanks ",
        r"(\d+) nNodes (\d+) localRanks (\d+)(?:.*MNNVL (\d))?", _counts,
    ),
    # Connected all rings, use ring PXN 0 GDR 1 | Connected all trees | Connected NVLS tree
    _fact("^", "Connected ", r"(all rings|all trees|NVLS tree)(?:, use ring PXN \d GDR (\d))?", _connected),
    # 32 coll channels, 16 nvls channels, 32 p2p channels, 2 p2p channels per peer
    # 16 coll channels, 16 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer
    _fact(
        r"^(\d+)", " coll channels,", r"(?: \d+ collnet channels,)?(?: (\d+) nvls channels,)?", _channels
    ),
    # NVLS comm 0x.. headRank 6 nHeads 8 buffSize ..
    _fact(r"^NVLS comm \S+ headRank -?\d+", " nHeads ", r"(\d+)", _value("heads")),
    # Channel 00/32 :    0   7   6   5        the ring of channel 0, of 32
    _fact("^", "Channel ", r"(\d+)/(\d+) :((?:\s+\d+)+)$", _ring),
    # Trees [0] 1/4/-1->0->-1 [1] -1/-1/-1->0->3        children, rank, parent in each channel
    _fact("^", "Trees ", r"(\[.*)$", _trees),
    # AllReduce: 2147483648 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..31}
    _fact(r"^(\w+): (\d+) Bytes", " -> Algo ", r"(\w+) proto (\w+)", _algorithm),
)  # fmt: skip
