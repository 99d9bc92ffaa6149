"""The transport between hosts, and the gate on it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from busbar.judge.nccl.checks.context import FIX, Check, Context, failed, not_required, passed, unknown
from busbar.judge.nccl.checks.hosts import on_one_machine
from busbar.judge.nccl.expected.system import VARIANT
from busbar.judge.nccl.log.edges import EdgeCounts, pack, unpack
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.reader import short
from busbar.judge.nccl.log.records import Rank

Link = tuple[int, int, int]  # channel, source, target


def incomplete(context: Context) -> Check | None:
    """Find missing edges between hosts; None if there are none."""
    evidence = context.evidence
    if evidence.links.overflow:
        return unknown("transport.edges_missing", "more edges than can be compared")
    if evidence.links.difference:
        reason = "senders and receivers name different edges: lines of the log are missing or damaged"
        return unknown("transport.one_sided", reason)
    uneven = [device for device, more in sorted(evidence.links.balance.items()) if more]
    if uneven:
        # in every public log both ends of an edge name the same device
        reason = f"as many edges are not sent as received over device {uneven[0]}: one end names another"
        return unknown("transport.one_sided", reason)
    ranks = context.listed
    hosts = {r.rank: short(r.host) for r in ranks}
    if not hosts:
        return None
    seen = evidence.links.seen
    strange = _misplaced(evidence, hosts, seen) or _of_another_rank(evidence, ranks)
    if strange:
        return unknown("transport.misplaced_edge", strange)
    system = context.expectation.system
    if system is not None and system.hosts_per_domain > 1:
        return None  # channels cross between domains, not between all hosts
    missing = _missing(evidence, hosts, seen)
    return unknown("transport.edges_missing", f"edges are missing: {missing}") if missing else None


def inside_a_host(context: Context) -> str | None:
    """Find a network link between two ranks of one host, whose GPUs NVLink joins."""
    system = context.expectation.system
    if system is None or not system.nvlink_gbps:
        return None
    hosts = {r.rank: short(r.host) for r in context.listed}
    for channel, source, target in unpack(context.evidence.links.seen):
        if source in hosts and hosts[source] == hosts.get(target):
            return f"channel {channel} from rank {source} to {target}, both on {hosts[source]}"
    return None


def _misplaced(evidence: Evidence, hosts: dict[int, str], seen: set[int]) -> str | None:
    for (host, _), rank in sorted(evidence.links.ends):
        if rank not in hosts:
            return f"{host or 'a process'} prints an edge of rank {rank}, which the device list does not have"
        if host and short(host) != hosts[rank]:
            return f"{host} prints an edge of rank {rank}, which the device list has on {hosts[rank]}"
    for channel, source, target in unpack(seen):
        if source not in hosts or target not in hosts:
            return f"an edge of channel {channel} names a rank that the device list does not have"
    return None


def _of_another_rank(evidence: Evidence, ranks: list[Rank]) -> str | None:
    """Find a process with edges of a rank that is not its own by the device list."""
    own: dict[tuple[str, int], set[int]] = {}
    for r in ranks:
        own.setdefault((short(r.host), r.pid), set()).add(r.rank)
    for (host, pid), rank in sorted(evidence.links.ends):
        if rank not in own.get((short(host), pid), {rank}):
            return f"pid {pid} on {host} prints an edge of rank {rank}, which the device list has elsewhere"
    return None


def _missing(evidence: Evidence, hosts: dict[int, str], seen: set[int]) -> str | None:
    all_hosts = set(hosts.values())
    leaving: dict[str, set[int]] = {h: set() for h in all_hosts}
    entering: dict[str, set[int]] = {h: set() for h in all_hosts}
    for channel, source, target in unpack(seen):
        if hosts[source] != hosts[target]:
            leaving[hosts[source]].add(channel)
            entering[hosts[target]].add(channel)
    if not seen:
        return _without_channels(evidence, hosts)
    channels = _channels(evidence, seen)
    if isinstance(channels, str):
        return channels
    for host in sorted(all_hosts):
        for way, found in (("sending", leaving[host]), ("receiving", entering[host])):
            absent = sorted(set(range(channels)) - found)
            if absent:
                listed = ", ".join(map(str, absent[:8]))
                return f"{host} has no {way} edge on {len(absent)} of {channels} channels ({listed})"
    for channel, source, target in _planned(evidence, hosts):
        if not evidence.links.both_ways(channel, source, target):
            return f"channel {channel} from rank {source} to {target}, which NCCL planned"
    return _one_way(evidence, hosts, seen) or _without_heads(evidence, hosts, seen)


def _one_way(evidence: Evidence, hosts: dict[int, str], seen: set[int]) -> str | None:
    """Find a missing direction: trees use both, rings one, so a link outside of rings needs its reverse."""
    if len(set(hosts.values())) == len(hosts):
        return None  # one rank on each host: PAT goes one way too
    rings = {c: dict(zip(r, [*r[1:], r[0]], strict=True)) for c, r in _rings(evidence, len(hosts)).items()}
    if not rings:
        return None
    for channel, source, target in unpack(seen):
        ring = rings.get(channel)
        if ring is None or ring[source] == target:
            continue
        if not evidence.links.both_ways(channel, target, source):
            return f"channel {channel} from rank {target} to {source}, the way back of another edge"
    return None


def _without_heads(evidence: Evidence, hosts: dict[int, str], seen: set[int]) -> str | None:
    """Find missing edges of NVLS trees: if all GPUs of a host are heads, each has both ways per channel."""
    per_host = len(hosts) // len(set(hosts.values()))
    if "NVLS tree" not in evidence.connected or set(evidence.heads) != {str(per_host)}:
        return None
    if len(evidence.nvls_channels) != 1:
        return None
    between = [(c, a, b) for c, a, b in unpack(seen) if hosts[a] != hosts[b]]
    sent = {(c, a) for c, a, _ in between}
    received = {(c, b) for c, _, b in between}
    for channel in range(int(next(iter(evidence.nvls_channels))[:4])):
        for rank in hosts:
            if (channel, rank) not in sent or (channel, rank) not in received:
                return f"rank {rank} on channel {channel}, though it is a head of NVLS trees"
    return None


def _rings(evidence: Evidence, n: int) -> dict[int, list[int]]:
    """The rings of N ranks that were printed completely (NCCL prints long ones shortened)."""
    return {c: list(ring) for c, ring in evidence.rings.items() if sorted(ring) == list(range(n))}


def _channels(evidence: Evidence, seen: set[int]) -> int | str:
    """The number of channels that must have edges, or why it is unknown."""
    printed = max(seen) // pack(1, 0, 0) + 1
    if not evidence.channels:
        return printed
    if len(evidence.channels) > 1:
        return f"processes count {' and '.join(evidence.channels)} channels"
    if set(evidence.connected) == {"NVLS tree"} and len(evidence.nvls_channels) == 1:
        # connected when first used (NCCL >= 2.22), and nothing but NVLS was
        return int(next(iter(evidence.nvls_channels))[:4])
    return int(next(iter(evidence.channels))[:4])


def _without_channels(evidence: Evidence, hosts: dict[int, str]) -> str | None:
    """Find a host without edges where only pairs of ranks communicate (sendrecv, alltoall)."""
    speaking = {hosts[rank] for _, rank in evidence.links.ends}
    silent = sorted(set(hosts.values()) - speaking)
    return f"{silent[0]} has none" if silent else None


def _planned(evidence: Evidence, hosts: dict[int, str]) -> Iterator[Link]:
    """Edges between hosts of the rings and trees that were printed and connected."""
    n = len(hosts)
    if "all rings" in evidence.connected:
        for channel, ring in _rings(evidence, n).items():
            yield from _between(((channel, ring[i], ring[(i + 1) % n]) for i in range(n)), hosts)
    if "all trees" in evidence.connected:
        for rank, parents in evidence.parents.items():
            trees = [(c, rank, parent) for c, parent in enumerate(parents)]
            yield from _between(iter(trees), hosts)
            yield from _between(((c, parent, child) for c, child, parent in trees), hosts)


def _between(links: Iterator[Link], hosts: dict[int, str]) -> Iterator[Link]:
    """The LINKS that join two hosts; a rank without a parent in a tree has -1 there."""
    for channel, source, target in links:
        if source in hosts and target in hosts and hosts[source] != hosts[target]:
            yield channel, source, target


ProvenTransport = Literal[
    "gpudirect-rdma", "rdma", "socket", "tcp-device-memory", "mnnvl", "single-node", "mixed", "unknown"
]

# networks that move data by RDMA; any other name proves nothing
RDMA_NAMES = re.compile(r"^(?:IB|IBext\w*|UCX\w*|AWS Libfabric|Libfabric|gIB)$", re.ASCII)
SHM = ("SHM", "direct shared memory")
# TCP with device memory (Google): neither plain TCP nor RDMA
DEVICE_TCP_NAMES = re.compile(r"^(?:GPUDirectTCPX\w*|FasTrak)$", re.ASCII)


def proven_transport(context: Context) -> ProvenTransport:
    """The transport between hosts that is proved for every table; the verdict's field `transport`."""
    found = {_proven(each) for each in context.each}
    if "unknown" in found or len(found) == 1:
        return "unknown" if "unknown" in found else found.pop()
    return "mixed"


