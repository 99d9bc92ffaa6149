"""Gates on the wire between hosts: which transport, GPUDirect, how many rails, SHARP, multi-node NVLink."""

from __future__ import annotations

from busbar.nccl.checks.context import Context, check
from busbar.nccl.log.evidence import DEVICE_TCP_NAMES, RDMA_NAMES, Evidence, Seen
from busbar.nccl.verdict import Check, Found

ASK = "set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET,ENV"


def first_edge(evidence: Evidence, labels: set[str] | None = None) -> Seen | None:
    """The earliest NET edge (of LABELS, if given)."""
    seen = [s for label, s in evidence.via_seen.items() if label in (labels or evidence.net_edges)]
    return min(seen, key=lambda s: s.line, default=None)


def kind_of(context: Context) -> Found:
    """The transport between hosts, as proved: for the verdict's `transport` field."""
    evidence, hosts = context.evidence, context.nodes or context.expectation.nodes
    names = evidence.network_names()
    if names:
        if all(RDMA_NAMES.match(n) for n in names):
            return "gpudirect-rdma" if evidence.gdrdma else "rdma"
        if names == {"Socket"}:
            return "socket"
        if all(DEVICE_TCP_NAMES.match(n) for n in names):
            return "tcp-device-memory"
        return "mixed" if "Socket" in names or any(RDMA_NAMES.match(n) for n in names) else "unknown"
    if hosts is not None and hosts > 1 and (_mnnvl_edges(evidence) or evidence.mnnvl):
        return "mnnvl"
    if hosts is not None and hosts > 1 and set(evidence.networks) == {"Socket"}:
        return "socket"
    return "single-node" if hosts == 1 else "unknown"


def transport(context: Context) -> Check:
    """Data crosses hosts the way that was asked for, on every edge."""
    name, want, evidence = "transport", context.expectation.transport, context.evidence
    domains = context.domains
    if domains is None:
        return check(name, "unknown", "how many hosts took part is not known")
    if domains == 1:
        return _one_domain(context)
    if want is None:
        return _not_asked(context)
    net = evidence.net_edges
    if want in ("rdma", "gpudirect-rdma"):
        tcp = {k for k in net if evidence.edges[k].name == "Socket"}
        if tcp or (not net and "Socket" in evidence.networks):
            seen = first_edge(evidence, tcp) or evidence.networks.get("Socket")
            return check(name, "fail", "TCP between hosts (NET/Socket): RDMA was asked for", seen)
    if not net:
        why = "no NCCL line at all" if not evidence.info_lines else "no `via NET/..` line"
        return check(name, "unknown", f"{why}: how the hosts talked is not known; {ASK}")
    odd = {k for k in net if not _wanted(evidence.edges[k].name, want, context.expectation.networks)}
    if odd:
        label = sorted(odd)[0]
        return check(
            name,
            "fail",
            f"{sum(net[k] for k in odd)} edges use {label}, asked for {want}",
            first_edge(evidence, odd),
        )
    if evidence.net_directions["send"] != evidence.net_directions["receive"]:
        s, r = evidence.net_directions["send"], evidence.net_directions["receive"]
        return check(name, "unknown", f"{s} sending and {r} receiving edges: lines of the log are missing")
    names = ", ".join(f"NET/{n}" for n in sorted(evidence.network_names()))
    return check(name, "pass", f"{sum(net.values())} edges between hosts, all {names}", first_edge(evidence))


def _wanted(network: str, want: str, allowed: list[str]) -> bool:
    if want != "socket" and allowed and not any(network == a or network.startswith(f"{a}_") for a in allowed):
        return False
    return network == "Socket" if want == "socket" else RDMA_NAMES.match(network) is not None


def _one_domain(context: Context) -> Check:
    evidence, want = context.evidence, context.expectation
    if not context.nodes_given and (want.rails or 0) > 0:
        return check(
            "transport", "unknown",
            "one host only: nothing crossed the fabric of the profile; say --expect-nodes 1 if so meant",
        )  # fmt: skip
    hw = want.hardware
    if hw is not None and hw.nodes > 1:
        return check("transport", "not-required", "one NVLink domain: see mnnvl")
    if evidence.net_edges:
        return check(
            "transport",
            "fail",
            "NET edges on a single host: GPUs do not reach each other",
            first_edge(evidence),
        )
    return check("transport", "not-required", "one host: nothing leaves it")


def _not_asked(context: Context) -> Check:
    found = kind_of(context)
    if found == "unknown":
        return check("transport", "unknown", f"no `via NET/..` line, and no transport was asked for; {ASK}")
    if found in ("socket", "mixed", "tcp-device-memory"):
        return check(
            "transport",
            "fail",
            f"{found} between hosts, and nothing says that it is wanted",
            first_edge(context.evidence),
        )
    return check("transport", "pass", f"{found}, on every edge", first_edge(context.evidence))


