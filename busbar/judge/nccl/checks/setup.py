"""Gates on the set-up of NCCL: its version, network plugin, topology file and HCAs."""

from __future__ import annotations

from busbar.judge.nccl.checks.context import (
    FIX,
    Check,
    Context,
    failed,
    not_required,
    passed,
    release,
    unknown,
)
from busbar.judge.nccl.checks.hosts import carrying
from busbar.judge.nccl.expected import profiles
from busbar.judge.nccl.expected.profiles import Profile
from busbar.judge.nccl.expected.system import is_gpu
from busbar.judge.nccl.log.reader import short
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
        return failed("nccl-version.too_old", reason, line)
    return passed("nccl-version.accepted", f"NCCL {version}, expected at least {least}", line)


def plugin(context: Context) -> Check:
    """Check that the expected network plugin, loaded from the expected path, carries the data."""
    want, evidence = context.expectation, context.evidence
    path = next(iter(evidence.plugin_paths.values()), None)
    network = next(iter(evidence.networks.values()), None)
    on_edges = {counts.transport.name: counts.first for counts in evidence.net_edges.values()}
    networks = {**evidence.networks, **on_edges}
    if not want.require_plugin and not want.plugin_path:
        at = f" at {path.value}" if path else ""
        printed = f"the log has {', '.join(evidence.networks) or 'none'}{at}"
        return not_required("plugin.not_required", f"no plugin given; {printed}", network)
    expected = want.require_plugin
    if expected:
        used = next(iter(networks), None)
        if used is None:
            reason = f"neither `Using network` nor an edge: {expected} is not proved"
            return unknown("plugin.not_printed", reason, fix=FIX)
        if used != expected and not used.startswith(f"{expected}_"):
            return failed("plugin.other", f"{used} is used, expected {expected}", networks[used])
    if want.plugin_path:
        if path is None:
            return unknown("plugin.path_not_printed", "no `Plugin Path` line: the plugin's path is not known")
        if not path.value.startswith(want.plugin_path):
            reason = f"plugin from {path.value}, expected {want.plugin_path}"
            return failed("plugin.other_path", reason, path)
    reason = f"{expected or 'plugin'} is used" + (f", from {path.value}" if path else "; no path printed")
    return passed("plugin.used", reason, path or network)


def topology_file(context: Context) -> Check:
    """Check that NCCL was given the topology file, and could open it."""
    want, evidence = context.expectation, context.evidence
    not_opened = next(iter(evidence.topology_failed.values()), None)
    if not_opened is not None:
        reason = f"NCCL could not open {not_opened.value}: the run went on without it"
        return failed("topology-file.not_opened", reason, not_opened)
    if not want.topology_file and not want.require_topology_file:
        printed = f"set: {', '.join(evidence.topology_set)}" if evidence.topology_set else "none was set"
        return not_required("topology-file.not_required", f"no file given; {printed}")
    if not evidence.topology_set:
        if not evidence.environment:
            reason = "no line of NCCL's environment (subsystem ENV) in the log"
            return unknown("topology-file.not_printed", reason, fix=FIX)
        return failed(
            "topology-file.not_set", "NCCL_TOPO_FILE is not set, although NCCL printed its environment"
        )
    for value, line in evidence.topology_set.items():
        if want.topology_file and value != want.topology_file:
            reason = f"{value} is set, expected {want.topology_file}"
            return failed("topology-file.other", reason, line)
    hosts = set().union(*evidence.facts.get("NCCL_TOPO_FILE", {}).values())
    silent = sorted(context.hosts - set(map(short, hosts)))
    if silent and "" not in hosts:
        reason = f"{silent[0]} does not print NCCL_TOPO_FILE: whether the file is set there is not known"
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
        return not_required(
            "hcas.not_required", "no HCA names given, and the transport is not InfiniBand verbs"
        )
    if not evidence.hcas_of_host:
        reason = "no `NET/IB : Using` line: which HCAs were opened is not known"
        return unknown("hcas.not_printed", reason, fix=FIX)
    line = next(iter(evidence.hcas.values()))
    problem = _fabric(context) or _slow(context)
    if problem:
        return problem
    for host, names in sorted(evidence.hcas_of_host.items()):
        absent = bool(set(want.hcas or ()) - set(names))
        strange = bool(want.hcas) and bool(set(names) - set(want.hcas))
        few = not want.hcas and len(names) < (want.rails or 0)
        if (few or absent) and not strange and not context.is_whole:
            reason = f"{host} shows {len(names)} HCAs ({', '.join(names)}), and parts of the log are missing"
            return unknown("hcas.not_printed", reason)
        if strange or absent:
            reason = f"{host} uses {', '.join(names)}, expected {', '.join(want.hcas or ())}"
            return failed("hcas.other", reason, line)
        if few:
            reason = f"{host} opened {len(names)} HCAs ({', '.join(names)}), expected {want.rails}"
            return failed("hcas.too_few", reason, line)
    silent = sorted(context.hosts - set(map(short, evidence.hcas_of_host)))
    if silent and "" not in evidence.hcas_of_host:
        return unknown("hcas.not_printed", f"no `NET/IB : Using` line of {silent[0]}")
    some = next(iter(evidence.hcas_of_host.values()))
    return passed("hcas.opened", f"{len(some)} HCAs on each host: {', '.join(some)}", line)


