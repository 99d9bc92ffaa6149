"""Gates on the use of the fabric: GPUDirect RDMA, rails, SHARP, multi-node NVLink."""

from __future__ import annotations

from busbar.judge.nccl.checks.context import FIX, Check, Context, failed, not_required, passed, unknown
from busbar.judge.nccl.checks.hosts import carrying
from busbar.judge.nccl.checks.setup import advice
from busbar.judge.nccl.checks.transport import mnnvl_edges
from busbar.judge.nccl.expected.expectation import Expectation
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.reader import short
from busbar.judge.nccl.log.records import LogLine

POINT_TO_POINT = ("RING", "TREE", "NVLS_TREE", "PAT")  # algorithms between hosts without SHARP


def gdrdma(context: Context) -> Check:
    """Check that every edge between hosts reads and writes GPU memory directly."""
    evidence, want = context.evidence, context.expectation.transport
    if want != "gpudirect-rdma":
        return not_required("gdrdma.not_required", f"expected transport: {want or 'any'}")
    if context.domains == 1:
        return not_required("gdrdma.not_required", "one NVLink domain: no edge between domains")
    net = sum(e.count for e in evidence.net_edges.values())
    if not net:
        return unknown("gdrdma.no_edge", "no `via NET/..` line: GPUDirect RDMA is not proved", fix=FIX)
    remote = {k: e for k, e in evidence.edges.items() if e.transport.kind in ("NET", "COLLNET")}
    without = {k: e for k, e in remote.items() if not e.transport.gdr}
    if without:
        missing, total = (sum(e.count for e in some.values()) for some in (without, remote))
        reason = f"{missing} of {total} edges lack /GDRDMA"
        return failed("gdrdma.missing", reason, evidence.first_edge(set(without)))
    if "0" in evidence.ring_gdr:
        reason = "NCCL says that its rings do not use GDR"
        return failed("gdrdma.ring_without", reason, evidence.ring_gdr["0"])
    contradiction = _without_gdr(evidence)
    if contradiction is not None:
        reason = f"/GDRDMA on {net} of {net} edges, but NCCL says that a device of theirs does not support it"
        return unknown("gdrdma.contradicted", reason, contradiction)
    return passed("gdrdma.all_edges", f"/GDRDMA on {net} of {net} edges", evidence.first_edge())


def _without_gdr(evidence: Evidence) -> LogLine | None:
    """A line that says that NCCL does not use GPUDirect RDMA on a device that carries edges."""
    for value, line in evidence.without_gdr.items():
        host, _, device = value.rpartition(" ")
        used = evidence.rails.get(host, set()) if host else set().union(*evidence.rails.values())
        carry = {name for name, _ in carrying(evidence, host)}
        fused = {d for d, name, _ in evidence.hca_links.get(host, ()) if name in carry}
        if not device or int(device) in used | fused:
            return line
    return None


def rails(context: Context) -> Check:
    """Check that each host sends over as many network devices as it has rails."""
    want, evidence = context.expectation, context.evidence
    expected = want.net_devices if want.net_devices is not None else want.rails
    if want.transport == "socket":
        return not_required("rails.not_required", "TCP: RDMA rails do not apply")
    if context.domains == 1:
        return not_required("rails.not_required", "one NVLink domain: no traffic on the rails")
    if not expected:
        reason = "the number of rails per host is not given"
        return unknown("rails.count_unknown", reason, fix=advice(context))
    found = {h: devices for h, devices in evidence.rails.items() if h}
    if not found:
        reason = "no `via NET/..` line with its host: rails are not proved"
        return unknown("rails.no_edge", reason, fix=FIX)
    silent = sorted(context.hosts - set(map(short, found)))
    if silent:
        return unknown("rails.no_edge", f"no edge of {silent[0]} in the log: its rails are not proved")
    for host, devices in sorted(found.items()):
        members = carrying(evidence, host)
        count = len(members if want.net_devices is None else devices)
        if count != expected and not _of_planes(members, len(devices), want):
            used = f"{count} rails ({', '.join(map(str, sorted(devices)))})"
            if count < expected and not context.is_whole:
                reason = f"{host} shows {used} of {expected}, and parts of the log are missing"
                return unknown("rails.excerpt", reason, evidence.first_edge())
            return failed(
                "rails.wrong_count", f"{host} uses {used}, expected {expected}", evidence.first_edge()
            )
    return passed("rails.all", f"{expected} rails on each of {len(found)} hosts", evidence.first_edge())