def gdrdma(context: Context) -> Check:
    """Every edge between hosts reads and writes GPU memory directly."""
    name, evidence = "gdrdma", context.evidence
    if context.expectation.transport != "gpudirect-rdma":
        return check(
            name,
            "not-required",
            f"transport asked for: {context.expectation.transport or 'none in particular'}",
        )
    if context.domains == 1:
        return check(name, "not-required", "one NVLink domain: no edge between domains")
    net = evidence.net_edges
    if not net:
        return check(name, "unknown", f"no `via NET/..` line: GPUDirect is not proved; {ASK}")
    wires = {k for k, e in evidence.edges.items() if e.kind in ("NET", "COLLNET")}
    without = {k for k in wires if not evidence.edges[k].gdr}
    if without:
        n, all_ = (sum(evidence.via[k] for k in some) for some in (without, wires))
        return check(name, "fail", f"{n} of {all_} edges lack /GDRDMA", first_edge(evidence, without))
    if evidence.ring_gdr_off is not None:
        return check(name, "fail", "NCCL says that its rings do not use GDR", evidence.ring_gdr_off)
    return check(
        name, "pass", f"/GDRDMA on {sum(net.values())} of {sum(net.values())} edges", first_edge(evidence)
    )


def rails(context: Context) -> Check:
    """Each host sends over as many network devices as it has rails."""
    name, want, evidence = "rails", context.expectation, context.evidence
    asked = want.net_devices if want.net_devices is not None else want.rails
    if want.transport == "socket":
        return check(name, "not-required", "TCP: rails of RDMA devices do not apply")
    if context.domains == 1:
        return check(name, "not-required", "one NVLink domain: rails carry nothing")
    if not asked:
        return check(name, "unknown", "how many rails a host has was not said")
    found = {h: len(d) for h, d in evidence.rails.items() if h}
    if not found:
        return check(name, "unknown", f"no `via NET/..` line with its host: rails are not proved; {ASK}")
    listed = {r.host.partition(".")[0] for run in context.judged for r in run.preamble.ranks}
    silent = sorted(listed - {h.partition(".")[0] for h in found})
    if silent:
        return check(name, "unknown", f"no edge of {silent[0]} in the log: its rails are not proved")
    for host, used in sorted(found.items()):
        if used != asked:
            devices = ", ".join(map(str, sorted(evidence.rails[host])))
            return check(
                name, "fail", f"{host} uses {used} rails ({devices}), has {asked}", first_edge(evidence)
            )
    return check(name, "pass", f"{asked} rails on each of {len(found)} hosts", first_edge(evidence))


def sharp(context: Context) -> Check:
    """Reductions are done in the switches, where that was asked for."""
    name, evidence = "sharp", context.evidence
    if context.expectation.algorithm != "sharp":
        return check(name, "not-required", "algorithm asked for: " + context.expectation.algorithm)
    if context.domains == 1:
        return check(name, "not-required", "one NVLink domain")
    fallback = next((s for w, s in evidence.warnings.items() if "Cannot initialize CollNet" in w), None)
    if fallback is not None:
        return check(name, "fail", "NCCL fell back to point-to-point: SHARP was refused", fallback)
    edges = {k for k, e in evidence.edges.items() if e.kind == "COLLNET"}
    if edges:
        return check(name, "pass", "COLLNET edges carry the data", first_edge(evidence, edges))
    chosen = next((s for a, s in evidence.algorithms.items() if "COLLNET" in a.upper()), None)
    if chosen is not None:
        return check(name, "pass", "NCCL chose a CollNet algorithm", chosen)
    return check(name, "unknown", "no COLLNET edge: a loaded plugin or /SHARP behind an HCA proves nothing")


def _mnnvl_edges(evidence: Evidence) -> set[str]:
    return {k for k in evidence.via if k.startswith("P2P/MNNVL")}


def mnnvl(context: Context) -> Check:
    """Hosts of one rack talk over NVLink, where one domain has several hosts."""
    name, evidence, hw = "mnnvl", context.evidence, context.expectation.hardware
    if context.expectation.nodes_per_domain == 1 or hw is None or hw.hosts_per_domain == 1:
        return check(name, "not-required", "an NVLink domain is one host")
    failed = next((s for w, s in evidence.warnings.items() if "MNNVL" in w and "not working" in w), None)
    if failed is not None:
        return check(name, "fail", "MNNVL is there and does not work: IMEX", failed)
    if hw.domains == 1 and evidence.net_edges:
        return check(name, "fail", "NET edges inside the NVLink domain", first_edge(evidence))
    edges = _mnnvl_edges(evidence)
    if edges:
        return check(name, "pass", "P2P/MNNVL edges between hosts", first_edge(evidence, edges))
    if evidence.mnnvl is not None:
        return check(name, "pass", "NCCL counts MNNVL 1", evidence.mnnvl)
    return check(name, "unknown", f"neither P2P/MNNVL edges nor `MNNVL 1`: not proved; {ASK}")