def _proven(context: Context) -> ProvenTransport:
    evidence, hosts = context.evidence, context.nodes or context.expectation.nodes
    names = evidence.network_names
    if names:
        if all(RDMA_NAMES.match(n) for n in names):
            return "gpudirect-rdma" if evidence.gdrdma else "rdma"
        if names == {"Socket"}:
            return "socket"
        if all(DEVICE_TCP_NAMES.match(n) for n in names):
            return "tcp-device-memory"
        return "mixed" if "Socket" in names or any(RDMA_NAMES.match(n) for n in names) else "unknown"
    if hosts is not None and hosts > 1 and (mnnvl_edges(context) or "1" in evidence.mnnvl):
        return "mnnvl"
    if hosts is not None and hosts > 1 and set(evidence.networks) == {"Socket"}:
        return "socket"
    return "single-node" if hosts == 1 else "unknown"


def mnnvl_edges(context: Context) -> set[str]:
    """Labels of edges over multi-node NVLink."""
    return {label for label in context.evidence.edges if label.startswith("P2P/MNNVL")}


def transport(context: Context) -> Check:
    """Check that every edge between hosts uses the expected transport."""
    evidence, want = context.evidence, context.expectation.transport
    shared = _shared_memory(context)
    if shared:
        return shared
    together = on_one_machine(context)
    if together:
        reason = f"{together}: what they exchange does not prove a fabric"
        return unknown("transport.one_machine", reason, fix="one worker for each machine")
    if context.domains == 1:
        return _one_domain(context)
    if context.has_rows and not evidence.edges and not evidence.networks:
        return unknown("transport.no_evidence", _silent(context), fix=FIX)
    over_tcp = _over_tcp(context)
    if context.domains is None:
        code = over_tcp.code if over_tcp else "transport.nodes_unknown"
        return unknown(code, "how many hosts took part is not known")
    if over_tcp:
        return over_tcp
    problem = _unread(context)
    if problem:
        return problem
    if want is None:
        return _without_expectation(context)
    net = evidence.net_edges
    if not net:
        return unknown("transport.no_edge", _silent(context), fix=FIX)
    odd = {k for k, e in net.items() if not _expected(e, want, context.expectation.networks)}
    if odd:
        count = sum(net[k].count for k in odd)
        reason = f"{count} edges use {min(odd)}, expected {want}"
        return failed("transport.other_edge", reason, evidence.first_edge(odd))
    sent, received = evidence.net_directions["send"], evidence.net_directions["receive"]
    if sent != received:
        reason = f"{sent} sending and {received} receiving edges: lines of the log are missing"
        return unknown("transport.one_sided", reason)
    problem = incomplete(context) if context.proof is not None else None
    if problem:
        return problem
    inside = inside_a_host(context) if context.proof is not None else None
    if inside:
        reason = f"NET edges inside a host: its GPUs do not reach each other directly ({inside})"
        return failed("transport.net_inside_node", reason, evidence.first_edge())
    names = ", ".join(f"NET/{n}" for n in sorted(evidence.network_names))
    reason = f"{sum(e.count for e in net.values())} edges between hosts, all {names}"
    return passed("transport.as_expected", reason, evidence.first_edge())


