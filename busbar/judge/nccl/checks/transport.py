"""The transport between hosts, and the gate on it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from busbar.judge.nccl.checks.context import FIX, Check, Context, failed, not_required, passed, unknown
from busbar.judge.nccl.checks.hosts import on_one_machine
from busbar.judge.nccl.expected.system import VARIANT
from busbar.judge.nccl.log.evidence import EdgeCounts, Evidence, Link
from busbar.judge.nccl.log.reader import short


def incomplete(context: Context) -> Check | None:
    """Find missing edges between hosts; None if there are none."""
    links, system = context.evidence.links, context.expectation.system
    if links.overflow:
        return unknown("transport.edges_missing", "more edges than can be compared")
    if links.difference:
        reason = "senders and receivers name different edges: lines of the log are missing or damaged"
        return unknown("transport.one_sided", reason)
    uneven = [device for device, more in sorted(links.balance.items()) if more]
    if uneven:
        # in every public log both ends of an edge name the same device
        reason = f"as many edges are not sent as received over device {uneven[0]}: one end names another"
        return unknown("transport.one_sided", reason)
    hosts, seen = _hosts(context), links.seen
    if not hosts:
        return None
    strange = next(_misplaced(context, hosts, seen), None)
    if strange:
        return unknown("transport.misplaced_edge", strange)
    if system is not None and system.hosts_per_domain > 1:
        return None  # channels cross between domains, not between all hosts
    missing = next(_missing(context.evidence, hosts, seen), None)
    return unknown("transport.edges_missing", f"edges are missing: {missing}") if missing else None


def _hosts(context: Context) -> dict[int, str]:
    return {r.rank: short(r.host) for r in context.listed}


def inside_a_host(context: Context) -> str | None:
    """Find a network link between two ranks of one host, whose GPUs NVLink joins."""
    system, hosts = context.expectation.system, _hosts(context)
    if system is None or not system.nvlink_gbps:
        return None
    for channel, source, target in context.evidence.links.seen:
        if source in hosts and hosts[source] == hosts.get(target):
            return f"channel {channel} from rank {source} to {target}, both on {hosts[source]}"
    return None


def _misplaced(context: Context, hosts: dict[int, str], seen: list[Link]) -> Iterator[str]:
    """Edges of a rank that the device list does not have, or has on another host or process."""
    links = context.evidence.links
    for (host, _), rank in sorted(links.ends):
        if rank not in hosts:
            yield f"{host or 'a process'} prints an edge of rank {rank}, which the device list does not have"
        elif host and short(host) != hosts[rank]:
            yield f"{host} prints an edge of rank {rank}, which the device list has on {hosts[rank]}"
    for channel, source, target in seen:
        if source not in hosts or target not in hosts:
            yield f"an edge of channel {channel} names a rank that the device list does not have"
    own: dict[tuple[str, int], set[int]] = {}
    for r in context.listed:
        own.setdefault((short(r.host), r.pid), set()).add(r.rank)
    for (host, pid), rank in sorted(links.ends):
        if rank not in own.get((short(host), pid), {rank}):
            yield f"pid {pid} on {host} prints an edge of rank {rank}, which the device list has elsewhere"


def _missing(evidence: Evidence, hosts: dict[int, str], seen: list[Link]) -> Iterator[str]:
    """Edges that a whole log would have."""
    links, all_hosts = evidence.links, set(hosts.values())
    if not seen:
        # only pairs of ranks communicate (sendrecv, alltoall)
        silent = sorted(all_hosts - {hosts[rank] for _, rank in links.ends})
        yield from (f"{host} has none" for host in silent)
        return
    if len(evidence.channels) > 1:
        yield f"processes count {' and '.join(evidence.channels)} channels"
    channels, between = _channels(evidence, seen), [*_between(seen, hosts)]
    used: dict[tuple[str, str], set[int]] = {}  # host, way -> channels
    for channel, source, target in between:
        used.setdefault((hosts[source], "sending"), set()).add(channel)
        used.setdefault((hosts[target], "receiving"), set()).add(channel)
    for host in sorted(all_hosts):
        for way in ("sending", "receiving"):
            if absent := sorted(set(range(channels)) - used.get((host, way), set())):
                listed = ", ".join(map(str, absent[:8]))
                yield f"{host} has no {way} edge on {len(absent)} of {channels} channels ({listed})"
    for channel, source, target in _planned(evidence, hosts):
        if not links.both_ways(channel, source, target):
            yield f"channel {channel} from rank {source} to {target}, which NCCL planned"
    yield from _one_way(evidence, hosts, seen)
    yield from _without_heads(evidence, hosts, between)


def _one_way(evidence: Evidence, hosts: dict[int, str], seen: list[Link]) -> Iterator[str]:
    """Find a missing direction: trees use both, rings one, so a link outside of rings needs its reverse."""
    if len(set(hosts.values())) == len(hosts):
        return  # one rank on each host: PAT goes one way too
    rings = {c: dict(zip(r, [*r[1:], r[0]], strict=True)) for c, r in _rings(evidence, len(hosts)).items()}
    for channel, source, target in seen if rings else ():
        ring = rings.get(channel)
        if ring is None or ring[source] == target:
            continue
        if not evidence.links.both_ways(channel, target, source):
            yield f"channel {channel} from rank {target} to {source}, the way back of another edge"


def _without_heads(evidence: Evidence, hosts: dict[int, str], between: list[Link]) -> Iterator[str]:
    """Find missing edges of NVLS trees: if all GPUs of a host are heads, each has both ways per channel."""
    per_host = len(hosts) // len(set(hosts.values()))
    if "NVLS tree" not in evidence.connected or set(evidence.heads) != {str(per_host)}:
        return
    sent = {(channel, source) for channel, source, _ in between}
    received = {(channel, target) for channel, _, target in between}
    for channel in range(_nvls_channels(evidence) or 0):
        for rank in hosts:
            if (channel, rank) not in sent or (channel, rank) not in received:
                yield f"rank {rank} on channel {channel}, though it is a head of NVLS trees"


def _rings(evidence: Evidence, n: int) -> dict[int, list[int]]:
    """The rings of N ranks that were printed completely (NCCL prints long ones shortened)."""
    return {c: list(ring) for c, ring in evidence.rings.items() if sorted(ring) == list(range(n))}


def _nvls_channels(evidence: Evidence) -> int | None:
    """The number of channels of NVLS, if all processes print the same."""
    return int(next(iter(evidence.nvls_channels))[:4]) if len(evidence.nvls_channels) == 1 else None


def _channels(evidence: Evidence, seen: list[Link]) -> int:
    """The number of channels that must have edges."""
    of_nvls = _nvls_channels(evidence)
    if not evidence.channels:
        return max(channel for channel, _, _ in seen) + 1
    if set(evidence.connected) == {"NVLS tree"} and of_nvls is not None:
        return of_nvls  # connected when first used (NCCL >= 2.22), and nothing but NVLS was
    return int(next(iter(evidence.channels))[:4])


def _planned(evidence: Evidence, hosts: dict[int, str]) -> Iterator[Link]:
    """Edges between hosts of the rings and trees that were printed and connected."""
    n = len(hosts)
    if "all rings" in evidence.connected:
        for channel, ring in _rings(evidence, n).items():
            yield from _between([(channel, ring[i], ring[(i + 1) % n]) for i in range(n)], hosts)
    if "all trees" in evidence.connected:
        for rank, parents in evidence.parents.items():
            trees = [(channel, rank, parent) for channel, parent in enumerate(parents)]
            yield from _between(trees, hosts)
            yield from _between([(channel, parent, rank) for channel, _, parent in trees], hosts)


def _between(links: Iterable[Link], hosts: dict[int, str]) -> Iterator[Link]:
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
    if names or evidence.remote_edges:  # from 2.22 on SHARP alone connects no rank with another host's
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
    if shared := _shared_memory(context):
        return shared
    if together := on_one_machine(context):
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
    if problem := _unread(context):
        return problem
    if want is None:
        return _without_expectation(context)
    net = evidence.net_edges
    if not net and evidence.remote_edges and context.expectation.algorithm == "sharp":
        return passed("transport.as_expected", "every edge between hosts ends at a switch (COLLNET)")
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
    if context.proof is not None and (problem := incomplete(context)):
        return problem
    if context.proof is not None and (inside := inside_a_host(context)):
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
    reason = f"every edge inside {host or 'a host'} goes through its memory, though NVLink joins its GPUs"
    return failed("transport.shared_memory", reason, evidence.first_edge(labels))


def _silent(context: Context) -> str:
    missing = "no `via NET/..` line" if context.evidence.speaks else "no NCCL line at all"
    return f"{missing}: the transport between hosts is not known"


def _unread(context: Context) -> Check | None:
    """Find messages about the transport that cannot be read, or assigned to this table's processes."""
    log = context.log.evidence
    edge = next(iter(log.unread_edges.values()), None)
    if edge is not None or "edges" in log.lost:
        return unknown("transport.unread_edge", "an edge is printed in a form that is not known", edge)
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
    # what is not bound to the table may be of its processes
    for evidence in [context.evidence, *([context.proof.loose] if context.proof is not None else [])]:
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
        fix = "pass --expect-nodes 1 if one host is expected"
        return unknown("transport.single_node", "one host: nothing crossed the fabric", fix=fix)
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
