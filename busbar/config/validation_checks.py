"""Checks of the NCCL validation: it can run, it can pass, and it requires what the hardware can do.

Each yields findings.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from busbar.config.cluster import Cluster
from busbar.config.errors import Finding, KeyPath, did_you_mean, path_of
from busbar.config.hardware import AnyCluster, Hardware
from busbar.config.kubernetes_values import floating, is_floating
from busbar.config.partial import PartialCluster
from busbar.config.validation import NcclPoolSettings
from busbar.judge.nccl.expected import profiles
from busbar.judge.nccl.expected.system import is_gpu, models
from busbar.text import counted

# Levels of NCCL_DEBUG at which NCCL prints the transport of each edge.
_EVIDENCE = ("INFO", "TRACE")
_FABRICS = {"infiniband": "infiniband", "ethernet": "roce"}
_OTHER_PROFILE = (
    "a profile of this hardware (busbar nccl profiles), or none: the pool's numbers are used then"
)
# From here on a name is a misspelt NCCL.
_MISSPELT = 0.7
# Settings that keep NCCL from a transport that it must prove: variable -> values, and what NCCL uses then.
_KEEPS_FROM_RDMA = {"NCCL_IB_DISABLE": ({"1"}, "TCP"), "NCCL_NET": ({"socket"}, "TCP")}
_KEEPS_FROM_GPUDIRECT = {"NCCL_NET_GDR_LEVEL": ({"0", "loc"}, "RDMA from the host's memory")}
# With smaller ones a fabric does not reach its bandwidth.
_LARGE_BYTES = 1 << 30
# An expectation or a floor below this part of what is computed is hardly meant.
_FAR_BELOW = 0.5


def values(config: PartialCluster) -> Iterator[Finding]:
    """Check that the validation can run and can pass."""
    wanted = config.validation
    if wanted.min_bytes > wanted.max_bytes:
        text = f"{wanted.min_bytes} is more than validation.max_bytes, {wanted.max_bytes}"
        yield Finding(("validation", "min_bytes"), text, "lower min_bytes or raise max_bytes")
    yield from _of_hardware(("validation",), wanted, wanted.collectives)
    for name, own in config.pool_validations.items():
        yield from _of_hardware(("pools", name, "validation"), own, wanted.collectives)
    if len(set(wanted.collectives)) < len(wanted.collectives):
        yield Finding(
            ("validation", "collectives"), f"{', '.join(wanted.collectives)} has duplicates", "list each once"
        )
    for name, pool in config.pools.items():
        gpus = str(pool.get("gpus", ""))
        slots = wanted.slots_per_worker
        if slots is not None and gpus.isdecimal() and slots > int(gpus):
            yield Finding(
                ("validation", "slots_per_worker"),
                f"{slots} is more than the {counted(int(gpus), 'GPU')} of pools.{name}",
            )


def _of_hardware(where: KeyPath, wanted: NcclPoolSettings, collectives: Collection[str]) -> Iterator[Finding]:
    """Errors in the values of one section, `validation` or that of a pool."""
    if wanted.profile is not None:
        try:
            profiles.load(wanted.profile)
        except profiles.UnknownProfileError:
            names = profiles.names()
            hint = did_you_mean(wanted.profile, names) or f"; expected one of: {', '.join(names)}"
            yield Finding((*where, "profile"), f"is not a profile{hint}", found=repr(wanted.profile))
    for collective in wanted.expected_by_collective:
        if collective not in collectives:
            text = "is not in validation.collectives"
            fix = "add it there, or remove it here"
            yield Finding((*where, "expected_by_collective", collective), text, fix)
    if (level := wanted.env.get("NCCL_DEBUG")) is not None and level.upper() not in _EVIDENCE:
        text = f"with {level} NCCL does not print what it uses, and missing evidence is never a pass"
        yield Finding((*where, "env", "NCCL_DEBUG"), text, "remove it (busbar sets INFO)")
    for name in wanted.env:
        prefix, _, rest = name.partition("_")
        if prefix != "NCCL" and rest and did_you_mean(prefix, ["NCCL"], cutoff=_MISSPELT):
            yield Finding((*where, "env", name), "no library reads it", f"NCCL_{rest}")
    if "NCCL_IB_HCA" in wanted.env:
        text = "the gate does not see what is set here"
        yield Finding((*where, "env", "NCCL_IB_HCA"), text, f"list the HCAs in {path_of(where)}.hcas")


def hardware(cluster: AnyCluster) -> Iterator[Finding]:
    """Refuse a profile or value that lets a pool pass without its fabric, or that fits no pool."""
    if not cluster.validation.enabled:
        return
    for name, pool in cluster.pools.items():
        wanted = cluster.validation_of(name)
        if wanted.system and wanted.transport is None and wanted.system.transport == "socket":
            where = _path(cluster, name, "profile")
            text = f"{wanted.system.name} accepts TCP between hosts, and pools.{name} has {pool.rails} rails"
            fix = f"{_OTHER_PROFILE}; if TCP is meant, set {path_of(where[:-1])}.transport: socket"
            yield Finding(where, text, fix)
        yield from _contradictions(cluster, name)
    yield from _unfit(cluster)[0]


def _contradictions(cluster: AnyCluster, name: str) -> Iterator[Finding]:
    """Variables of NCCL with which the measurement cannot pass."""
    wanted = cluster.validation_of(name)
    required = wanted.required_transport
    keeps = {**_KEEPS_FROM_RDMA, **(_KEEPS_FROM_GPUDIRECT if required == "gpudirect-rdma" else {})}
    for variable, (values, used) in keeps.items():
        value = wanted.env.get(variable, "")
        if required != "socket" and value.lower() in values:
            text = f"with {value} NCCL uses {used}, and {required} must be proved"
            fix = "remove it, or set validation.transport"
            yield Finding((*_path(cluster, name, "env"), variable), text, fix)


def _is_own(cluster: AnyCluster, pool: str, key: str) -> bool:
    own = cluster.pools[pool].validation
    return own is not None and key in own.model_fields_set


def _path(cluster: AnyCluster, pool: str, key: str) -> KeyPath:
    """The path of the setting that a pool uses: its own, else that of `validation`."""
    return ("pools", pool, "validation", key) if _is_own(cluster, pool, key) else ("validation", key)


def _unfit(cluster: AnyCluster) -> tuple[list[Finding], list[Finding]]:
    """Errors and warnings about profiles and expected values that do not fit the hardware of a pool.

    A pool's own value must fit the pool; one of `validation` must fit at least one of the pools that use it.
    """
    errors: list[Finding] = []
    warned: list[Finding] = []
    found = {name: list(_of_other_system(cluster, name, pool)) for name, pool in cluster.pools.items()}
    for each in (each for of_pool in found.values() for each in of_pool):
        is_own, key = each.path[0] == "pools", _key_of(each)
        users = [other for other in found if not _is_own(cluster, other, key)]
        fits_none = all(key in map(_key_of, found[other]) for other in users)
        (errors if is_own or fits_none else warned).append(each)
    return errors, warned


def _key_of(finding: Finding) -> str:
    """The key, in `validation` or in a pool's section, of the value that a finding is about."""
    return str(finding.path[3 if finding.path[0] == "pools" else 1])