def _of_planes(members: list[tuple[str, float | None]], devices: int, want: Expectation) -> bool:
    """True if each rail is a device of several planes, whose rates together are that of the rail."""
    planes = len(members) // devices if devices else 0
    if devices != want.rails or planes * devices != len(members) or want.rate_gbps is None:
        return False
    return all(rate is not None and rate * planes == want.rate_gbps for _, rate in members)


def sharp(context: Context) -> Check:
    """Check that the switches do the reductions, if that is expected."""
    evidence, want = context.evidence, context.expectation.algorithm
    if want != "sharp":
        return not_required("sharp.not_required", f"expected algorithm: {want}")
    if context.domains == 1:
        return not_required("sharp.not_required", "one NVLink domain")
    fallback = next((s for w, s in evidence.warnings.items() if "Cannot initialize CollNet" in w), None)
    if fallback is not None:
        reason = "NCCL fell back to point-to-point: SHARP was denied"
        return failed("sharp.fallback", reason, fallback)
    other = _without_switches(context)
    if other is not None:
        reason = f"NCCL chose {other} for the largest message: the switches do not reduce it"
        return failed("sharp.other_algorithm", reason, evidence.algorithms[other])
    chosen = next((s for a, s in evidence.algorithms.items() if "COLLNET" in a.upper()), None)
    if chosen is not None:
        return passed("sharp.used", "NCCL chose a CollNet algorithm", chosen)
    edges = {k for k, e in evidence.edges.items() if e.transport.kind == "COLLNET"}
    reason = (
        "no `Algo` line says that the switches reduce: a loaded plugin, /SHARP behind an HCA or a COLLNET "
        "edge shows only that they could"
    )
    line = evidence.first_edge(edges) if edges else None
    return unknown("sharp.no_evidence", reason, line, "NCCL_DEBUG_SUBSYS=INIT,NET,ENV,TUNING")


def _without_switches(context: Context) -> str | None:
    """NCCL's choice for the largest all_reduce, if that sends point to point: `AllReduce RING`."""
    sizes = {a: n for a, n in context.evidence.algorithm_sizes.items() if a.startswith("AllReduce ")}
    if "all_reduce" not in context.tables:
        return None
    largest = max(sizes.values(), default=0)
    return next((a for a, n in sizes.items() if n == largest and a.split()[1] in POINT_TO_POINT), None)


def mnnvl(context: Context) -> Check:
    """Check that hosts of one rack communicate over NVLink, if one domain has several hosts."""
    evidence, system = context.evidence, context.expectation.system
    if context.expectation.nodes_per_domain == 1 or system is None or system.hosts_per_domain == 1:
        return not_required("mnnvl.not_required", "an NVLink domain is one host")
    broken = next((s for w, s in evidence.warnings.items() if "MNNVL" in w and "not working" in w), None)
    if broken is not None:
        return failed("mnnvl.not_working", "MNNVL is available and does not work (IMEX)", broken)
    if "0" in evidence.mnnvl:
        reason = "NCCL prints MNNVL 0: a process does not use NVLink between hosts"
        return failed("mnnvl.not_working", reason, evidence.mnnvl["0"])
    if system.domains == 1 and evidence.net_edges:
        reason = "NET edges inside the NVLink domain"
        return failed("mnnvl.net_inside_domain", reason, evidence.first_edge())
    edges = mnnvl_edges(context)
    if edges:
        return passed("mnnvl.used", "P2P/MNNVL edges between hosts", evidence.first_edge(edges))
    if "1" in evidence.mnnvl:
        return passed("mnnvl.used", "NCCL prints MNNVL 1", evidence.mnnvl["1"])
    reason = "neither P2P/MNNVL edges nor `MNNVL 1`: not proved"
    return unknown("mnnvl.no_evidence", reason, fix=FIX)
