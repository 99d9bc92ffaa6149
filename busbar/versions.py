"""The one home of versions: what is installed by default, and which combinations are known (not) to work.

Sources are the vendors' own pages; where two of them disagree, the table says so. Chart versions are those of
https://helm.ngc.nvidia.com/nvidia: with a leading `v` for the GPU Operator, without for the Network Operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

# K3s 1.35 lies inside the range of every operator version below. The containerd drop-in folder that the
# NVIDIA toolkit writes to came with 1.35.2 (probably: k3s-io/k3s#13680 does not name the first release).
K3S: Final = "v1.35.6+k3s1"
K3S_BASE_URL: Final = "https://github.com/k3s-io/k3s/releases/download"

K3S_SHA256: Final[Mapping[str, Mapping[str, str]]] = {}
"""sha256 of the K3s binary by release and architecture, copied from the release's sha256sum-<arch>.txt.

Empty: no checksum has been verified against the published file yet, and one from anywhere else is worth
nothing. A release that is not here needs `k3s.sha256` or `k3s.checksums_file` in the configuration.
"""

# Set B of the table below: the only pair of operators that is under support today. That the GPU Operator's
# page does not list this Network Operator yet matters less here than elsewhere: of the Network Operator we
# run the SR-IOV device plugin only, and whether GPUDirect RDMA works is measured before it is relied on.
GPU_OPERATOR: Final = "v26.7.0"
NETWORK_OPERATOR: Final = "26.7.0"
NVIDIA_CHARTS: Final = "https://helm.ngc.nvidia.com/nvidia"
NETWORK_OPERATOR_IMAGES: Final = "nvcr.io/nvidia/mellanox"

# v0.8.2 of the operator is the code of v0.8.1; images are published for v0.6.0 to v0.8.0, and the floating
# tag :0.8 is no pin.
MPI_OPERATOR_IMAGE: Final = "mpioperator/mpi-operator:0.8.0"

# CoreWeave's public build: CUDA 12.9.1, NCCL 2.28.3, Open MPI, nccl-tests under /opt/nccl_tests/build
# (coreweave/nccl-tests).
NCCL_TESTS_IMAGE: Final = "ghcr.io/coreweave/nccl-tests:12.9.1-devel-ubuntu22.04-nccl2.28.3-1-8b67957"

Number = tuple[int, ...]


@dataclass(frozen=True)
class Range:
    """Versions from `low` up to, but not including, `high`."""

    low: Number
    high: Number

    def holds(self, version: Number) -> bool:
        """Whether the version lies in the range."""
        return self.low <= version < self.high


@dataclass(frozen=True)
class VersionSet:
    """A combination that is known to work, as far as the vendors say so."""

    name: str
    k3s: Range
    gpu_operator: Range
    network_operator: Range
    note: str


_K3S_135 = Range((1, 35, 2), (1, 36))

SETS: Final = (
    VersionSet(
        "A",
        _K3S_135,
        Range((26, 3, 3), (26, 4)),
        Range((26, 1, 2), (26, 2)),
        "in the GPU Operator's own list for GPUDirect RDMA; Network Operator 26.1 is at its end of support",
    ),
    VersionSet(
        "B",
        _K3S_135,
        Range((26, 7), (26, 8)),
        Range((26, 7), (26, 8)),
        "current on both sides; GPUDirect RDMA is stated by the Network Operator's page only",
    ),
)


@dataclass(frozen=True)
class Rule:
    """A combination that is trouble. It applies where every range that is given holds its version."""

    level: Literal["error", "warning"]
    why: str
    k3s: Range | None = None
    gpu_operator: Range | None = None
    network_operator: Range | None = None


_NO_ANONYMOUS_READYZ = (
    "does not read the AuthenticationConfiguration that opens /readyz to the load balancer's checks "
    "(k3s-io/k3s#12245): take v1.31.9, v1.32.5, v1.33.1 or later"
)

RULES: Final = (
    Rule("error", _NO_ANONYMOUS_READYZ, k3s=Range((0,), (1, 31, 9))),
    Rule("error", _NO_ANONYMOUS_READYZ, k3s=Range((1, 32), (1, 32, 5))),
    Rule("error", _NO_ANONYMOUS_READYZ, k3s=Range((1, 33), (1, 33, 1))),
    Rule(
        "error",
        "have no GPUDirect RDMA together (NVIDIA/cloud-native-stack, README of 26.6.0): take v26.3.3 with "
        "26.1.2, or v26.7.0 with 26.7.0",
        gpu_operator=Range((26, 3, 2), (26, 3, 3)),
        network_operator=Range((26, 4, 0), (26, 4, 1)),
    ),
    Rule(
        "warning",
        "shows all ibverbs devices to every GPU pod; fixed in v26.3.3",
        gpu_operator=Range((26, 3, 0), (26, 3, 3)),
    ),
    Rule("warning", "does not support K3s, which came with v26.3.0", gpu_operator=Range((0,), (26, 3))),
)

KUBERNETES_OF_NETWORK_OPERATOR: Final = (
    (Range((26, 1), (26, 5)), Range((1, 31), (1, 36))),
    (Range((26, 7), (26, 8)), Range((1, 32), (1, 37))),
)
KUBERNETES_OF_GPU_OPERATOR: Final = ((Range((26, 7), (26, 8)), Range((1, 33), (1, 37))),)


@dataclass(frozen=True)
class Finding:
    """What the table says about a combination; `where` is the setting at fault."""

    level: Literal["error", "warning"]
    where: str
    text: str


def number(version: str) -> Number | None:
    """`v1.35.6+k3s1` -> (1, 35, 6); None where the text is no version. Build and pre-release are left out."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, found[1].split("."))) if found else None


