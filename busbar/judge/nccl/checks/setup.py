"""Gates on the set-up of NCCL and its use of the fabric.

These are version, network plugin, topology file, HCAs, GPUDirect RDMA, rails, SHARP and multi-node NVLink.
"""

from __future__ import annotations

from busbar.judge.nccl.checks.context import (
    FIX,
    GIVE_SYSTEM,
    Check,
    Context,
    failed,
    not_required,
    passed,
    release,
    unknown,
)
from busbar.judge.nccl.checks.hosts import carrying, networks
from busbar.judge.nccl.checks.transport import mnnvl_edges
from busbar.judge.nccl.expected.expectation import Expectation
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.records import LogLine
from busbar.text import listed

RATE = 0.9  # part of a rail's rate below which an HCA is slow
# `fabric` of an expectation -> how NCCL prints it
LINK_LAYERS = {"infiniband": "IB", "roce": "RoCE"}


def nccl_version(context: Context) -> Check:
    """Check that NCCL is new enough."""
    found, least = context.evidence.versions, context.expectation.min_nccl
    version, line = next(iter(found.items()), (None, None))
    if not least:
        printed = f"the log has {version}" if version else "none was printed"
        return not_required("nccl-version.not_required", f"no minimum version given; {printed}", line)
    if version is None:
        reason = f"no `NCCL version` line, expected at least {least}"
        return unknown("nccl-version.not_printed", reason, fix=FIX)
    if release(version) < release(least):
        reason = f"NCCL {version} is older than the expected {least}"
        return failed("nccl-version.too_old", reason, line, "an image with a newer NCCL")
    return passed("nccl-version.accepted", f"NCCL {version}, expected at least {least}", line)


def plugin(context: Context) -> Check:
    """Check that the expected network plugin carries the data."""
    expected, evidence = context.expectation.require_plugin, context.evidence
    path = next(iter(evidence.plugin_paths.values()), None)
    network = next(iter(evidence.networks.values()), None)
    if not expected:
        at = f" at {path.value}" if path else ""
        printed = f"the log has {', '.join(evidence.networks) or 'none'}{at}"
        return not_required("plugin.not_required", f"no plugin given; {printed}", network)
    found = networks(evidence)
    used = next(iter(found), None)
    if used is None:
        reason = f"neither `Using network` nor an edge: {expected} is not proved"
        return unknown("plugin.not_printed", reason, fix=FIX)
    if used != expected and not used.startswith(f"{expected}_"):
        return failed("plugin.other", f"{used} is used, expected {expected}", found[used])
    reason = f"{expected} is used" + (f", from {path.value}" if path else "; no path printed")
    return passed("plugin.used", reason, path or network)


def topology_file(context: Context) -> Check:
    """Check that NCCL was given the topology file, and could open it."""
    want, evidence = context.expectation, context.evidence
    not_opened = next(iter(evidence.topology_failed.values()), None)
    if not_opened is not None:
        reason = f"NCCL could not open {not_opened.value}: the run went on without it"
        return failed("topology-file.not_opened", reason, not_opened)
    if not want.topology_file:
        printed = f"set: {', '.join(evidence.topology_set)}" if evidence.topology_set else "none was set"
        return not_required("topology-file.not_required", f"no file given; {printed}")
    if not evidence.topology_set:
        if not evidence.environment:
            reason = "no line of NCCL's environment (subsystem ENV) in the log"
            return unknown("topology-file.not_printed", reason, fix=FIX)
        reason = "NCCL_TOPO_FILE is not set, although NCCL printed its environment"
        if not context.is_whole:
            return unknown("topology-file.not_printed", f"{reason}; but parts of the log are missing")
        return failed("topology-file.not_set", reason)
    for value, line in evidence.topology_set.items():
        if value != want.topology_file:
            return failed("topology-file.other", f"{value} is set, expected {want.topology_file}", line)
    hosts = set().union(*evidence.facts.get("NCCL_TOPO_FILE", {}).values())
    if silent := context.silent(hosts):
        reason = f"{silent} does not print NCCL_TOPO_FILE: whether the file is set there is not known"
        return unknown("topology-file.not_printed", reason)
    first = next(iter(evidence.topology_set.values()))
    reason = f"{first.value} is set, and no line says that it could not be opened"
    return passed("topology-file.set", reason, first)


