"""The transport between hosts, and the gate on it."""

from __future__ import annotations

import re
from typing import Literal

from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.checks.hosts import on_one_machine
from busbar.judge.nccl.checks.links import incomplete, inside_a_host
from busbar.judge.nccl.checks.result import Check, failed, not_required, passed, unknown
from busbar.judge.nccl.expected.system import VARIANT
from busbar.judge.nccl.log.edges import EdgeCounts
from busbar.judge.nccl.log.evidence import Evidence

ProvenTransport = Literal[
    "gpudirect-rdma", "rdma", "socket", "tcp-device-memory", "mnnvl", "single-node", "mixed", "unknown"
]

FIX = "set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET,ENV and run again"
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