def _of_other_system(cluster: AnyCluster, name: str, pool: Hardware) -> Iterator[Finding]:
    """Findings about a profile or expected values that do not fit the hardware of a pool."""
    profile, where = cluster.validation_of(name).system, _path(cluster, name, "profile")
    if profile and pool.gpu_model and is_gpu(pool.gpu_model, profile.gpu) is False:
        text = f"{profile.name} is for {profile.gpu}, and pools.{name} has {pool.gpu_model}"
        yield Finding(where, text, _OTHER_PROFILE)
    if profile and profile.fabric is not None and profile.fabric != _FABRICS[pool.link_layer]:
        text = f"{profile.name} is for {profile.fabric}, and pools.{name}.link_layer is {pool.link_layer}"
        yield Finding(where, text, _OTHER_PROFILE)
    for path, given, ceiling, _ in _given(cluster, name, pool):
        if ceiling is not None and given > ceiling:
            text = f"{given:g} GB/s is more than pools.{name} can carry, {ceiling:.4g} GB/s"
            yield Finding(path, text, "give GB/s (10^9 bytes), not Gb/s")


def _given(
    cluster: AnyCluster, name: str, pool: Hardware
) -> Iterator[tuple[KeyPath, float, float | None, float | None]]:
    """Path, value, ceiling and computed value of each bandwidth that is given, for one pool. GB/s."""
    wanted = cluster.validation_of(name)
    by_collective = _path(cluster, name, "expected_by_collective")
    given = {(*by_collective, key): (key, value) for key, value in wanted.expected_by_collective.items()}
    if wanted.expected_busbw_gbps is not None:
        path = _path(cluster, name, "expected_busbw_gbps")
        given[path] = (wanted.collectives[0], wanted.expected_busbw_gbps)
    if not given:
        return
    computed = pool.expectation(wanted, len(cluster.workers_of(name)) or None)
    for path, (collective, value) in given.items():
        bounds = computed.bounds(collective)
        yield path, value, bounds.ceiling, bounds.expected