def _shared_memory(context: Context) -> Check | None:
    """Find a host whose GPUs exchange data only through its memory, although NVLink joins them."""
    evidence, system = context.evidence, context.expectation.system
    gpus = {r.gpu for r in context.listed}
    if system is None or not system.nvlink_gbps or any(VARIANT.search(gpu) for gpu in gpus):
        return None
    shared = (h for h, each in sorted(evidence.inside.items()) if all(e.startswith(SHM) for e in each))
    host = next(shared, None)
    if host is None:
        return None
    labels = {label for label, e in evidence.edges.items() if e.transport.kind == "SHM"}
    reason = (
        f"every edge inside {host or 'a host'} goes through its memory (SHM), though NVLink joins its GPUs"
    )
    return failed("transport.shared_memory", reason, evidence.first_edge(labels))


def _silent(context: Context) -> str:
    missing = "no `via NET/..` line" if context.evidence.speaks else "no NCCL line at all"
    return f"{missing}: the transport between hosts is not known"


def _unread(context: Context) -> Check | None:
    """Find messages about the transport that cannot be read, or assigned to this table's processes."""
    log = context.log.evidence
    edge = next(iter(log.unread_edges.values()), None)
    if edge is not None or "edges" in log.lost:
        reason = "an edge is printed in a form that is not known"
        return unknown("transport.unread_edge", reason, edge)
    message = next(iter(log.unread_messages.values()), None)
    if message is not None:
        reason = "a message of NCCL is damaged: what it said is not known"
        return unknown("transport.unread_message", reason, message)
    if context.proof is not None and context.proof.loose.net_edges:
        reason = "edges of a process that the device list does not name, or printed behind the table"
        return unknown("transport.unbound_edge", reason, context.proof.loose.first_edge())
    return None


