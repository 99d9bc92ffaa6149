"""Default versions, and combinations that are known to work or to fail. No other module has a version.

Sources are the vendors' own pages; where two of them disagree, the table says so. Ranges are PEP 440
specifiers (`packaging`). Chart versions are those of
https://helm.ngc.nvidia.com/nvidia: with a leading `v` for the GPU Operator, without for the Network Operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

# K3s 1.35 is in the range of every operator version below. The containerd drop-in folder that the NVIDIA
# toolkit writes to came with 1.35.2 (probably: k3s-io/k3s#13680 does not name the first release).
K3S: Final = "v1.35.6+k3s1"
K3S_BASE_URL: Final = "https://github.com/k3s-io/k3s/releases/download"

K3S_SHA256: Final[Mapping[str, Mapping[str, str]]] = {}
"""sha256 of the K3s binary by release and architecture, copied from the release's sha256sum-<arch>.txt.

Empty: no checksum has been compared with the published file yet. A release that is not
here needs `k3s.sha256` or `k3s.checksums_file` in the configuration.
"""

# Set B of the table below: the only pair of operators under support today. The GPU Operator's page does not
# list this Network Operator yet. That is acceptable here: of the Network Operator only the SR-IOV device
# plugin runs, and the NCCL validation proves GPUDirect RDMA.
GPU_OPERATOR: Final = "v26.7.0"
NETWORK_OPERATOR: Final = "26.7.0"
# Editors offer these; any other version may be given.
GPU_OPERATORS: Final = (GPU_OPERATOR, "v26.3.3")
NETWORK_OPERATORS: Final = (NETWORK_OPERATOR, "26.1.2")
NVIDIA_CHARTS: Final = "https://helm.ngc.nvidia.com/nvidia"
NETWORK_OPERATOR_IMAGES: Final = "nvcr.io/nvidia/mellanox"

# v0.8.2 of the operator is the code of v0.8.1; images are published for v0.6.0 to v0.8.0, and the floating
# tag :0.8 does not pin a version.
MPI_OPERATOR_IMAGE: Final = "mpioperator/mpi-operator:0.8.0"

# CoreWeave's public build: CUDA 12.9.1, NCCL 2.28.3, Open MPI, nccl-tests under /opt/nccl_tests/build
# (coreweave/nccl-tests).
NCCL_TESTS_IMAGE: Final = "ghcr.io/coreweave/nccl-tests:12.9.1-devel-ubuntu22.04-nccl2.28.3-1-8b67957"


@dataclass(frozen=True)
class VersionSet:
    """A combination that is known to work, according to the vendors."""

    name: str
    k3s: SpecifierSet
    gpu_operator: SpecifierSet
    network_operator: SpecifierSet
    note: str


_K3S_135 = SpecifierSet(">=1.35.2,<1.36")

SETS: Final = (
    VersionSet(
        "A",
        _K3S_135,
        SpecifierSet(">=26.3.3,<26.4"),
        SpecifierSet(">=26.1.2,<26.2"),
        "in the GPU Operator's own list for GPUDirect RDMA; Network Operator 26.1 is at its end of support",
    ),
    VersionSet(
        "B",
        _K3S_135,
        SpecifierSet(">=26.7,<26.8"),
        SpecifierSet(">=26.7,<26.8"),
        "current on both sides; GPUDirect RDMA is stated by the Network Operator's page only",
    ),
)


@dataclass(frozen=True)
class Rule:
    """A combination that fails or is discouraged; applies when every given range contains its version."""

    level: Literal["error", "warning"]
    why: str
    k3s: SpecifierSet | None = None
    gpu_operator: SpecifierSet | None = None
    network_operator: SpecifierSet | None = None


_NO_ANONYMOUS_READYZ = (
    "does not read the AuthenticationConfiguration that the load balancer's health check of /readyz needs "
    "(k3s-io/k3s#12245). Fix: use v1.31.9, v1.32.5, v1.33.1 or later"
)

RULES: Final = (
    Rule("error", _NO_ANONYMOUS_READYZ, k3s=SpecifierSet("<1.31.9")),
    Rule("error", _NO_ANONYMOUS_READYZ, k3s=SpecifierSet(">=1.32,<1.32.5")),
    Rule("error", _NO_ANONYMOUS_READYZ, k3s=SpecifierSet(">=1.33,<1.33.1")),
    Rule(
        "error",
        "do not support GPUDirect RDMA together (NVIDIA/cloud-native-stack, README of 26.6.0). Fix: use "
        "v26.3.3 with 26.1.2, or v26.7.0 with 26.7.0",
        gpu_operator=SpecifierSet(">=26.3.2,<26.3.3"),
        network_operator=SpecifierSet(">=26.4.0,<26.4.1"),
    ),
    Rule(
        "warning",
        "exposes all ibverbs devices to every GPU pod. Fix: use v26.3.3 or later",
        gpu_operator=SpecifierSet(">=26.3.0,<26.3.3"),
    ),
    Rule("warning", "does not support K3s. Fix: use v26.3.0 or later", gpu_operator=SpecifierSet("<26.3")),
)

KUBERNETES_OF_NETWORK_OPERATOR: Final = (
    (SpecifierSet(">=26.1,<26.5"), SpecifierSet(">=1.31,<1.36")),
    (SpecifierSet(">=26.7,<26.8"), SpecifierSet(">=1.32,<1.37")),
)
KUBERNETES_OF_GPU_OPERATOR: Final = ((SpecifierSet(">=26.7,<26.8"), SpecifierSet(">=1.33,<1.37")),)


@dataclass(frozen=True)
class VersionFinding:
    """A known fact about a combination; `where`: the setting at fault."""

    level: Literal["error", "warning"]
    where: tuple[str, ...]
    text: str


def release(text: str) -> Version | None:
    """`v1.35.6+k3s1` -> 1.35.6; None if the text does not start with a version.

    Build metadata and pre-release are dropped, so that kernel versions (6.8.0-60-generic) compare too.
    """
    found = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return Version(found[1]) if found else None


# Fixed release of k3s-io/k3s#13485: etcd 3.5 of K3s 1.33 keeps replaced servers as members; 3.6 counts them.
_WITHOUT_ZOMBIES = (Version("1.33.7"), 3)


def keeps_removed_members(installed: str, wanted: str) -> bool:
    """Whether an upgrade of servers from K3s `installed` to `wanted` can lose etcd's majority."""
    before, after = release(installed), release(wanted)
    if before is None or after is None or before.release[:2] != (1, 33) or after.release[:2] == (1, 33):
        return False
    build = re.search(r"\+k3s(\d+)", installed)
    return (before, int(build[1]) if build else 0) < _WITHOUT_ZOMBIES


