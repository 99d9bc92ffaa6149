"""What NCCL's own messages prove about the transport: edges, rails, plugin, topology file, versions.

Only what was printed is kept. Whether it is enough is decided by busbar.nccl.checks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from busbar.nccl.log import patterns as p
from busbar.nccl.log.edges import EdgeCounts, Transport, read_edge
from busbar.nccl.log.records import LogLine

KEEP = 64  # distinct texts kept of each kind; a log of any length stays small
KEEP_HOSTS = 65536
EVIDENCE_WIDTH = 400


@dataclass
class Evidence:
    """Facts of one log, filled by `message` and `plain_line`; line numbers start at 1."""

    edges: dict[str, EdgeCounts] = field(default_factory=dict)  # label -> edges
    # host -> devices of its NET edges; '' is the host of a message without a process
    rails: dict[str, set[int]] = field(default_factory=dict)
    # every NET edge is printed by its sender and by its receiver
    net_directions: Counter[str] = field(default_factory=Counter)
    networks: dict[str, LogLine] = field(default_factory=dict)
    versions: dict[str, LogLine] = field(default_factory=dict)
    topology_set: dict[str, LogLine] = field(default_factory=dict)
    topology_failed: dict[str, LogLine] = field(default_factory=dict)
    hcas: dict[str, LogLine] = field(default_factory=dict)  # one list as printed -> where
    hcas_of_host: dict[str, tuple[str, ...]] = field(default_factory=dict)
    plugin_paths: dict[str, LogLine] = field(default_factory=dict)
    environment: dict[str, LogLine] = field(default_factory=dict)
    algorithms: dict[str, LogLine] = field(default_factory=dict)
    warnings: dict[str, LogLine] = field(default_factory=dict)
    test_failures: dict[str, LogLine] = field(default_factory=dict)
    initialized: dict[int, set[int]] = field(default_factory=dict)  # nranks -> ranks that came up
    counts: dict[tuple[int, int], LogLine] = field(default_factory=dict)  # (nRanks, nNodes) -> where
    mnnvl: LogLine | None = None
    ring_without_gdr: LogLine | None = None
    # messages that name a transport in a form that is not known: what they prove is not known
    unread_edges: dict[str, LogLine] = field(default_factory=dict)
    messages: int = 0
    hosts: set[str] = field(default_factory=set)
    simulated: dict[str, LogLine] = field(default_factory=dict)

    # ---- feeding ------------------------------------------------------------------------------------------

    def message(self, level: str, host: str, body: str, line: int, text: str) -> list[FoundFact]:
        """Take one NCCL INFO or WARN message of a process on HOST ('' where it was not printed).

        Returns the facts in it, so that other processes' message of the same text can be taken by `fact`.
        """
        self.messages += 1
        if host and len(self.hosts) < KEEP_HOSTS:
            self.hosts.add(host)
        if level == "WARN":
            keep(self.warnings, body, line, text)
        elif (edge := read_edge(body)) is not None:
            self.edge(*edge, host, line, text)
            return []
        elif p.VIA_TRANSPORT.search(body) is not None:
            keep(self.unread_edges, body, line, text)
        found = [
            (fact, match)
            for fact in FACTS
            if fact.contains in body and (match := fact.pattern.search(body)) is not None
        ]
        for fact, match in found:
            fact.keep(self, match, host, line, text)
        return found

    def edge(self, transport: Transport, direction: str, host: str, line: int, text: str) -> None:
        """Count one edge of a process on HOST."""
        if transport.label not in self.edges:
            first = LogLine(transport.label, line, text[:EVIDENCE_WIDTH])
            self.edges[transport.label] = EdgeCounts(transport, first)
        self.add_edges(transport, direction, host, 1)

    def add_edges(self, transport: Transport, direction: str, host: str, count: int) -> None:
        """Count COUNT edges with a label that is known."""
        self.edges[transport.label].count += count
        if transport.kind == "NET" and transport.device is not None:
            self.rails.setdefault(host, set()).add(transport.device)
            self.net_directions[direction] += count

    def plain_line(self, text: str, line: int) -> None:
        """Take a line that is not an NCCL message: a bare version, a failed test, a note on a simulation."""
        if "version" in text and not text.startswith("#") and (match := p.NCCL_VERSION.search(text)):
            keep(self.versions, match[1], line, text)
        if "failure" in text and (match := p.TEST_FAILURE.search(text)) is not None:
            keep(self.test_failures, match[0].strip(), line, text)
        if "simulated" in text and (match := p.SIMULATED.match(text)) is not None:
            keep(self.simulated, match[1], line, text)

    # ---- reading ------------------------------------------------------------------------------------------

    @property
    def via(self) -> Counter[str]:
        """Labels of edges -> how many were printed."""
        return Counter({label: counts.count for label, counts in self.edges.items()})

    @property
    def net_edges(self) -> dict[str, EdgeCounts]:
        """Edges that leave the process over a network, by label."""
        return {label: counts for label, counts in self.edges.items() if counts.transport.kind == "NET"}

    @property
    def gdrdma(self) -> bool | None:
        """True when every NET edge uses GPUDirect RDMA, None where no NET edge was printed."""
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


def keep(into: dict[str, LogLine], value: str, line: int, text: str) -> None:
    """Keep the first line that states VALUE."""
    if value not in into and len(into) < KEEP:
        into[value] = LogLine(value, line, text[:EVIDENCE_WIDTH])


# ---- facts in messages ------------------------------------------------------------------------------------

Keep = Callable[[Evidence, "re.Match[str]", str, int, str], None]  # match, host, line, text


@dataclass(frozen=True, slots=True)
class Fact:
    """A kind of message: it holds `contains` and fits `pattern`; `keep` takes it into the evidence."""

    contains: str
    pattern: re.Pattern[str]
    keep: Keep


FoundFact = tuple[Fact, "re.Match[str]"]


def _value(field_name: str) -> Keep:
    """Keep the pattern's first group in the dictionary FIELD_NAME."""

    def take(evidence: Evidence, match: re.Match[str], host: str, line: int, text: str) -> None:
        keep(getattr(evidence, field_name), match[1], line, text)

    return take


