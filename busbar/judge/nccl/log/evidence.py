"""Evidence on the transport from NCCL's own messages: edges, rails, plugin, topology file, versions.

Only printed facts are kept. busbar.judge.nccl.checks decides whether they are enough.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from busbar.judge.nccl.log import patterns as p
from busbar.judge.nccl.log.records import EVIDENCE_WIDTH, LogLine

KEEP = 64  # distinct texts kept of each kind; a log of any length stays small
KEEP_HOSTS = 65536
KEEP_LABELS = 1024
Texts = dict[str, LogLine]  # a text -> the first line that states it
Counts = dict[tuple[int, int], LogLine]
MACHINE = "machine"  # the fact of a pod that is the Node on which it runs
OPEN_FILES = "open files"  # the fact of a host that are the limits of its ranks


# Channel edges: messages about the transport between two ranks. The part before `via` is the link (channel,
# ranks, direction), the part behind it the transport.
#     Channel 07/0 : 6[6] -> 15[7] [receive] via NET/IBext/3/GDRDMA
MAX_LINKS = 400_000
MAX_ENDS = 65_536
Process = tuple[str, int]  # host and pid; "" and 0 where they were not printed
Link = tuple[int, int, int]  # channel, source, target
End = tuple[Process, int]  # a process and its own rank
RANK_BITS = 22
RANK_MASK = (1 << RANK_BITS) - 1


@dataclass
class Links:
    """Links over a network, as printed. `difference` is 0 where both ends named the same links."""

    difference: int = 0
    # (channel, source, target) of connection 0 as one number
    sent: set[int] = field(default_factory=set)
    received: set[int] = field(default_factory=set)
    ends: set[End] = field(default_factory=set)  # of each message
    balance: Counter[int] = field(default_factory=Counter)  # device -> edges sent, less those received
    overflow: bool = False

    def add(self, process: Process, link: bytes, key: int, sent: bool, *, first: bool) -> None:
        """Add one end of a LINK as PROCESS printed it, with its KEY (`pack`).

        Both ends print the same LINK. FIRST: it is of connection 0.
        """
        end = process, (key >> RANK_BITS if sent else key) & RANK_MASK
        if end not in self.ends:
            self.overflow |= len(self.ends) >= MAX_ENDS
            if not self.overflow:
                self.ends.add(end)
        self.difference += hash(link) if sent else -hash(link)
        if not first:
            return
        mine = self.sent if sent else self.received
        mine.add(key)
        if len(mine) > MAX_LINKS:
            self.overflow = True
            mine.clear()

    @property
    def seen(self) -> list[Link]:
        """Links that the sender or the receiver printed."""
        keys = self.sent | self.received
        return [(key >> 2 * RANK_BITS, (key >> RANK_BITS) & RANK_MASK, key & RANK_MASK) for key in keys]

    def both_ways(self, channel: int, source: int, target: int) -> bool:
        """True if both sender and receiver printed the link."""
        key = pack(channel, source, target)
        return key in self.sent and key in self.received

    def merge(self, other: Links) -> None:
        """Add everything in OTHER."""
        self.difference += other.difference
        self.sent |= other.sent
        self.received |= other.received
        self.ends |= other.ends
        self.balance.update(other.balance)
        self.overflow |= other.overflow


def pack(channel: int, source: int, target: int) -> int:
    """One number for a link: smaller in memory than a tuple."""
    return (channel << 2 * RANK_BITS) | ((source & RANK_MASK) << RANK_BITS) | (target & RANK_MASK)


Kind = Literal["NET", "COLLNET", "P2P", "SHM"]


@dataclass(frozen=True, slots=True)
class Transport:
    """The transport of an edge: `NET/IBext/3/GDRDMA` is kind NET, name IBext, device 3, gdr True.

    `label` is the same without the device: NET/IBext/N/GDRDMA.
    """

    kind: Kind
    name: str
    device: int | None
    gdr: bool
    label: str


@dataclass(slots=True)
class EdgeCounts:
    """The number of printed edges with one label, and the first line that shows one."""

    transport: Transport
    first: LogLine
    count: int = 0


def read_transport(text: str) -> Transport | None:
    """The transport that TEXT states; None if it is not in a known form."""
    match = p.TRANSPORT.fullmatch(text)
    if match is None:
        return None
    if match["net"] is not None:
        kind: Kind = "COLLNET" if match["net"] == "COLLNET" else "NET"
        name, gdr = match["name"], match["gdr"] is not None
        label = f"{kind}/{name}/N{match['gdr'] or ''}{match['pci'] or ''}{match['shared'] or ''}"
        return Transport(kind, name, int(match["dev"]), gdr, label)
    if match["p2p"] is not None:
        return Transport("P2P", match["p2p"].removeprefix("P2P/"), None, False, match["p2p"])
    return Transport("SHM", match["shm"], None, False, match["shm"])


@dataclass
class Evidence:
    """Facts of one program, or of a whole log (`merged`); line numbers start at 1."""

    edges: dict[str, EdgeCounts] = field(default_factory=dict)  # label -> edges
    # host -> devices of its NET and of its COLLNET edges; '' is the host of a message without a process
    net_devices: dict[str, set[int]] = field(default_factory=dict)
    switch_devices: dict[str, set[int]] = field(default_factory=dict)
    # every NET edge is printed by its sender and by its receiver
    net_directions: Counter[str] = field(default_factory=Counter)
    links: Links = field(default_factory=Links)
    networks: Texts = field(default_factory=dict)
    versions: Texts = field(default_factory=dict)
    topology_set: Texts = field(default_factory=dict)
    topology_failed: Texts = field(default_factory=dict)
    hcas: Texts = field(default_factory=dict)  # one list as printed -> where
    hcas_of_host: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # host -> (NET device, HCA, IB or RoCE), as printed by all of its processes; device -1: not known
    hca_links: dict[str, set[tuple[int, str, str]]] = field(default_factory=dict)
    plugin_paths: Texts = field(default_factory=dict)
    environment: Texts = field(default_factory=dict)
    algorithms: Texts = field(default_factory=dict)  # "AllReduce RING" -> where
    algorithm_sizes: dict[str, int] = field(default_factory=dict)  # the same -> bytes, the most of all
    warnings: Texts = field(default_factory=dict)
    test_failures: Texts = field(default_factory=dict)
    initialized: dict[int, set[int]] = field(default_factory=dict)  # nranks -> ranks that came up
    destroyed: dict[int, set[int]] = field(default_factory=dict)  # nranks -> ranks that came to their end
    communicators: Texts = field(default_factory=dict)  # numbers of ranks, in any message
    counts: Counts = field(default_factory=dict)  # (nRanks, nNodes) -> where
    channels: Texts = field(default_factory=dict)  # number of channels of a collective
    nvls_channels: Texts = field(default_factory=dict)
    multicast: Texts = field(default_factory=dict)  # what NVLS needs: available, not available
    heads: Texts = field(default_factory=dict)  # GPUs of a host in its NVLS trees
    local_ranks: Texts = field(default_factory=dict)  # ranks of a host, as NCCL counts them
    connected: Texts = field(default_factory=dict)  # all rings, all trees, NVLS tree
    rings: dict[int, array[int]] = field(default_factory=dict)  # channel -> ranks in their order
    parents: dict[int, array[int]] = field(default_factory=dict)  # rank -> its parent in each channel
    mnnvl: Texts = field(default_factory=dict)  # 1: a process uses it; 0: one does not
    ring_gdr: Texts = field(default_factory=dict)  # 1, or 0: some edge of the rings has none
    # messages that name a transport in an unknown form, so it is unknown what they prove
    unread_edges: Texts = field(default_factory=dict)
    # texts of an NCCL process that are not known messages
    unread_messages: Texts = field(default_factory=dict)
    without_gdr: Texts = field(default_factory=dict)  # "host device", "host " for all devices
    inside: dict[str, set[str]] = field(default_factory=dict)  # host -> edges inside it: P2P/CUMEM, SHM
    ucx_over_tcp: Texts = field(default_factory=dict)  # endpoints of UCX with no other lane
    facts: dict[str, dict[str, set[str]]] = field(default_factory=dict)  # name -> value -> hosts that say so
    told: int = 0  # entries of `facts`
    speaks: bool = False  # it has a message of NCCL
    hosts: set[str] = field(default_factory=set)
    simulated: Texts = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)  # kinds of which more than KEEP texts were printed

    # ---- feeding ------------------------------------------------------------------------------------------

    def keep(self, kind: str, value: object, line: int, text: str) -> None:
        """Keep the first line that states VALUE in the dictionary KIND; more than KEEP are noted as lost."""
        if not keep(getattr(self, kind), value, line, text):
            self.lost.add(kind)

    def of_host(self, name: str, value: str, host: str) -> None:
        """Keep that HOST prints VALUE of the fact NAME, to be compared between the hosts."""
        if host in self.facts.get(name, {}).get(value, ()):
            return
        if self.told < KEEP_HOSTS:
            self.facts.setdefault(name, {}).setdefault(value, set()).add(host)
            self.told += 1
        else:
            self.lost.add("facts")

    def edge(
        self, edge: re.Match[bytes], transport: Transport, process: Process, line: int, text: bytes
    ) -> None:
        """Add an EDGE (a match of patterns.EDGE) over TRANSPORT that PROCESS printed."""
        counts = self.edges.get(transport.label)
        if counts is None:
            if len(self.edges) >= KEEP_LABELS:
                self.lost.add("edges")
                return
            first = LogLine.of(line, text.decode("utf-8", "replace"), transport.label)
            counts = self.edges[transport.label] = EdgeCounts(transport, first)
        counts.count += 1
        if transport.kind in ("P2P", "SHM"):
            self.inside.setdefault(process[0], set()).add(transport.label)
        if transport.device is None:
            return
        devices = self.net_devices if transport.kind == "NET" else self.switch_devices
        devices.setdefault(process[0], set()).add(transport.device)
        if transport.kind != "NET":
            return
        link, channel, connection, source, target, direction = edge.group(
            "link", "channel", "connection", "source", "target", "direction"
        )
        if direction is None:
            self.net_directions[""] += 1
            return
        sent = direction == b"send"
        self.net_directions["send" if sent else "receive"] += 1
        first_connection = not connection or int(connection) == 0
        if first_connection:  # of others (alltoall, sendrecv) each end may use the HCA next to its own GPU
            self.links.balance[transport.device] += 1 if sent else -1
        key = pack(int(channel), int(source), int(target or -1))
        self.links.add(process, link, key, sent, first=first_connection)

    @classmethod
    def merged(cls, parts: Iterable[Evidence]) -> Evidence:
        """All PARTS in one. If several state a fact, the first line is kept."""
        whole = cls()
        for part in parts:
            whole.add(part)
        for each in fields(cls):
            if each.type in ("Texts", "Counts"):
                found = sorted(getattr(whole, each.name).items(), key=lambda item: item[1].line)
                setattr(whole, each.name, dict(found))
        return whole

    def add(self, part: Evidence) -> None:
        """Add everything in PART."""
        for each in fields(self):
            setattr(self, each.name, _both(getattr(self, each.name), getattr(part, each.name)))

    # ---- reading ------------------------------------------------------------------------------------------

    def says(self, host: str, name: str) -> list[str]:
        """Return the values that HOST prints of the fact NAME."""
        return [value for value, hosts in self.facts.get(name, {}).items() if host in hosts]

    @property
    def net_edges(self) -> dict[str, EdgeCounts]:
        """Edges that leave the process over a network, by label."""
        return {label: counts for label, counts in self.edges.items() if counts.transport.kind == "NET"}

    @property
    def remote_edges(self) -> dict[str, EdgeCounts]:
        """The same, and edges to switches that reduce (COLLNET)."""
        return {label: e for label, e in self.edges.items() if e.transport.kind in ("NET", "COLLNET")}

    @property
    def rails(self) -> dict[str, set[int]]:
        """Host -> devices of its NET edges; where it has none, of those to switches that reduce."""
        return self.switch_devices | self.net_devices

    @property
    def gdrdma(self) -> bool | None:
        """Whether every remote edge uses GPUDirect RDMA; None if no such edge was printed."""
        remote = self.remote_edges
        return all(counts.transport.gdr for counts in remote.values()) if remote else None

    @property
    def network_names(self) -> set[str]:
        """Names in NET edges: {'IBext'}, {'Socket'}, ..."""
        return {counts.transport.name for counts in self.net_edges.values()}

    def first_edge(self, labels: set[str] | None = None) -> LogLine | None:
        """The earliest NET edge, or the earliest edge of LABELS."""
        chosen = self.net_edges if labels is None else {k: self.edges[k] for k in labels}
        return min((counts.first for counts in chosen.values()), key=lambda first: first.line, default=None)


def _both(mine: Any, other: Any) -> Any:
    """MINE with everything in OTHER: the earlier of two lines, the larger of two numbers."""
    match mine:
        case Counter():
            mine.update(other)
        case dict():
            for key, value in other.items():
                own = deepcopy(value) if isinstance(value, (dict, set, EdgeCounts)) else value
                mine[key] = _both(mine[key], value) if key in mine else own
        case set():
            mine |= other
        case LogLine():
            return min(mine, other, key=lambda line: line.line)
        case int():
            return max(mine, other)
        case tuple():
            return tuple(name for name in mine if name in other)
        case EdgeCounts():
            mine.count += other.count
            mine.first = _both(mine.first, other.first)
        case Links():
            mine.merge(other)
    return mine


def keep(into: dict[Any, LogLine], value: object, line: int, text: str) -> bool:
    """Keep the first line that states VALUE; False if there is no more room."""
    if value not in into:
        if len(into) >= KEEP:
            return False
        into[value] = LogLine.of(line, text, str(value))
    return True


def plain_facts(text: str) -> Iterator[tuple[str, str]]:
    """Kinds and values in a text that is not an NCCL message: a version, a failed test, a simulation note.

    Text that looks like a part of a message is included too; its content is not known.
    """
    if "version" in text and not text.startswith("#") and (match := p.NCCL_VERSION.search(text)):
        yield "versions", match[1]
    if "failure" in text and (match := p.TEST_FAILURE.search(text)) is not None:
        yield "test_failures", match[0].strip()
    if "simulated" in text and (match := p.SIMULATED.match(text)) is not None:
        yield "simulated", match[1]
    if "tcp/" in text and p.UCX_OVER_TCP.search(text) is not None:
        yield "ucx_over_tcp", text[:EVIDENCE_WIDTH]
    if p.names_transport(text):
        yield "unread_edges", text[:EVIDENCE_WIDTH]
    elif p.names_process(text) or ("NCCL" in text and p.LEVEL.search(text) is not None):
        yield "unread_messages", text[:EVIDENCE_WIDTH]


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

    def take(self, evidence: Evidence, body: str, host: str, line: int, text: str) -> None:
        """Add the fact to EVIDENCE if BODY, a message of HOST, states it."""
        match = self.pattern.search(body)
        if match is None:
            return
        if self.keep is not None:
            self.keep(evidence, match, host, line, text)
        if self.of_host:
            groups = match.groupdict("")
            name = self.of_host.format(groups.get("key", ""))
            evidence.of_host(name, groups["value"][:LONGEST_VALUE], host)


def candidates(body: str) -> tuple[Fact, ...]:
    """The facts that a message like BODY may state, whatever its numbers are."""
    return tuple(fact for fact in FACTS if fact.contains in body)


def _fact(before: str, contains: str, behind: str, keeper: Keep | None, *of_host: str) -> Fact:
    """A fact in messages with CONTAINS; OF_HOST: the name of what each host says, and such a message."""
    return Fact(contains, re.compile(before + re.escape(contains) + behind, re.ASCII), keeper, *of_host)


def _of_host(
    name: str, example: str, before: str, contains: str, behind: str, keeper: Keep | None = None
) -> Fact:
    """A fact of each host: NAME of the value in messages such as EXAMPLE."""
    return _fact(before, contains, behind, keeper, name, example)


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
    if host in evidence.hcas_of_host or (names and len(evidence.hcas_of_host) < KEEP_HOSTS):
        # those that all processes of the host opened
        evidence.hcas_of_host[host] = _both(evidence.hcas_of_host.get(host, names), names)


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
    evidence.keep("counts", (int(match[2][:7]), int(match[3][:7])), line, text)
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
    _fact(r"comm \S{1,40} rank (\d+)", " nRanks ", r"(\d+) nNodes (\d+) localRanks (\d+)", _counts),
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
    _of_host("MTU of device {}", "NET/IB: ncclIbConnect: Dev 0 IbDev 0 Port 1 qp_num 312 mtu 5 LID 7",
             r"^NET/IB ?: .{0,80}Dev (?P<key>\d+) Port \d+ qp\w+ \d+", " mtu ", r"(?P<value>\d+)"),
    _of_host("GID index of device {}", "NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 31 mtu 5 GID 3 (80FE/0)",
             r"^NET/IB ?: .{0,80}Dev (?P<key>\d+) Port \d+ qp\w+ .{0,300}", " GID ", r"(?P<value>\d+) \("),
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
    _of_host("NCCL git version", "NCCL git version HEAD ebd1e92", "^", "NCCL git version ", r"(?P<value>.*)"),
    # also NCCL version 2.22.3+cuda12.6 | cudaDriverVersion 12020 | HIP version : 6.2.41133
    _of_host("{}", "NET/OFI Using Libfabric version 1.21",
             r"^(?P<key>(?!NCCL git)\w.{0,80}?[Vv]", "ersion", r")\b[ :=]{1,4}v?(?P<value>\d[\w.+\-]*)"),
)  # fmt: skip
