"""The reference system's own checks of set-up: NCCL version, plugin and its path, topology file, HCAs."""

from __future__ import annotations

import re

from busbar.nccl.checks.context import Context, check
from busbar.nccl.verdict import Check

ASK = "set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET,ENV"


def release(version: str) -> tuple[int, ...]:
    """2.19.3+cuda12.2 -> (2, 19, 3)."""
    return tuple(int(n) for n in re.findall(r"\d+", version.partition("+")[0])[:3])


def nccl_version(context: Context) -> Check:
    """One NCCL on all hosts, new enough."""
    name, found, least = "nccl-version", context.evidence.versions, context.expectation.min_nccl
    if len(found) > 1:
        odd = list(found.values())[-1]
        return check(name, "fail", f"hosts run different NCCL: {', '.join(found)}", odd)
    if not least:
        what = f"{next(iter(found))} was found" if found else "none was printed"
        return check(
            name, "not-required", f"no version was asked for; {what}", next(iter(found.values()), None)
        )
    if not found:
        return check(name, "unknown", f"no `NCCL version` line, at least {least} was asked for; {ASK}")
    version, seen = next(iter(found.items()))
    if release(version) < release(least):
        return check(name, "fail", f"NCCL {version} is older than {least}", seen)
    return check(name, "pass", f"NCCL {version}, at least {least} was asked for", seen)


def plugin(context: Context) -> Check:
    """The network plugin that was asked for carries the data, loaded from where it should be."""
    name, want, evidence = "plugin", context.expectation, context.evidence
    paths = list(evidence.plugin_paths.values())
    path = paths[0].value if paths else None
    if not want.require_plugin and not want.plugin_path:
        what = f"found: {', '.join(evidence.networks) or 'none'}" + (f" at {path}" if path else "")
        return check(
            name,
            "not-required",
            f"no plugin was asked for; {what}",
            next(iter(evidence.networks.values()), None),
        )
    asked = want.require_plugin
    if asked:
        used = set(evidence.networks) | evidence.network_names()
        if not used:
            return check(
                name, "unknown", f"neither `Using network` nor an edge: {asked} is not proved; {ASK}"
            )
        odd = sorted(n for n in used if n != asked and not n.startswith(f"{asked}_"))
        if odd:
            return check(
                name, "fail", f"{odd[0]} is used, {asked} was asked for", evidence.networks.get(odd[0])
            )
    if want.plugin_path:
        if not paths:
            return check(name, "unknown", "no `Plugin Path` line: where the plugin is from is not known")
        wrong = next((s for s in paths if not s.value.startswith(want.plugin_path)), None)
        if wrong is not None:
            return check(name, "fail", f"plugin from {wrong.value}, {want.plugin_path} was asked for", wrong)
    seen = paths[0] if paths else next(iter(evidence.networks.values()), None)
    return check(
        name,
        "pass",
        f"{asked or 'plugin'} is used" + (f", from {path}" if path else "; no path printed"),
        seen,
    )


def topology_file(context: Context) -> Check:
    """NCCL was given the topology file, and could open it."""
    name, want, evidence = "topology-file", context.expectation, context.evidence
    failed = next(iter(evidence.topology_failed.values()), None)
    if not want.topology_file and not want.require_topology_file:
        if failed is not None:
            return check(name, "fail", "a topology file was set and could not be opened", failed)
        what = f"set: {', '.join(evidence.topology_set)}" if evidence.topology_set else "none was set"
        return check(name, "not-required", f"no file was asked for; {what}")
    if failed is not None:
        return check(name, "fail", f"NCCL could not open {failed.value}: the run went on without it", failed)
    if not evidence.topology_set:
        if not evidence.environment:
            return check(name, "unknown", "no line of NCCL's environment (class ENV) in the log; " + ASK)
        return check(name, "fail", "NCCL_TOPO_FILE is not set, although NCCL printed its environment")
    wrong = next(
        (s for f, s in evidence.topology_set.items() if want.topology_file and f != want.topology_file), None
    )
    if wrong is not None:
        return check(name, "fail", f"{wrong.value} is set, {want.topology_file} was asked for", wrong)
    seen = next(iter(evidence.topology_set.values()))
    return check(name, "pass", f"{seen.value} is set, and no line says that it could not be opened", seen)


def hcas(context: Context) -> Check:
    """NCCL opened the HCAs that carry the rails, on every host that says so."""
    name, want, evidence = "hcas", context.expectation, context.evidence
    infiniband = any(
        n.startswith(("IB", "gIB", "UCX")) for n in (*evidence.networks, *evidence.network_names())
    )
    counted = want.transport in ("rdma", "gpudirect-rdma") and (want.rails or 0) > 0 and context.domains != 1
    if not want.hcas and not (counted and (infiniband or not evidence.networks)):
        return check(
            name, "not-required", "no HCA was asked for by name, and the transport is not InfiniBand verbs"
        )
    if not evidence.hcas_of_host:
        return check(name, "unknown", f"no `NET/IB : Using` line: which HCAs were opened is not known; {ASK}")
    seen = next(iter(evidence.hcas.values()))
    for host, names in sorted(evidence.hcas_of_host.items()):
        if want.hcas and set(names) != set(want.hcas):
            return check(
                name, "fail", f"{host} uses {', '.join(names)}; asked for {', '.join(want.hcas)}", seen
            )
        if not want.hcas and len(names) < (want.rails or 0):
            return check(
                name,
                "fail",
                f"{host} opened {len(names)} HCAs ({', '.join(names)}), has {want.rails} rails",
                seen,
            )
    hosts = {r.host.partition(".")[0] for run in context.judged for r in run.preamble.ranks}
    silent = sorted(hosts - {h.partition(".")[0] for h in evidence.hcas_of_host})
    if silent and "" not in evidence.hcas_of_host:
        return check(name, "unknown", f"no `NET/IB : Using` line of {silent[0]}")
    some = next(iter(evidence.hcas_of_host.values()))
    return check(name, "pass", f"{len(some)} HCAs on each host: {', '.join(some)}", seen)
