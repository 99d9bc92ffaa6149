"""Checks of versions, operators and the NCCL validation. Each yields `<path>: <what>. Fix: <what to do>`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from busbar import versions as known
from busbar.config.errors import did_you_mean
from busbar.config.partial import PartialConfig
from busbar.nccl.expected import profiles


def versions(config: PartialConfig) -> Iterator[str]:
    """No combination that is known to fail; chart versions in the form of their repository."""
    for finding in version_findings(config):
        if finding.level == "error":
            yield f"{finding.where}: {finding.text}"
    gpu, network = config.gpu_operator, config.network_operator
    if gpu.repository_url == known.NVIDIA_CHARTS and not gpu.version.startswith("v"):
        yield f"gpu_operator.version: {gpu.version!r} lacks the leading v. Fix: 'v{gpu.version}'"
    if network.repository_url == known.NVIDIA_CHARTS and network.version.startswith("v"):
        plain = network.version.removeprefix("v")
        yield f"network_operator.version: {network.version!r} must not have a leading v. Fix: {plain!r}"


def version_findings(config: PartialConfig) -> list[known.VersionFinding]:
    """What the table of versions knows; an operator that is not installed is left out."""
    gpu, network = config.gpu_operator, config.network_operator
    return known.check_combination(
        config.k3s.version,
        gpu.version if gpu.enabled else None,
        network.version if network.enabled else None,
    )


def resource(config: PartialConfig) -> Iterator[str]:
    """A resource name that the SR-IOV device plugin accepts (pkg/utils ValidResourceName)."""
    operator = config.network_operator
    name = operator.resource.rpartition("/")[2]
    if operator.enabled and not re.fullmatch(r"[A-Za-z0-9_]+", name):
        yield (
            f"network_operator.resource: the SR-IOV device plugin refuses the name {name!r} of "
            f"{operator.resource!r}. Fix: use letters, digits and _ only after the /"
        )


def validation(config: PartialConfig) -> Iterator[str]:
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
    if len(set(wanted.collectives)) < len(wanted.collectives):
        yield f"validation.collectives: {', '.join(wanted.collectives)} has duplicates. Fix: list each once"
    for name, pool in config.pools.items():
        gpus = str(pool.get("gpus", ""))
        slots = wanted.slots_per_worker
        if slots is not None and gpus.isdecimal() and slots > int(gpus):
            yield f"validation.slots_per_worker: {slots} is more than the {gpus} GPUs of pools.{name}"


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
