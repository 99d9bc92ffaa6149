"""Checks that the printed edges are all edges of the collective: each channel, host and direction.

NCCL connects the channels of rings and trees one by one (src/transport/generic.cc): each leaves and enters
every host. It prints how many there are, the ring of each channel and each rank's parent in its tree.
"""

from __future__ import annotations

from collections.abc import Iterator

from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.checks.result import Check, unknown
from busbar.judge.nccl.log.binding import short
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.links import pack, unpack
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
    for host, _, rank in sorted(evidence.links.ends):
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
    for host, pid, rank in sorted(evidence.links.ends):
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
    speaking = {hosts[rank] for _, _, rank in evidence.links.ends}
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