def hcas(context: Context) -> Check:
    """Check on every host that lists its HCAs that NCCL opened those of the rails."""
    want, evidence = context.expectation, context.evidence
    verbs = any(n.startswith(("IB", "gIB", "UCX")) for n in (*evidence.networks, *evidence.network_names))
    counted = want.transport in ("rdma", "gpudirect-rdma") and want.rails and context.domains != 1
    if not want.hcas and not (counted and (verbs or not evidence.networks)):
        reason = "no HCA names given, and the transport is not InfiniBand verbs"
        return not_required("hcas.not_required", reason)
    if not evidence.hcas_of_host:
        reason = "no `NET/IB : Using` line: which HCAs were opened is not known"
        return unknown("hcas.not_printed", reason, fix=FIX)
    line = next(iter(evidence.hcas.values()))
    if problem := _fabric(context) or _slow(context):
        return problem
    for host, names in sorted(evidence.hcas_of_host.items()):
        absent, strange = set(want.hcas) - set(names), want.hcas and set(names) - set(want.hcas)
        few = not want.hcas and len(names) < (want.rails or 0)
        if (few or absent) and not strange and not context.is_whole:
            reason = f"{host} shows {len(names)} HCAs ({', '.join(names)}), and parts of the log are missing"
            return unknown("hcas.not_printed", reason)
        if strange or absent:
            reason = f"{host} uses {', '.join(names)}, expected {', '.join(want.hcas)}"
            return failed("hcas.other", reason, line)
        if few:
            reason = f"{host} opened {len(names)} HCAs ({', '.join(names)}), expected {want.rails}"
            return failed("hcas.too_few", reason, line)
    if silent := context.silent(evidence.hcas_of_host):
        return unknown("hcas.not_printed", f"no `NET/IB : Using` line of {silent}")
    some = next(iter(evidence.hcas_of_host.values()))
    return passed("hcas.opened", f"{len(some)} HCAs on each host: {', '.join(some)}", line)


def _slow(context: Context) -> Check | None:
    """Find an HCA that carries data and, as NCCL prints, is slower than a rail should be."""
    evidence, want, rate = context.evidence, context.expectation, context.expectation.rate_gbps
    planes = {host: _planes(evidence, host, want) for host in sorted(evidence.hca_links)}
    found = [(host, *hca) for host in planes for hca in carrying(evidence, host)]
    low = [(host, name, at) for host, name, at in found if at and at * planes[host] < RATE * (rate or 0)]
    slow = [f"{name} of {host} at {at:g} Gb/s" for host, name, at in low]
    if not slow:
        return None
    reason = f"HCAs are slower than the rails of {rate:g} Gb/s: {listed(slow)}"
    if len(slow) == len(found) and all(check.status == "pass" for check in context.bandwidths.values()):
        fix = "ibstat | grep Rate; if the rails are that slow: --rate-gbps"
        return unknown("hcas.slow", f"{reason}; but the bandwidth is not", fix=fix)
    return failed("hcas.slow", reason)


def _fabric(context: Context) -> Check | None:
    """Find an HCA whose data use another link layer than the others, or than expected."""
    evidence, want = context.evidence, context.expectation.fabric
    line = next(iter(evidence.hcas.values()))
    seen: dict[str, str] = {}  # link layer -> the first HCA of it
    for host, links in sorted(evidence.hca_links.items()):
        devices = evidence.rails.get(host) or evidence.rails.get("")
        used = [link for link in links if not devices or link[0] in (-1, *devices)]
        # a list of all HCAs may include one that carries no data, such as a management port
        certain = bool(devices) or len({layer for _, _, layer in used}) < 2
        for _, name, layer in sorted(used):
            if want and layer != LINK_LAYERS[want] and certain:
                return failed("hcas.other_fabric", f"{host} uses {name} over {layer}, expected {want}", line)
            seen.setdefault(layer, f"{host} uses {name} over {layer}")
        if not certain:
            reason = f"{' and '.join(seen.values())}: which of them carry the data is not known"
            return unknown("hcas.mixed", reason, line)
    if len(seen) > 1:
        return failed("hcas.mixed", f"link layers are mixed: {', '.join(seen.values())}", line)
    return None


POINT_TO_POINT = ("RING", "TREE", "NVLS_TREE", "PAT")  # algorithms between hosts without SHARP


