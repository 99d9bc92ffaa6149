"""Which images there are, what is in them, and in which archive they travel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from lab.build.recipe import key, lines
from lab.images import programs, tree
from lab.images.archive import File, Image

# The names under which real K3s asks for them [k3s-io/k3s scripts/airgap/image-list.txt].
PAUSE = "docker.io/rancher/mirrored-pause:3.6"
# Of K3s 1.35.6 (the default), 1.35.0 and 1.34.3: one program under the names of all.
COREDNS = tuple(f"docker.io/rancher/mirrored-coredns-coredns:{tag}" for tag in ("1.14.4", "1.14.0", "1.13.1"))
MPI_OPERATOR = "docker.io/mpioperator/mpi-operator:0.8.0"
DEVICES = "docker.io/busbar-lab/devices:1"
NCCL_TESTS = "docker.io/busbar-lab/nccl-tests:1"

NCCL = tree.HERE / "nccl"
PROGRAM_FOLDER = "opt/nccl-tests/build"


@dataclass(frozen=True)
class Archive:
    """`recipe(tools)` changes when the content would; `images(work, tools)` makes what goes in."""

    name: str
    recipe: Callable[[Path], str]
    images: Callable[[Path, Path], list[Image]]


def archives() -> tuple[Archive, ...]:
    """All archives, the quickest to make first."""
    return (
        Archive("operators", _operators_recipe, _operators),
        Archive("system", _system_recipe, _system),
        Archive("nccl", _nccl_recipe, _nccl),
    )


def _system_recipe(tools: Path) -> str:
    return key(PAUSE, *COREDNS, programs.recipe(), tools / "coredns")


def _system(work: Path, tools: Path) -> list[Image]:
    return [
        Image(PAUSE, files={"pause": File(programs.ensure(work) / "pause", 0o755)}, entrypoint=("/pause",)),
        *(
            Image(
                name,
                files={"coredns": File(tools / "coredns", 0o755)},
                folders=("tmp",),
                entrypoint=("/coredns",),
            )
            for name in COREDNS
        ),
    ]


def _operators_recipe(tools: Path) -> str:
    programs = (tools / name for name in ("mpi-operator", "devices"))
    return key(MPI_OPERATOR, DEVICES, *programs)


def _operators(work: Path, tools: Path) -> list[Image]:
    return [
        Image(
            MPI_OPERATOR,
            files={"opt/mpi-operator": File(tools / "mpi-operator", 0o755)},
            folders=("tmp",),
            entrypoint=("/opt/mpi-operator",),
            command=("--help",),
        ),
        Image(
            DEVICES,
            files={"devices": File(tools / "devices", 0o755)},
            folders=("tmp",),
            entrypoint=("/devices",),
        ),
    ]


def _nccl_recipe(tools: Path) -> str:
    return key(NCCL_TESTS, PROGRAM_FOLDER, NCCL, programs.recipe(), Path(__file__))


def _nccl(work: Path, tools: Path) -> list[Image]:
    built = programs.ensure(work) / "nccl"
    real, *aliases = programs.NCCL_PROGRAMS
    left_out = lines(NCCL / "left_out.txt")
    return [
        Image(
            NCCL_TESTS,
            tree=tree.ensure(work),
            keep=lambda path: not any(fnmatch(path, pattern) for pattern in left_out),
            files={
                f"{PROGRAM_FOLDER}/{real}": File(built / real, 0o755),
                "etc/openmpi/openmpi-mca-params.conf": File(NCCL / "openmpi-mca-params.conf"),
                "etc/ssh/ssh_config.d/lab.conf": File(NCCL / "ssh_config"),
                "etc/ssh/sshd_config.d/lab.conf": File(NCCL / "sshd_config"),
            },
            links={
                **{f"{PROGRAM_FOLDER}/{name}": real for name in aliases},
                **{f"usr/local/bin/{name}": f"/{PROGRAM_FOLDER}/{name}" for name in programs.NCCL_PROGRAMS},
            },
            folders=("run/sshd", "root/.ssh"),
            command=("/usr/sbin/sshd", "-De"),
        )
    ]
