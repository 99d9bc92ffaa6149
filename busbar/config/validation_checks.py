"""Checks of the NCCL validation: one that can run, can pass, and asks no less than the hardware can do.

Each yields `<path>: <what>. Fix: <what to do>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from busbar.config.cluster import Cluster
from busbar.config.errors import did_you_mean
from busbar.config.partial import PartialConfig
from busbar.config.pools import Pool
from busbar.nccl.expected import profiles
from busbar.nccl.expected.expectation import Expectation
from busbar.nccl.expected.profiles import Profile
from busbar.nccl.expected.system import is_gpu

# Levels of NCCL_DEBUG at which NCCL prints the transport of each edge.
_EVIDENCE = ("INFO", "TRACE")
_FABRICS = {"infiniband": "infiniband", "ethernet": "roce"}
_OTHER_PROFILE = (
    "Fix: a profile of this hardware (busbar nccl profiles), or none: the pool's numbers are used then"
)
# An expectation or a floor below this part of what is computed is hardly meant.
_FAR_BELOW = 0.5


def values(config: PartialConfig) -> Iterator[str]:
    """A validation that can run and can pass."""
    wanted = config.validation
    if wanted.min_bytes > wanted.max_bytes:
        yield (
            f"validation.min_bytes: {wanted.min_bytes} is more than validation.max_bytes, "
            f"{wanted.max_bytes}. Fix: lower min_bytes or raise max_bytes"
        )
    if wanted.profile is not None:
        try:
            profiles.load(wanted.profile)
        except profiles.UnknownProfileError:
            names = profiles.names()
            hint = did_you_mean(wanted.profile, names) or f"; expected one of: {', '.join(names)}"
            yield f"validation.profile: {wanted.profile!r} is not a profile{hint}"
    for collective in wanted.expected_by_collective:
        if collective not in wanted.collectives:
            yield (
                f"validation.expected_by_collective.{collective}: is not in validation.collectives. "
                "Fix: add it there, or remove it here"
            )
    if (level := wanted.env.get("NCCL_DEBUG")) is not None and level.upper() not in _EVIDENCE:
        yield (
            f"validation.env.NCCL_DEBUG: with {level} NCCL does not print what it uses, and missing evidence "
            "is never a pass. Fix: remove it (busbar sets INFO)"
        )
    if "NCCL_IB_HCA" in wanted.env:
        yield (
            "validation.env.NCCL_IB_HCA: the gate does not see what is set here. Fix: list the HCAs in "
            "validation.hcas"
        )
    if len(set(wanted.collectives)) < len(wanted.collectives):
        yield f"validation.collectives: {', '.join(wanted.collectives)} has duplicates. Fix: list each once"
    for name, pool in config.pools.items():
        gpus = str(pool.get("gpus", ""))
        slots = wanted.slots_per_worker
        if slots is not None and gpus.isdecimal() and slots > int(gpus):
            yield f"validation.slots_per_worker: {slots} is more than the {gpus} GPUs of pools.{name}"


def hardware(cluster: Cluster) -> Iterator[str]:
    """No profile and no value that lets a pool pass without its fabric, or that fits no pool."""
    wanted = cluster.validation
    if not wanted.enabled:
        return
    profile = wanted.system
    if profile is not None and wanted.transport is None and profile.transport == "socket":
        for name, pool in cluster.pools.items():
            yield (
                f"validation.profile: {profile.name} accepts TCP between hosts, and pools.{name} has "
                f"{pool.rails} rails. {_OTHER_PROFILE}; if TCP is meant, set validation.transport: socket"
            )
    unfit = _unfit(cluster, profile)
    if all(unfit.values()):
        yield from (line for lines in unfit.values() for line in lines)


def _unfit(cluster: Cluster, profile: Profile | None) -> dict[str, list[str]]:
    """By pool: what of profile and expectation is of another kind of system than it."""
    return {
        name: [
            *(_other_system(name, pool, profile) if profile else ()),
            *(
                f"{path}: {given:g} GB/s is more than pools.{name} can carry, {ceiling:.4g} GB/s. "
                "Fix: give GB/s (10^9 bytes), not Gb/s"
                for path, given, ceiling, _ in _given(cluster, name, pool)
                if ceiling is not None and given > ceiling
            ),
        ]
        for name, pool in cluster.pools.items()
    }


def _other_system(name: str, pool: Pool, profile: Profile) -> Iterator[str]:
    """What of the profile is another kind of system than the pool."""
    if pool.gpu_model and is_gpu(pool.gpu_model, profile.gpu) is False:
        yield (
            f"validation.profile: {profile.name} is for {profile.gpu}, and pools.{name} has "
            f"{pool.gpu_model}. {_OTHER_PROFILE}"
        )
    if profile.fabric is not None and profile.fabric != _FABRICS[pool.link_layer]:
        yield (
            f"validation.profile: {profile.name} is for {profile.fabric}, and pools.{name}.link_layer is "
            f"{pool.link_layer}. {_OTHER_PROFILE}"
        )


def _given(
    cluster: Cluster, name: str, pool: Pool
) -> Iterator[tuple[str, float, float | None, float | None]]:
    """Path, value, ceiling and computed value of each bandwidth that is given, for one pool. GB/s."""
    wanted = cluster.validation
    workers = sum(cluster.pool_of(worker) == name for worker in cluster.hosts.workers)
    computed = Expectation(
        profile=wanted.profile,
        nodes=workers or None,
        gpus_per_node=wanted.slots_per_worker or pool.gpus,
        gpu=pool.gpu_model,
        rails=pool.rails,
        rate_gbps=pool.rate_gbps,
        transport=wanted.required_transport,
        algorithm=wanted.chosen("algorithm"),
    )
    given = {
        f"validation.expected_by_collective.{k}": (k, v) for k, v in wanted.expected_by_collective.items()
    }
    if wanted.expected_busbw_gbps is not None:
        given["validation.expected_busbw_gbps"] = (wanted.collectives[0], wanted.expected_busbw_gbps)
    for path, (collective, value) in given.items():
        bounds = computed.bounds(collective)
        yield path, value, bounds.ceiling, bounds.expected


def warnings(cluster: Cluster) -> Iterator[str]:
    """What is allowed and lets more pass than is probably meant."""
    wanted = cluster.validation
    if not wanted.enabled:
        return
    if wanted.tolerance > _FAR_BELOW:
        yield (
            f"validation.tolerance: {wanted.tolerance:g} accepts {1 - wanted.tolerance:.0%} of the expected "
            "bandwidth. Fix: 0.1 accepts 90 %"
        )
    profile = wanted.system
    unfit = _unfit(cluster, profile)
    if not all(unfit.values()):
        yield from (line for lines in unfit.values() for line in lines)
    for name, pool in cluster.pools.items():
        for path, given, _, computed in _given(cluster, name, pool):
            if computed is not None and given < _FAR_BELOW * computed:
                yield f"{path}: {given:g} GB/s is far below what pools.{name} should do, {computed:.4g} GB/s"
        if profile is not None and (profile.rails, profile.rate_gbps) != (pool.rails, pool.rate_gbps):
            yield (
                f"validation.profile: {profile.name} has {profile.rails} rails of {profile.rate_gbps:g} "
                f"Gb/s. Those of pools.{name} count, {pool.rails} of {pool.rate_gbps:g} Gb/s"
            )


_EFA = "the default image has no aws-ofi-nccl, and preflight counts no EFA port as a rail"
_NVL72 = "its pods claim no ComputeDomain and get no IMEX channel, so NVLink between hosts is not used"
# Systems whose logs busbar judges, and on which its own job was never tried, with the reason.
_JUDGED_ONLY = {"efa": _EFA, "efa-p4d": _EFA, "gb200-nvl72": _NVL72, "gb200-multirack": _NVL72}


def launch_warnings(config: PartialConfig) -> Iterator[str]:
    """Validations of systems that busbar judges logs of, and does not launch jobs on."""
    if not config.validation.enabled:
        return
    fix = "Fix: set validation.enabled: false, and judge logs of your own jobs: busbar nccl check"
    if reason := _JUDGED_ONLY.get(config.validation.profile or ""):
        yield (
            f"validation.profile: busbar judges logs of {config.validation.profile}, and does not launch "
            f"jobs there: {reason}. {fix}"
        )
        return
    for name, pool in config.pools.items():
        model = str(pool.get("gpu_model") or "")
        if re.search(r"GB[23]00", model, re.IGNORECASE):
            yield (
                f"pools.{name}.gpu_model: busbar judges logs of {model}, and does not launch jobs there: "
                f"{_NVL72}. {fix}"
            )
