"""What NCCL's own messages prove about the transport: edges, rails, plugin, topology file, versions.

Only what was printed is kept. Whether it is enough is the gates' business (busbar.nccl.gates).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from busbar.nccl.log import patterns as p
from busbar.nccl.log.edges import Bulk, Edge, edge_of

# networks that move data by RDMA; a name that is not here proves nothing
RDMA_NAMES = re.compile(r"^(?:IB|IBext\w*|UCX\w*|AWS Libfabric|Libfabric|gIB)$")
# TCP with device memory (Google): neither plain TCP nor RDMA
DEVICE_TCP_NAMES = re.compile(r"^(?:GPUDirectTCPX\w*|FasTrak)$")
KEEP = 64  # distinct texts kept of each kind; a log of any length stays small


@dataclass(frozen=True, slots=True)
class Seen:
    """A fact and the first line that states it."""

    value: str
    line: int
    text: str


@dataclass
class Evidence:
    """Facts of one log, filled by `message` and `bare`; line numbers start at 1."""

    via: Counter[str] = field(default_factory=Counter)
    via_seen: dict[str, Seen] = field(default_factory=dict)
    edges: dict[str, Edge] = field(default_factory=dict)
    # host -> devices of its NET edges; '' is the host of a message without a process
    rails: dict[str, set[int]] = field(default_factory=dict)
    # every NET edge is printed by its sender and by its receiver
    net_directions: Counter[str] = field(default_factory=Counter)
    networks: dict[str, Seen] = field(default_factory=dict)
    versions: dict[str, Seen] = field(default_factory=dict)
    topology_set: dict[str, Seen] = field(default_factory=dict)
    topology_failed: dict[str, Seen] = field(default_factory=dict)
    hcas: dict[str, Seen] = field(default_factory=dict)  # one list as printed -> where
    hcas_of_host: dict[str, tuple[str, ...]] = field(default_factory=dict)
    plugins: dict[str, Seen] = field(default_factory=dict)
    plugin_paths: dict[str, Seen] = field(default_factory=dict)
    coll_plugins: dict[str, Seen] = field(default_factory=dict)
    internal_plugin: Seen | None = None
    environment: dict[str, Seen] = field(default_factory=dict)
    algorithms: dict[str, Seen] = field(default_factory=dict)
    warnings: dict[str, Seen] = field(default_factory=dict)
    test_failures: dict[str, Seen] = field(default_factory=dict)
    initialised: dict[int, set[int]] = field(default_factory=dict)  # nranks -> ranks that came up
    counts: dict[tuple[int, int], Seen] = field(default_factory=dict)  # (nRanks, nNodes) -> where
    mnnvl: Seen | None = None
    ring_gdr_off: Seen | None = None
    gdr_disabled: Seen | None = None
    nvls_channels: int | None = None
    info_lines: int = 0
    hosts: set[str] = field(default_factory=set)
    stand_ins: dict[str, Seen] = field(default_factory=dict)

    # ---- feeding ------------------------------------------------------------------------------------------

    def message(self, level: str, host: str, body: str, line: int, text: str) -> None:
        """Take one NCCL INFO or WARN message of a process on HOST ('' where it was not printed)."""
        body = body.strip()
        self.info_lines += 1
        if host and len(self.hosts) < 65536:
            self.hosts.add(host)
        if level == "WARN":
            self._warn(body, line, text)
            return
        edge = edge_of(body)
        if edge is not None:
            self.edge(edge, host, line, text)
            return
        self._info(body, host, line, text)

    def edge(self, edge: Edge, host: str, line: int, text: str, count: int = 1) -> None:
        """Count COUNT equal edges of one process; LINE and TEXT are of the first."""
        self.via[edge.label] += count
        if edge.label not in self.via_seen or line < self.via_seen[edge.label].line:
            self.via_seen[edge.label] = Seen(edge.label, line, text[:400])
            self.edges[edge.label] = edge
        if edge.kind == "NET" and edge.device is not None:
            self.rails.setdefault(host, set()).add(edge.device)
            self.net_directions[edge.direction] += count

    def bare(self, text: str, line: int) -> None:
        """Take a line that is no NCCL message: the bare version, a failure of the test, a stand-in's mark."""
        if (
            "version" in text
            and (match := p.NCCL_VERSION.search(text)) is not None
            and not text.startswith("#")
        ):
            self._keep(self.versions, match[1], line, text)
        if "failure" in text and (match := p.TEST_FAILURE.search(text)) is not None:
            self._keep(self.test_failures, match[0].strip(), line, text)
        if "busbar-lab" in text and (match := p.STAND_IN.search(text)) is not None:
            self._keep(self.stand_ins, match[1], line, text)

    def _keep(self, into: dict[str, Seen], value: str, line: int, text: str) -> None:
        if value not in into and len(into) < KEEP:
            into[value] = Seen(value, line, text[:400])

    def _warn(self, body: str, line: int, text: str) -> None:
        if p.TOPO_FAILED.search(body):
            self._topology_failed(body, line, text)
        self._keep(self.warnings, body, line, text)

    def _topology_failed(self, body: str, line: int, text: str) -> None:
        match = p.TOPO_FAILED.search(body)
        if match is not None:
            self._keep(self.topology_failed, match[1], line, text)

    def _info(self, body: str, host: str, line: int, text: str) -> None:
        first = body.partition(" ")[0]
        if "version" in body and (match := p.NCCL_VERSION.search(body)) is not None:
            self._keep(self.versions, match[1], line, text)
        elif (match := p.USING_NETWORK.match(body)) is not None:
            self._keep(self.networks, match[1], line, text)
        elif (match := p.TOPO_SET.match(body)) is not None:
            self._keep(self.topology_set, match[1], line, text)
            self._keep(self.environment, f"NCCL_TOPO_FILE={match[1]}", line, text)
        elif (match := p.ENVIRONMENT.match(body)) is not None:
            self._keep(self.environment, f"{match[1]}={match[2]}", line, text)
        elif p.TOPO_FAILED.search(body) is not None:
            self._topology_failed(body, line, text)
        elif (match := p.HCAS_USED.match(body)) is not None:
            self._hcas(match["list"], host, line, text)
        elif (
            first in ("NET/Plugin", "NET/Plugin:", "Plugin", "P2P", "NET/OFI", "Successfully")
            or "NET plugin" in body
        ):
            self._plugin(body, line, text)
        elif "comm" in body and "rank" in body:
            self._communicator(body, line, text)
        elif (match := p.RINGS.match(body)) is not None:
            if match[2] == "0" and self.ring_gdr_off is None:
                self.ring_gdr_off = Seen("0", line, text[:400])
        elif (match := p.TUNING.match(body)) is not None:
            self._keep(self.algorithms, f"{match[1]} {match[3]}", line, text)
        elif (match := p.CHANNELS.match(body)) is not None:
            self.nvls_channels = int(match[2][:9])
        elif p.GDR_DISABLED.search(body) is not None and self.gdr_disabled is None:
            self.gdr_disabled = Seen(body, line, text[:400])

    def _plugin(self, body: str, line: int, text: str) -> None:
        if (match := p.PLUGIN_PATH.match(body)) is not None:
            self._keep(self.plugin_paths, match[1], line, text)
        elif (match := p.P2P_PLUGIN.match(body)) is not None or (
            match := p.LOADED_NET_PLUGIN.match(body)
        ) is not None:
            self._keep(self.plugins, match[1], line, text)
        elif (match := p.LOADED_COLL_PLUGIN.match(body)) is not None:
            self._keep(self.coll_plugins, match[1], line, text)
        elif (match := p.ASSIGNED_PLUGIN.search(body)) is not None or (
            match := p.OFI.match(body)
        ) is not None:
            self._keep(self.plugins, match[1], line, text)
        elif p.INTERNAL_PLUGIN.match(body) is not None and self.internal_plugin is None:
            self.internal_plugin = Seen("internal", line, text[:400])

    def _hcas(self, listed: str, host: str, line: int, text: str) -> None:
        self._keep(self.hcas, listed, line, text)
        names = tuple(m[1] for m in p.HCA.finditer(listed))
        if names and len(self.hcas_of_host) < 65536:
            self.hcas_of_host.setdefault(host, names)

    def _communicator(self, body: str, line: int, text: str) -> None:
        if (match := p.INIT_COMPLETE.search(body)) is not None:
            ranks = self.initialised.setdefault(int(match[2][:7]), set())
            if len(self.initialised) <= KEEP:
                ranks.add(int(match[1][:7]))
        elif (match := p.COMM_COUNTS.search(body)) is not None:
            key = (int(match[2][:7]), int(match[3][:7]))
            if key not in self.counts and len(self.counts) < KEEP:
                self.counts[key] = Seen(f"{key[0]}/{key[1]}", line, text[:400])
            if match[5] == "1" and self.mnnvl is None:
                self.mnnvl = Seen("1", line, text[:400])

    def merge(self, bulk: Bulk) -> None:
        """Add what the scanner counted without reading."""
        for key, known in sorted(bulk.known.items(), key=lambda item: item[1].line):
            if bulk.counts[key] > 0:
                self.edge(known.edge, known.host, known.line, known.text, bulk.counts[key])
        self.info_lines += bulk.messages
        self.hosts.update(h.decode("utf-8", "replace") for h in bulk.hosts)
        for host, devices in bulk.pairs.items():
            self.rails.setdefault(host.decode("utf-8", "replace"), set()).update(devices)

    # ---- reading ------------------------------------------------------------------------------------------

    @property
    def net_edges(self) -> Counter[str]:
        """Labels of edges that leave the process over a network -> how many."""
        return Counter({k: n for k, n in self.via.items() if self.edges[k].kind == "NET"})

    @property
    def gdrdma(self) -> bool | None:
        """True when every NET edge uses GPUDirect RDMA, None where no NET edge was printed."""
        net = self.net_edges
        if not net:
            return None
        return all(self.edges[k].gdr for k in net)

    def network_names(self) -> set[str]:
        """Names in NET edges: {'IBext'}, {'Socket'}, ..."""
        return {self.edges[k].name for k in self.net_edges}