def gdrdma(context: Context) -> Check:
    """Check that every edge between hosts reads and writes GPU memory directly."""
    evidence, want = context.evidence, context.expectation.transport
    if want != "gpudirect-rdma":
        return not_required("gdrdma.not_required", f"expected transport: {want or 'any'}")
    if context.domains == 1:
        return not_required("gdrdma.not_required", "one NVLink domain: no edge between domains")
    remote = evidence.remote_edges
    if not remote:
        return unknown("gdrdma.no_edge", "no `via NET/..` line: GPUDirect RDMA is not proved", fix=FIX)
    without = {k: e for k, e in remote.items() if not e.transport.gdr}
    missing, net = (sum(e.count for e in some.values()) for some in (without, remote))
    if without:
        reason = f"{missing} of {net} edges lack /GDRDMA"
        return failed("gdrdma.missing", reason, evidence.first_edge(set(without)))
    if "0" in evidence.ring_gdr:
        reason = "NCCL says that its rings do not use GDR"
        return failed("gdrdma.ring_without", reason, evidence.ring_gdr["0"])
    if (contradiction := _without_gdr(evidence)) is not None:
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
    if context.tables and context.tables.keys() <= {"sendrecv", "gather", "scatter"}:
        reason = "sendrecv, gather and scatter join few ranks of two hosts, over few rails"
        return not_required("rails.not_required", reason)
    if not expected:
        reason = "the number of rails per host is not given"
        return unknown("rails.count_unknown", reason, fix="" if want.profile else GIVE_SYSTEM)
    found = {h: devices for h, devices in evidence.rails.items() if h}
    if not found:
        return unknown("rails.no_edge", "no `via NET/..` line with its host: rails are not proved", fix=FIX)
    if silent := context.silent(found):
        return unknown("rails.no_edge", f"no edge of {silent} in the log: its rails are not proved")
    for host, devices in sorted(found.items()):
        members = len(carrying(evidence, host)) // _planes(evidence, host, want)
        count = members if want.net_devices is None else len(devices)
        if count != expected:
            used = f"{count} rails ({', '.join(map(str, sorted(devices)))})"
            racks = want.system is not None and want.system.hosts_per_domain > 1
            if count < expected and (racks or not context.is_whole):
                why = "not all hosts join racks" if racks else "parts of the log are missing"
                reason = f"{host} shows {used} of {expected}, and {why}"
                return unknown("rails.excerpt", reason, evidence.first_edge())
            reason = f"{host} uses {used}, expected {expected}"
            return failed("rails.wrong_count", reason, evidence.first_edge())
    return passed("rails.all", f"{expected} rails on each of {len(found)} hosts", evidence.first_edge())


def _planes(evidence: Evidence, host: str, want: Expectation) -> int:
    """The number of planes of each rail of HOST: HCAs that NCCL fuses, and that together have its rate."""
    members, devices, rate = carrying(evidence, host), len(evidence.rails.get(host, ())), want.rate_gbps or 0
    planes = len(members) // devices if devices and devices == want.rails else 1
    fits = planes * devices == len(members) and all(at and at * planes <= rate for _, at in members)
    return planes if fits else 1


def sharp(context: Context) -> Check:
    """Check that the switches do the reductions, if that is expected."""
    evidence, want = context.evidence, context.expectation.algorithm
    if want != "sharp":
        return not_required("sharp.not_required", f"expected algorithm: {want}")
    if context.domains == 1:
        return not_required("sharp.not_required", "one NVLink domain")
    fallback = next((s for w, s in evidence.warnings.items() if "Cannot initialize CollNet" in w), None)
    if fallback is not None:
        return failed("sharp.fallback", "NCCL fell back to point-to-point: SHARP was denied", fallback)
    if (other := _without_switches(context)) is not None:
        reason = f"NCCL chose {other} for the largest message: the switches do not reduce it"
        return failed("sharp.other_algorithm", reason, evidence.algorithms[other])
    # between hosts NVLS is NVLink inside and CollNet between them (NCCL src/enqueue.cc)
    used = (s for a, s in evidence.algorithms.items() if "COLLNET" in a.upper() or a.endswith(" NVLS"))
    chosen = next(used, None)
    if chosen is not None:
        return passed("sharp.used", "NCCL chose a CollNet algorithm", chosen)
    could = "a loaded plugin, /SHARP behind an HCA or a COLLNET edge shows only that they could"
    line = evidence.first_edge(evidence.remote_edges.keys() - evidence.net_edges.keys())
    reason = f"no `Algo` line says that the switches reduce: {could}"
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
    warned = (s for w, s in evidence.warnings.items() if "MNNVL" in w and "not working" in w)
    broken = next(warned, evidence.mnnvl.get("0"))
    if broken is not None:
        return failed("mnnvl.not_working", "a process does not use NVLink between hosts", broken)
    if system.domains == 1 and evidence.net_edges:
        return failed("mnnvl.net_inside_domain", "NET edges inside the NVLink domain", evidence.first_edge())
    used = evidence.first_edge(mnnvl_edges(context)) or evidence.mnnvl.get("1")
    if used is not None:
        return passed("mnnvl.used", "NCCL uses NVLink between hosts", used)
    return unknown("mnnvl.no_evidence", "neither P2P/MNNVL edges nor `MNNVL 1`: not proved", fix=FIX)
