"""Evidence on the transport from NCCL's own messages: edges, rails, plugin, topology file, versions.

Only printed facts are kept. busbar.judge.nccl.checks decides whether they are enough.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from busbar.judge.nccl.log import patterns as p
from busbar.judge.nccl.log.edges import Edge, EdgeCounts
from busbar.judge.nccl.log.links import Links, pack
from busbar.judge.nccl.log.records import LogLine

KEEP = 64  # distinct texts kept of each kind; a log of any length stays small
KEEP_HOSTS = 65536
KEEP_LABELS = 1024
EVIDENCE_WIDTH = 400
MACHINE = "machine"  # the fact of a pod that is the Node on which it runs
# dictionaries: a text -> the first line that states it
TEXTS = (
    "networks", "versions", "topology_set", "topology_failed", "hcas", "plugin_paths", "environment",
    "algorithms", "warnings", "test_failures", "channels", "nvls_channels", "heads", "connected",
    "unread_edges", "unread_messages", "simulated", "communicators", "local_ranks", "without_gdr",
    "multicast", "ucx_over_tcp", "mnnvl", "ring_gdr",
)  # fmt: skip
# dictionaries: a host, or a number of ranks -> what it has
SETS = ("rails", "inside", "hca_links", "initialized", "destroyed")


@dataclass
class Evidence:
    """Facts of one program, or of a whole log (`merged`); line numbers start at 1."""

    edges: dict[str, EdgeCounts] = field(default_factory=dict)  # label -> edges
    # host -> devices of its NET edges; '' is the host of a message without a process
    rails: dict[str, set[int]] = field(default_factory=dict)
    # every NET edge is printed by its sender and by its receiver
    net_directions: Counter[str] = field(default_factory=Counter)
    links: Links = field(default_factory=Links)
    networks: dict[str, LogLine] = field(default_factory=dict)
    versions: dict[str, LogLine] = field(default_factory=dict)
    topology_set: dict[str, LogLine] = field(default_factory=dict)
    topology_failed: dict[str, LogLine] = field(default_factory=dict)
    hcas: dict[str, LogLine] = field(default_factory=dict)  # one list as printed -> where
    hcas_of_host: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # host -> (NET device, HCA, IB or RoCE), as printed by all of its processes; device -1: not known
    hca_links: dict[str, set[tuple[int, str, str]]] = field(default_factory=dict)
    plugin_paths: dict[str, LogLine] = field(default_factory=dict)
    environment: dict[str, LogLine] = field(default_factory=dict)
    algorithms: dict[str, LogLine] = field(default_factory=dict)  # "AllReduce RING" -> where
    algorithm_sizes: dict[str, int] = field(default_factory=dict)  # the same -> bytes, the most of all
    warnings: dict[str, LogLine] = field(default_factory=dict)
    test_failures: dict[str, LogLine] = field(default_factory=dict)
    initialized: dict[int, set[int]] = field(default_factory=dict)  # nranks -> ranks that came up
    destroyed: dict[int, set[int]] = field(default_factory=dict)  # nranks -> ranks that came to their end
    communicators: dict[str, LogLine] = field(default_factory=dict)  # numbers of ranks, in any message
    counts: dict[tuple[int, int], LogLine] = field(default_factory=dict)  # (nRanks, nNodes) -> where
    channels: dict[str, LogLine] = field(default_factory=dict)  # number of channels of a collective
    nvls_channels: dict[str, LogLine] = field(default_factory=dict)
    multicast: dict[str, LogLine] = field(default_factory=dict)  # what NVLS needs: available, not available
    heads: dict[str, LogLine] = field(default_factory=dict)  # GPUs of a host in its NVLS trees
    local_ranks: dict[str, LogLine] = field(default_factory=dict)  # ranks of a host, as NCCL counts them
    connected: dict[str, LogLine] = field(default_factory=dict)  # all rings, all trees, NVLS tree
    rings: dict[int, array[int]] = field(default_factory=dict)  # channel -> ranks in their order
    parents: dict[int, array[int]] = field(default_factory=dict)  # rank -> its parent in each channel
    mnnvl: dict[str, LogLine] = field(default_factory=dict)  # 1: a process uses it; 0: one does not
    ring_gdr: dict[str, LogLine] = field(default_factory=dict)  # 1, or 0: some edge of the rings has none
    # messages that name a transport in an unknown form, so it is unknown what they prove
    unread_edges: dict[str, LogLine] = field(default_factory=dict)
    # texts of an NCCL process that are not known messages
    unread_messages: dict[str, LogLine] = field(default_factory=dict)
    without_gdr: dict[str, LogLine] = field(default_factory=dict)  # "host device", "host " for all devices
    inside: dict[str, set[str]] = field(default_factory=dict)  # host -> edges inside it: P2P/CUMEM, SHM
    ucx_over_tcp: dict[str, LogLine] = field(default_factory=dict)  # endpoints of UCX with no other lane
    facts: dict[str, dict[str, set[str]]] = field(default_factory=dict)  # name -> value -> hosts that say so
    told: int = 0  # entries of `facts`
    speaks: bool = False  # it has a message of NCCL
    hosts: set[str] = field(default_factory=set)
    simulated: dict[str, LogLine] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)  # kinds of which more than KEEP texts were printed

    # ---- feeding ------------------------------------------------------------------------------------------

    def keep(self, kind: str, value: str, line: int, text: str) -> None:
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

    def edge(self, edge: Edge, process: tuple[str, int], line: int, text: str) -> None:
        """Add an edge printed by PROCESS: its host and pid, or "" and 0."""
        label = edge.transport.label
        if label not in self.edges:
            if len(self.edges) >= KEEP_LABELS:
                self.lost.add("edges")
                return
            self.edges[label] = EdgeCounts(edge.transport, LogLine(label, line, text[:EVIDENCE_WIDTH]))
        self.edges[label].count += 1
        if edge.transport.kind in ("P2P", "SHM"):
            self.inside.setdefault(process[0], set()).add(label)
        if edge.transport.kind != "NET" or edge.transport.device is None:
            return
        self.rails.setdefault(process[0], set()).add(edge.transport.device)
        self.net_directions[edge.direction] += 1
        if edge.direction:
            sent = edge.direction == "send"
            own = edge.source if sent else edge.target
            self.links.end(*process, own)
            self.links.balance[edge.transport.device] += 1 if sent else -1
            key = pack(edge.channel, edge.source, edge.target) if edge.connection == 0 else None
            self.links.add(edge.link, key, sent)

    @classmethod
    def merged(cls, parts: Iterable[Evidence]) -> Evidence:
        """All PARTS in one. If several state a fact, the first line is kept."""
        whole = cls()
        for part in parts:
            whole.add(part)
        for kind in (*TEXTS, "counts"):
            facts: dict[object, LogLine] = getattr(whole, kind)
            setattr(whole, kind, dict(sorted(facts.items(), key=lambda item: item[1].line)))
        return whole

    def add(self, part: Evidence) -> None:
        """Add everything in PART."""
        for label, counts in part.edges.items():
            mine = self.edges.setdefault(label, EdgeCounts(counts.transport, counts.first))
            mine.count += counts.count
            mine.first = min(mine.first, counts.first, key=lambda first: first.line)
        self.net_directions.update(part.net_directions)
        self.links.merge(part.links)
        for kind in (*TEXTS, "counts"):
            facts: dict[object, LogLine] = getattr(self, kind)
            for value, line in getattr(part, kind).items():
                if value not in facts or line.line < facts[value].line:
                    facts[value] = line
        for host, names in part.hcas_of_host.items():
            mine_of_host = self.hcas_of_host.setdefault(host, names)
            self.hcas_of_host[host] = tuple(name for name in mine_of_host if name in names)
        for kind in SETS:
            _unite(getattr(self, kind), getattr(part, kind))
        for name, values in part.facts.items():
            _unite(self.facts.setdefault(name, {}), values)
        self.told += part.told
        self.rings = {**part.rings, **self.rings}
        self.parents = {**part.parents, **self.parents}
        for chosen, size in part.algorithm_sizes.items():
            self.algorithm_sizes[chosen] = max(size, self.algorithm_sizes.get(chosen, 0))
        self.speaks = self.speaks or part.speaks
        self.hosts |= part.hosts
        self.lost |= part.lost

    # ---- reading ------------------------------------------------------------------------------------------

    @property
    def via(self) -> Counter[str]:
        """Label of edges -> number of printed edges."""
        return Counter({label: counts.count for label, counts in self.edges.items()})

    def says(self, host: str, name: str) -> list[str]:
        """Return the values that HOST prints of the fact NAME."""
        return [value for value, hosts in self.facts.get(name, {}).items() if host in hosts]

    @property
    def net_edges(self) -> dict[str, EdgeCounts]:
        """Edges that leave the process over a network, by label."""
        return {label: counts for label, counts in self.edges.items() if counts.transport.kind == "NET"}

    @property
    def gdrdma(self) -> bool | None:
        """Whether every NET edge uses GPUDirect RDMA; None if no NET edge was printed."""
        net = self.net_edges
        return all(counts.transport.gdr for counts in net.values()) if net else None

    @property
    def network_names(self) -> set[str]:
        """Names in NET edges: {'IBext'}, {'Socket'}, ..."""
        return {counts.transport.name for counts in self.net_edges.values()}

    def first_edge(self, labels: set[str] | None = None) -> LogLine | None:
        """The earliest NET edge, or the earliest edge of LABELS."""
        chosen = self.net_edges if labels is None else {k: self.edges[k] for k in labels}
        return min((counts.first for counts in chosen.values()), key=lambda first: first.line, default=None)


def _unite(mine: dict[Any, set[Any]], others: Mapping[Any, set[Any]]) -> None:
    """Add the sets of OTHERS to those of MINE."""
    for key, values in others.items():
        mine.setdefault(key, set()).update(values)


def keep(into: dict[str, LogLine], value: str, line: int, text: str) -> bool:
    """Keep the first line that states VALUE; False if there is no more room."""
    if value not in into:
        if len(into) >= KEEP:
            return False
        into[value] = LogLine(value, line, text[:EVIDENCE_WIDTH])
    return True


def plain_facts(text: str) -> list[tuple[str, str]]:
    """Kinds and values in a text that is not an NCCL message: a version, a failed test, a simulation note.

    Text that looks like a part of a message is included too; its content is not known.
    """
    found = []
    if "version" in text and not text.startswith("#") and (match := p.NCCL_VERSION.search(text)):
        found.append(("versions", match[1]))
    if "failure" in text and (match := p.TEST_FAILURE.search(text)) is not None:
        found.append(("test_failures", match[0].strip()))
    if "simulated" in text and (match := p.SIMULATED.match(text)) is not None:
        found.append(("simulated", match[1]))
    if "tcp/" in text and p.UCX_OVER_TCP.search(text) is not None:
        found.append(("ucx_over_tcp", text[:EVIDENCE_WIDTH]))
    if p.names_transport(text):
        found.append(("unread_edges", text[:EVIDENCE_WIDTH]))
    elif p.names_process(text) or ("NCCL" in text and p.LEVEL.search(text) is not None):
        found.append(("unread_messages", text[:EVIDENCE_WIDTH]))
    return found