def known_set(k3s: str, gpu_operator: str, network_operator: str) -> VersionSet | None:
    """The known set that the three versions belong to."""
    given = {"k3s": k3s, "gpu_operator": gpu_operator, "network_operator": network_operator}
    return next((s for s in SETS if all(_contains(getattr(s, name), given[name]) for name in given)), None)


def check_combination(
    k3s: str, gpu_operator: str | None, network_operator: str | None
) -> list[VersionFinding]:
    """Findings about a combination; an operator that is not installed is None.

    Errors are combinations known to fail. A combination outside the table is a warning.
    """
    given = {"k3s": k3s, "gpu_operator": gpu_operator, "network_operator": network_operator}
    findings = [*_by_rules(given), *_by_kubernetes(given)]
    if (
        not findings
        and gpu_operator
        and network_operator
        and not known_set(k3s, gpu_operator, network_operator)
    ):
        sets = "; ".join(
            f"{each.name}: {', '.join(f'{_TITLES[n]} {_text(getattr(each, n))}' for n in given)}"
            for each in SETS
        )
        text = f"this combination is not in a known set ({sets}); it is untested"
        findings.append(VersionFinding("warning", ("versions",), text))
    return findings


def k3s_sha256(version: str, arch: str) -> str | None:
    """The known checksum of a K3s binary (arch: amd64 or arm64), or None."""
    return K3S_SHA256.get(version, {}).get(arch)


_TITLES = {"k3s": "K3s", "gpu_operator": "GPU Operator", "network_operator": "Network Operator"}


def _by_rules(given: Mapping[str, str | None]) -> Iterator[VersionFinding]:
    for rule in RULES:
        ranges = {name: wanted for name in given if (wanted := getattr(rule, name)) is not None}
        if all(_contains(wanted, given[name]) for name, wanted in ranges.items()):
            names = " and ".join(f"{_TITLES[name]} {given[name]}" for name in ranges)
            yield VersionFinding(rule.level, (next(iter(ranges)), "version"), f"{names} {rule.why}")


def _by_kubernetes(given: Mapping[str, str | None]) -> Iterator[VersionFinding]:
    tables = {
        "gpu_operator": KUBERNETES_OF_GPU_OPERATOR,
        "network_operator": KUBERNETES_OF_NETWORK_OPERATOR,
    }
    for name, table in tables.items():
        for operator, supported in table:
            if _contains(operator, given[name]) and not _contains(supported, given["k3s"]):
                text = (
                    f"{_TITLES[name]} {given[name]} supports Kubernetes {_text(supported)}, "
                    f"got K3s {given['k3s']}"
                )
                yield VersionFinding("warning", (name, "version"), text)


def _contains(wanted: SpecifierSet, version: str | None) -> bool:
    number = release(version) if version else None
    return number is not None and number in wanted


def _text(wanted: SpecifierSet) -> str:
    """A range as text, the lower bound first: `>=1.31, <1.36`."""
    return ", ".join(sorted(map(str, wanted), reverse=True))