def set_of(k3s: str, gpu_operator: str, network_operator: str) -> VersionSet | None:
    """The known set that the three versions belong to."""
    k, g, n = number(k3s), number(gpu_operator), number(network_operator)
    if k is None or g is None or n is None:
        return None
    return next(
        (s for s in SETS if s.k3s.holds(k) and s.gpu_operator.holds(g) and s.network_operator.holds(n)), None
    )


def judge(k3s: str, gpu_operator: str | None, network_operator: str | None) -> list[Finding]:
    """What is known of a combination; an operator that is not installed is None.

    Errors are combinations known not to work. A combination outside the table is a warning: it may well work,
    but nobody has said so.
    """
    given = {"k3s": k3s, "gpu_operator": gpu_operator, "network_operator": network_operator}
    found = {name: number(text) for name, text in given.items() if text is not None}
    findings = list(_by_rules(given, found)) + list(_by_kubernetes(given, found))
    if not findings and gpu_operator and network_operator and not set_of(k3s, gpu_operator, network_operator):
        known = "; ".join(f"{s.name}: {_describe(s)}" for s in SETS)
        text = f"this combination is in no known set ({known}): it may work, but is unproven"
        findings.append(Finding("warning", "versions", text))
    return findings


def k3s_sha256(version: str, arch: str) -> str | None:
    """The known checksum of a K3s binary (arch: amd64 or arm64), or None."""
    return K3S_SHA256.get(version, {}).get(arch)


def _by_rules(given: Mapping[str, str | None], found: Mapping[str, Number | None]) -> Iterator[Finding]:
    for rule in RULES:
        ranges = {name: wanted for name in given if (wanted := getattr(rule, name)) is not None}
        if all(_holds(wanted, found.get(name)) for name, wanted in ranges.items()):
            names = " and ".join(f"{_TITLES[name]} {given[name]}" for name in ranges)
            yield Finding(rule.level, f"{next(iter(ranges))}.version", f"{names} {rule.why}")


def _by_kubernetes(given: Mapping[str, str | None], found: Mapping[str, Number | None]) -> Iterator[Finding]:
    tables = {
        "gpu_operator": KUBERNETES_OF_GPU_OPERATOR,
        "network_operator": KUBERNETES_OF_NETWORK_OPERATOR,
    }
    kubernetes = found["k3s"]
    for name, table in tables.items():
        for operator, supported in table:
            if kubernetes and _holds(operator, found.get(name)) and not supported.holds(kubernetes):
                low, high = supported.low, supported.high
                text = (
                    f"{_TITLES[name]} {given[name]} is for Kubernetes {low[0]}.{low[1]} to "
                    f"{high[0]}.{high[1] - 1}, not for K3s {given['k3s']}"
                )
                yield Finding("warning", f"{name}.version", text)


_TITLES = {"k3s": "K3s", "gpu_operator": "GPU Operator", "network_operator": "Network Operator"}


def _holds(wanted: Range, version: Number | None) -> bool:
    return version is not None and wanted.holds(version)


def _describe(known: VersionSet) -> str:
    def text(low: Number) -> str:
        return ".".join(map(str, low)) + (".x" if len(low) == 2 else "")

    k3s = ".".join(map(str, known.k3s.low))
    return (
        f"K3s {k3s} or later of its minor, GPU Operator v{text(known.gpu_operator.low)}, "
        f"Network Operator {text(known.network_operator.low)}"
    )
