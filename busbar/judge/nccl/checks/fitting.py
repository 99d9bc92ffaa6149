"""Suggests the profile that fits a log, if none was given."""

from __future__ import annotations

from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.checks.setup import LINK_LAYERS
from busbar.judge.nccl.expected import profiles
from busbar.judge.nccl.expected.profiles import Profile
from busbar.judge.nccl.expected.system import is_gpu


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
