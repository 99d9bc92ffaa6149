"""Default versions, and combinations that are known to work or to fail. No other module has a version.

Sources are the vendors' own pages; where two of them disagree, the table says so. Ranges are PEP 440
specifiers (`packaging`). Chart versions are those of
https://helm.ngc.nvidia.com/nvidia: with a leading `v` for the GPU Operator, without for the Network Operator.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from packaging.specifiers import SpecifierSet
from packaging.version import Version

# K3s 1.35 is in the range of every operator version below. The containerd drop-in folder that the NVIDIA
# toolkit writes to came with 1.35.2 (probably: k3s-io/k3s#13680 does not name the first release).
K3S: Final = "v1.35.6+k3s1"
K3S_BASE_URL: Final = "https://github.com/k3s-io/k3s/releases/download"

# Set B of the table below: the only pair of operators under support today. The GPU Operator's page does not
# list this Network Operator yet. That is acceptable here: of the Network Operator only the SR-IOV device
# plugin runs, and the NCCL validation proves GPUDirect RDMA.
GPU_OPERATOR: Final = "v26.7.0"
NETWORK_OPERATOR: Final = "26.7.0"
# Versions that busbar was not run with, and what their public pages and charts say.
NOT_RUN: Final = {
    "v26.7.2": "its chart was not seen; since v26.7.1 the operator's GPU pods also wait for the host's "
    "kernel module nvidia (NVIDIA/gpu-operator#2881)",
    "26.10.0": "its chart was not seen; the image list of 26.10.0-beta.3 has the images of busbar's "
    "NicClusterPolicy, under names of the same form",
}
# Both operators support an upgrade within a major release (YY.MM) or to the next one only (their life-cycle
# pages). This is one version of each major release, by which an upgrade over several can go.
GPU_OPERATOR_RELEASES: Final = ("v25.10.1", "v26.3.3", GPU_OPERATOR)
NETWORK_OPERATOR_RELEASES: Final = ("25.10.0", "26.1.2", "26.4.2", NETWORK_OPERATOR, "26.10.0")
NVIDIA_CHARTS: Final = "https://helm.ngc.nvidia.com/nvidia"
NETWORK_OPERATOR_IMAGES: Final = "nvcr.io/nvidia/mellanox"

# v0.8.2 of the operator is the code of v0.8.1; images are published for v0.6.0 to v0.8.0; :0.8 pins nothing.
MPI_OPERATOR_IMAGE: Final = "mpioperator/mpi-operator:0.8.0"

# coreweave/nccl-tests: CUDA 12.9.1, NCCL 2.28.3, Open MPI, nccl-tests under /opt/nccl_tests/build.
NCCL_TESTS_IMAGE: Final = "ghcr.io/coreweave/nccl-tests:12.9.1-devel-ubuntu22.04-nccl2.28.3-1-8b67957"


NEVER_RUN: Final = "never run"


@dataclass(frozen=True)
class Default:
    """Software that a site gets unless it sets another version, and the version that this project has run.

    `ran` is written out, so that another default has never been run until somebody says where. `version` is
    empty for a package, whose version is that of the host's operating system.
    """

    kind: str
    name: str
    version: str
    ran: str = ""
    where: str = ""

    def run(self, version: str) -> str:
        """Where and when `version` was run; else that it never was, with the version that was."""
        if not self.where:
            return NEVER_RUN
        return self.where if version == self.ran else f"{NEVER_RUN}; {self.ran}: {self.where}"


def split(image: str) -> tuple[str, str]:
    """The repository and the tag or digest of an image."""
    repository, _, tag = image.partition("@") if "@" in image else image.rpartition(":")
    return repository, tag


_OPERATORS_RAN: Final = "on K3s v1.34.3 with mocked devices, beside the project, by 2026-11-26"
DEFAULTS: Final = (
    Default("binary", "K3s", K3S, "v1.35.0+k3s3", "built from its source, in the lab, 2026-11-24"),
    Default("archive", "K3s's own images", K3S),
    Default("chart", "gpu-operator", GPU_OPERATOR, "v26.7.0", _OPERATORS_RAN),
    Default("chart", "network-operator", NETWORK_OPERATOR, "26.7.0-rc.2", _OPERATORS_RAN),
    Default("image", *split(MPI_OPERATOR_IMAGE), "0.8.0", "built from its Go module, in the lab, 2026-11-30"),
    Default("image", *split(NCCL_TESTS_IMAGE)),
    Default("package", "haproxy", "", "", "that of Debian 12, in the lab, 2026-11-29"),
    Default("package", "keepalived", "", "", "that of Debian 12, in the lab, 2026-11-25"),
    Default("package", "nfs-kernel-server", ""),
)


def run_of(name: str, version: str = "", defaults: Sequence[Default] = DEFAULTS) -> str:
    """Where and when this project has run what `defaults` has under this name, else `never run`."""
    found = next((each for each in defaults if each.name == name), None)
    return found.run(version) if found else NEVER_RUN


@dataclass(frozen=True)
class VersionSet:
    """A combination that is known to work, according to the vendors: K3s, GPU Operator, Network Operator."""

    name: str
    ranges: tuple[str, str, str]
    note: str


SETS: Final = (
    VersionSet(
        "A",
        (">=1.35.2,<1.36", ">=26.3.3,<26.4", ">=26.1.2,<26.2"),
        "in the GPU Operator's own list for GPUDirect RDMA; Network Operator 26.1 is at its end of support",
    ),
    VersionSet(
        "B",
        (">=1.35.2,<1.36", ">=26.7,<26.8", ">=26.7,<26.8"),
        "current on both sides; GPUDirect RDMA is stated by the Network Operator's page only",
    ),
)
IN_WORDS: Final = (
    "K3s 1.35.2 or a later 1.35, with GPU Operator v26.7.0 and Network Operator 26.7.0, or v26.3.3 and 26.1.2"
)
"""The sets, as the fix of a message."""

# These do not read the AuthenticationConfiguration that the check of /readyz needs (k3s-io/k3s#12245).
K3S_WITHOUT_READYZ: Final = ("<1.31.9", ">=1.32,<1.32.5", ">=1.33,<1.33.1")
# etcd 3.5 of these keeps replaced servers as members, and 3.6 of K3s 1.34 counts them (k3s-io/k3s#13485).
K3S_WITH_REMOVED_MEMBERS: Final = ">=1.33,<1.33.8"
# A GPU Operator and a Network Operator that do not support GPUDirect RDMA together
# (NVIDIA/cloud-native-stack, README of 26.6.0).
GPU_OPERATOR_WITHOUT_GPUDIRECT: Final = ">=26.3.2,<26.3.3"
NETWORK_OPERATOR_WITHOUT_GPUDIRECT: Final = ">=26.4.0,<26.4.1"


def release(text: str) -> Version | None:
    """`v1.35.6+k3s1` -> 1.35.6, also of a kernel's version; None for a text that begins with none."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return Version(found[1]) if found else None


def left_out(releases: Sequence[str], installed: str, wanted: str) -> list[str]:
    """Return those of `releases` by which an upgrade from `installed` to `wanted` must go first."""
    before, after = release(installed), release(wanted)
    if before is None or after is None:
        return []
    majors = {each: Version(each).release[:2] for each in releases}
    return [each for each, major in majors.items() if before.release[:2] < major < after.release[:2]]


def known_set(k3s: str, gpu_operator: str, network_operator: str) -> VersionSet | None:
    """The known set that the three versions belong to."""
    given = (k3s, gpu_operator, network_operator)
    return next((each for each in SETS if all(map(contains, each.ranges, given))), None)


def contains(wanted: str, version: str) -> bool:
    """Return whether a range contains the release of `version`; False for a text that is no version."""
    number = release(version)
    return number is not None and number in SpecifierSet(wanted)