def _environment(evidence: Evidence, match: re.Match[str], host: str, line: int, text: str) -> None:
    keep(evidence.environment, f"{match[1]}={match[2]}", line, text)
    if match[1] == "NCCL_TOPO_FILE":
        keep(evidence.topology_set, match[2], line, text)


def _hcas(evidence: Evidence, match: re.Match[str], host: str, line: int, text: str) -> None:
    keep(evidence.hcas, match["list"], line, text)
    names = tuple(m[1] for m in p.HCA.finditer(match["list"]))
    if names and len(evidence.hcas_of_host) < KEEP_HOSTS:
        evidence.hcas_of_host.setdefault(host, names)


def _initialized(evidence: Evidence, match: re.Match[str], host: str, line: int, text: str) -> None:
    ranks = evidence.initialized.setdefault(int(match[2][:7]), set())
    if len(evidence.initialized) <= KEEP:
        ranks.add(int(match[1][:7]))


def _counts(evidence: Evidence, match: re.Match[str], host: str, line: int, text: str) -> None:
    key = (int(match[2][:7]), int(match[3][:7]))
    if key not in evidence.counts and len(evidence.counts) < KEEP:
        evidence.counts[key] = LogLine(f"{key[0]}/{key[1]}", line, text[:EVIDENCE_WIDTH])
    if match[5] == "1" and evidence.mnnvl is None:
        evidence.mnnvl = LogLine("1", line, text[:EVIDENCE_WIDTH])


def _rings(evidence: Evidence, match: re.Match[str], host: str, line: int, text: str) -> None:
    if match[2] == "0" and evidence.ring_without_gdr is None:
        evidence.ring_without_gdr = LogLine("0", line, text[:EVIDENCE_WIDTH])


def _algorithm(evidence: Evidence, match: re.Match[str], host: str, line: int, text: str) -> None:
    keep(evidence.algorithms, f"{match[1]} {match[3]}", line, text)


FACTS = (
    Fact("CCL version", p.NCCL_VERSION, _value("versions")),
    Fact("Using network", p.USING_NETWORK, _value("networks")),
    Fact("set by environment to", p.ENVIRONMENT, _environment),
    Fact("Could not open XML topology file", p.TOPO_FAILED, _value("topology_failed")),
    Fact("NET/IB", p.HCAS_USED, _hcas),
    Fact("Plugin Path", p.PLUGIN_PATH, _value("plugin_paths")),
    Fact("external network plugin", p.EXTERNAL_PLUGIN, _value("plugin_paths")),
    Fact("nranks", p.INIT_COMPLETE, _initialized),
    Fact("nRanks", p.COMM_COUNTS, _counts),
    Fact("Connected all rings", p.RINGS, _rings),
    Fact("-> Algo", p.TUNING, _algorithm),
)
