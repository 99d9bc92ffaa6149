"""The images of Slurm's daemons: Debian's packages, and the simulator of nccl-tests for their Open MPI.

The suite moves; the tree is kept in the cache, and a new one is checked for Slurm's version.
"""

from __future__ import annotations

import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

from lab.build.recipe import key, lines
from lab.images import programs, tree
from lab.images.archive import File, Image
from lab.images.catalog import PROGRAM_FOLDER, Archive
from lab.steps import LabError, run_logged, step

# The first suite with Slurm 25.11 or later, whose daemons answer the operator's probes.
SUITE, MIRROR, SCRIPT = "forky", "http://deb.debian.org/debian", "/usr/share/debootstrap/scripts/sid"
SLURM = "26.05"
FOLDER = Path(__file__).resolve().parent / "slurm"
PROGRAMS = ("slurmctld", "slurmd", "slurmrestd", "login")
TAG = "1"
IMAGES = {name: f"docker.io/busbar-lab/{name}:{TAG}" for name in PROGRAMS}
# The user and group of SchedMD's images, which the operator's pods have.
_SLURM_USER = "groupadd --system --gid 401 slurm && useradd --system --uid 401 --gid 401 slurm"
# The measurement is submitted by root, and without pmix its ranks are started by mpirun.
_ROOT = tuple(f"{name}_ALLOW_RUN_AS_ROOT{end}=1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM"))
_APT = "apt-get -q -o Acquire::Check-Valid-Until=false"
_COMPILE = f"""
{_APT} update
{_APT} install -y --no-install-recommends {" ".join(tree.COMPILER_PACKAGES)}
make -C /src BUILD=/out
strip /out/all_reduce_perf
"""


def recipe() -> str:
    """The hash of what the images are made from."""
    return key(*IMAGES.values(), tree_recipe(), FOLDER, programs.NCCL_SOURCES, _COMPILE, Path(__file__))


def tree_recipe() -> str:
    """The hash of what the tree is made from."""
    return key(SUITE, _SLURM_USER, *lines(FOLDER / "packages.txt"))


def ensure(work: Path) -> Path:
    """The package tree under `work`, made where it is missing. Raises LabError."""
    result = work / f"slurm-{tree_recipe()}"
    with tree.once(result) as stage:
        if stage:
            with step("Debian packages of Slurm's images (once; some minutes)"):
                _make(stage, tree.log_of(result))
    return result


def _make(stage: Path, log: Path) -> None:
    words: list[str | Path] = ["debootstrap", "--variant=minbase", SUITE, stage, MIRROR, SCRIPT]
    run_logged(words, log, deadline=tree.DEADLINE_SECONDS)
    packages = " ".join(lines(FOLDER / "packages.txt"))
    (stage / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
    (stage / "usr/sbin/policy-rc.d").chmod(0o755)
    script = f"{_SLURM_USER} && {_APT} update && {_APT} install -y --no-install-recommends {packages}"
    enter = (
        f"mount -t proc proc '{stage}/proc' && mount --rbind /dev '{stage}/dev' && "
        f"exec chroot '{stage}' env DEBIAN_FRONTEND=noninteractive LC_ALL=C sh -eu -c \"$1\""
    )
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", enter, "sh", script]
    run_logged(command, log.with_suffix(".setup.log"), deadline=tree.DEADLINE_SECONDS)
    said = subprocess.run(["chroot", stage, "slurmctld", "-V"], capture_output=True, text=True, check=False)
    if f" {SLURM}." not in said.stdout:
        raise LabError(
            f"Debian {SUITE} has {said.stdout.strip() or 'no slurmctld'}, expected {SLURM}: the suite moves. "
            "Fix: run the drills with it, then change SLURM in stacks/slurm_k8s/lab/images/slurm_image.py"
        )


def _compiled(work: Path) -> Path:
    """The folder of the programs of nccl-tests, compiled with the images' own Open MPI."""
    result = work / f"slurm-nccl-{key(tree_recipe(), programs.NCCL_SOURCES, _COMPILE)}"
    with tree.once(result) as stage:
        if stage:
            upper = stage.with_name(stage.name + ".upper")
            for folder in (stage, upper):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
            tree.in_tree(
                [ensure(work)],
                upper,
                _COMPILE,
                log=tree.log_of(result),
                binds=[(programs.NCCL_SOURCES, "/src"), (stage, "/out")],
                deadline=tree.DEADLINE_SECONDS,
            )
            shutil.rmtree(upper)
    return result


def _images(work: Path, tools: Path) -> list[Image]:
    left_out = lines(FOLDER / "left_out.txt")
    real, *aliases = programs.NCCL_PROGRAMS
    files = {
        "etc/openmpi/openmpi-mca-params.conf": File(FOLDER / "openmpi-mca-params.conf"),
        f"{PROGRAM_FOLDER}/{real}": File(_compiled(work) / real, 0o755),
        **{f"usr/local/bin/entrypoint-{name}": File(FOLDER / name, 0o755) for name in PROGRAMS},
    }
    return [
        Image(
            image,
            tree=ensure(work),
            keep=lambda path: not any(fnmatch(path, pattern) for pattern in left_out),
            files=files,
            links={f"{PROGRAM_FOLDER}/{alias}": real for alias in aliases},
            folders=("run/slurm", "run/sshd", "var/log/slurm", "root/.ssh", "etc/slurm", "tmp"),
            entrypoint=(f"/usr/local/bin/entrypoint-{name}",),
            environment=(*Image.environment, *_ROOT),
        )
        for name, image in IMAGES.items()
    ]


ARCHIVE = Archive("slurm", lambda tools: recipe(), _images)