def _slow(context: Context) -> Check | None:
    """Find an HCA that carries data and, as NCCL prints, is slower than a rail should be."""
    evidence, rate = context.evidence, context.expectation.rate_gbps
    found = [(host, *hca) for host in sorted(evidence.hca_links) for hca in carrying(evidence, host)]
    slow = [f"{name} of {host} at {at:g} Gb/s" for host, name, at in found if at and at < RATE * (rate or 0)]
    if not slow:
        return None
    reason = f"HCAs are slower than the rails of {rate:g} Gb/s: {listed(slow)}"
    if len(slow) == len(found) and all(f.status == "pass" for f in context.findings.values()):
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
                reason = f"{host} uses {name} over {layer}, expected {want}"
                return failed("hcas.other_fabric", reason, line)
            seen.setdefault(layer, f"{host} uses {name} over {layer}")
        if not certain:
            reason = f"{' and '.join(seen.values())}: which of them carry the data is not known"
            return unknown("hcas.mixed", reason, line)
    if len(seen) > 1:
        return failed("hcas.mixed", f"link layers are mixed: {', '.join(seen.values())}", line)
    return None


def advice(context: Context) -> str:
    """The command `busbar nccl check LOG --profile NAME --expect-nodes N`; "" if a profile was given."""
    if context.expectation.profile:
        return ""
    found = fitting(context)
    if not found:
        return "pass --profile (busbar nccl profiles lists them), or --rails and --rate-gbps"
    others = f" (also fits: {', '.join(found[1:3])})" if found[1:] else ""
    return f"busbar nccl check LOG --profile {found[0]} --expect-nodes {context.nodes}{others}"


def fitting(context: Context) -> list[str]:
    """Profiles whose GPUs, network and HCAs the log shows, the nearest first; none without a device list."""
    if not context.nodes or not context.ranks:
        return []
    known = [p for name in profiles.names() if _fits(p := profiles.load(name), context)]
    used = context.expectation.algorithm

    def distance(profile: Profile) -> tuple[object, ...]:
        asks = (profile.topology_file, profile.require_plugin, profile.min_nccl, *profile.host_paths)
        others = abs(profile.workers - (context.nodes or 0)) if profile.nodes_per_domain > 1 else 0
        return profile.algorithm != used, sum(map(bool, asks)), others, profile.name

    return [profile.name for profile in sorted(known, key=distance)]


def _fits(profile: Profile, context: Context) -> bool:
    evidence = context.evidence
    per_node = (context.ranks or 0) // (context.nodes or 1)
    gpus = {r.gpu for r in context.listed}
    networks = {*evidence.network_names, *evidence.networks}
    layers = {layer for links in evidence.hca_links.values() for _, _, layer in links}
    devices = {len(found) for host, found in evidence.rails.items() if host}
    return (
        all(profile.gpu and is_gpu(gpu, profile.gpu) for gpu in gpus)
        and per_node == profile.gpus_per_node
        and all(any(n == a or n.startswith(f"{a}_") for a in profile.networks) for n in networks)
        and devices <= {profile.net_devices or profile.rails}
        and (len(layers) != 1 or not profile.fabric or LINK_LAYERS[profile.fabric] in layers)
        and (profile.algorithm != "sharp" or any(k.startswith("COLLNET") for k in evidence.edges))
    )