def warnings(cluster: AnyCluster) -> list[Finding]:
    """Warnings, each once, about settings that pass more results than probably intended."""
    if not cluster.validation.enabled:
        return []
    found = _unfit(cluster)[1]
    for name, pool in cluster.pools.items():
        found += _pool_warnings(cluster, name, pool)
    return list(dict.fromkeys(found))


def _pool_warnings(cluster: AnyCluster, name: str, pool: Hardware) -> Iterator[Finding]:
    wanted = cluster.validation_of(name)
    if wanted.tolerance > _FAR_BELOW:
        text = f"{wanted.tolerance:g} accepts {1 - wanted.tolerance:.0%} of the expected bandwidth"
        yield Finding(_path(cluster, name, "tolerance"), text, "0.1 accepts 90 %")
    if wanted.transport == "socket" and wanted.expected_busbw_gbps is None:
        text = "no bandwidth can be computed for sockets"
        yield Finding(_path(cluster, name, "transport"), text, "set expected_busbw_gbps")
    for path, given, _, computed in _given(cluster, name, pool):
        if computed is not None and given < _FAR_BELOW * computed:
            yield Finding(
                path, f"{given:g} GB/s is far below what pools.{name} should do, {computed:.4g} GB/s"
            )
    if wanted.required_transport != "socket" and wanted.chosen("max_bytes") < _LARGE_BYTES:
        text = f"{wanted.chosen('max_bytes')} bytes are too few for the bandwidth of a fabric"
        yield Finding(("validation", "max_bytes"), text, "8G")
    profile = wanted.system
    numbers = (pool.gpus, pool.rails, pool.rate_gbps)
    if profile and (profile.gpus_per_node, profile.rails, profile.rate_gbps) != numbers:
        yield Finding(
            _path(cluster, name, "profile"),
            f"{profile.name} has {counted(profile.gpus_per_node, 'GPU')} and "
            f"{counted(profile.rails, 'rail')} of {profile.rate_gbps:g} Gb/s. Those of pools.{name} count, "
            f"{pool.gpus} and {pool.rails} of {pool.rate_gbps:g} Gb/s",
        )


_EFA = "the default image has no aws-ofi-nccl, and preflight counts no EFA port as a rail"
_NVL72 = "its pods claim no ComputeDomain and get no IMEX channel, so NVLink between hosts is not used"
# Systems whose logs busbar judges, but where it does not launch jobs, with the reason.
_JUDGED_ONLY = {"efa": _EFA, "efa-p4d": _EFA, "gb200-nvl72": _NVL72, "gb200-multirack": _NVL72}


_LOOK_ALIKE = str.maketrans("OI", "01")


def launch_warnings(cluster: Cluster) -> list[Finding]:
    """Warnings, each once, about floating images and systems on which no job was ever launched."""
    if not cluster.validation.enabled:
        return []
    found = [_launch_warning(cluster, name, pool) for name, pool in cluster.pools.items()]
    for name in cluster.pools:
        if is_floating(image := cluster.validation_of(name).image):
            found.append(floating(_path(cluster, name, "image"), image))
    return list(dict.fromkeys(filter(None, found)))


def _launch_warning(cluster: Cluster, name: str, pool: Hardware) -> Finding | None:
    fix = "set validation.enabled: false, and judge logs of your own jobs: busbar nccl check"
    profile = cluster.validation_of(name).profile or ""
    if reason := _JUDGED_ONLY.get(profile):
        text = f"busbar judges logs of {profile}, and does not launch jobs there: {reason}"
        return Finding(_path(cluster, name, "profile"), text, fix)
    model = pool.gpu_model or ""
    if not models(model) and (meant := models(model.upper().translate(_LOOK_ALIKE))):
        text = f"has a letter for a digit; did you mean {', '.join(meant)}?"
        return Finding(("pools", name, "gpu_model"), text, found=repr(model))
    if re.search(r"GB[23]00", model, re.IGNORECASE):
        text = f"busbar judges logs of {model}, and does not launch jobs there: {_NVL72}"
        return Finding(("pools", name, "gpu_model"), text, fix)
    return None