def _over_tcp(context: Context) -> Check | None:
    """Find TCP where RDMA is expected: on an edge, or as the network that a process names."""
    if context.expectation.transport not in ("rdma", "gpudirect-rdma"):
        return None
    reason = "TCP between hosts (NET/Socket), expected RDMA"
    for evidence in _all(context):
        tcp = {label for label, e in evidence.net_edges.items() if e.transport.name == "Socket"}
        if tcp:
            return failed("transport.socket_edge", reason, evidence.first_edge(tcp))
        if "Socket" in evidence.networks:
            return failed("transport.socket_network", reason, evidence.networks["Socket"])
    ucx = next(iter(context.log.evidence.ucx_over_tcp.values()), None)
    if ucx is not None and any(name.startswith("UCX") for name in context.evidence.network_names):
        reason = f"UCX says that an endpoint has TCP only, whatever the edges are named: {ucx.text[-120:]}"
        return unknown("transport.ucx_over_tcp", reason, ucx, "UCX_TLS=rc,cuda and UCX_NET_DEVICES=<HCAs>")
    return None


def _all(context: Context) -> list[Evidence]:
    """The evidence from the table's processes, and the evidence that may be theirs."""
    return [context.evidence, *([context.proof.loose] if context.proof is not None else [])]


def _expected(counts: EdgeCounts, want: str, allowed: list[str]) -> bool:
    network = counts.transport.name
    if want == "socket":
        return network == "Socket"
    if allowed and not any(network == a or network.startswith(f"{a}_") for a in allowed):
        return False
    return RDMA_NAMES.match(network) is not None


def _one_domain(context: Context) -> Check:
    evidence, want = context.evidence, context.expectation
    if not context.nodes_given and want.rails:
        return unknown(
            "transport.single_node",
            "one host: nothing crossed the fabric",
            fix="pass --expect-nodes 1 if one host is expected",
        )
    if want.system is not None and want.system.nodes > 1:
        return not_required("transport.not_required", "one NVLink domain: see mnnvl")
    if evidence.net_edges:
        reason = "NET edges on a single host: its GPUs do not reach each other directly"
        return failed("transport.net_inside_node", reason, evidence.first_edge())
    return not_required("transport.not_required", "one host: no traffic between hosts")


def _without_expectation(context: Context) -> Check:
    found = proven_transport(context)
    first = context.evidence.first_edge()
    if found == "unknown":
        reason = "no `via NET/..` line, and no expected transport given"
        return unknown("transport.no_edge", reason, fix=FIX)
    if found in ("socket", "mixed", "tcp-device-memory"):
        reason = f"{found} between hosts, and --transport does not expect it"
        return failed("transport.unexpected", reason, first)
    return passed("transport.as_expected", f"{found}, on every edge", first)
