"""The Slurm hosts' base: Debian 13 with Open MPI 5, nccl-tests' simulator, and Slurm's packages.

These are not installed: the product does that, from a folder of the base, as from a site's own mirror.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from lab.build.recipe import lines
from lab.hosts import repository
from lab.hosts.rootfs import Base
from lab.images import programs, tree
from lab.steps import run_logged

SUITE = "trixie"
FOLDER = Path(__file__).resolve().parent / "base"
PACKAGES = Path("usr/local/lib/busbar-lab/packages")
NCCL_TESTS = Path("opt/nccl-tests/build")
# Packages for the hosts, then the programs for their Open MPI. The compiler does not stay.
_SCRIPT = """
mkdir -p /out/packages/partial
apt-get update -q
apt-get install -y -q --no-install-recommends --download-only -o Dir::Cache::archives=/out/packages $OFFERED
apt-get install -y -q --no-install-recommends $COMPILER
make -C /src BUILD=/out/nccl
strip /out/nccl/all_reduce_perf
"""
_LISTS = ("apt-get", "update", "-q")
_FILES = {
    "openmpi-mca-params.conf": "etc/openmpi/openmpi-mca-params.conf",
    # The tree can be made again; without this dpkg waits for the disk after every file.
    "dpkg.conf": "etc/dpkg/dpkg.cfg.d/busbar-lab",
}


def _finish(stage: Path, log: Path) -> None:
    """Download the packages, compile the programs, and put both into the tree. Raises LabError."""
    scratch = stage.with_name(stage.name + ".scratch")
    shutil.rmtree(scratch, ignore_errors=True)
    for folder in ("out", "upper"):
        (scratch / folder).mkdir(parents=True)
    words = {"OFFERED": lines(FOLDER / "offered.txt"), "COMPILER": tree.COMPILER_PACKAGES}
    variables = "".join(f"{name}='{' '.join(names)}'\n" for name, names in words.items())
    tree.in_tree(
        [stage],
        scratch / "upper",
        variables + _SCRIPT,
        log=log,
        binds=[(programs.NCCL_SOURCES, "/src"), (scratch / "out", "/out")],
        deadline=tree.DEADLINE_SECONDS,
    )
    shutil.copytree(scratch / "out/nccl", stage / NCCL_TESTS, symlinks=True)
    (stage / PACKAGES).mkdir(parents=True)
    for archive in (scratch / "out/packages").glob("*.deb"):
        shutil.move(archive, stage / PACKAGES)
    shutil.rmtree(scratch)
    source = repository.index(stage / PACKAGES, f"/{PACKAGES}")
    (stage / "etc/apt/sources.list").write_text(source + "\n")
    run_logged(["chroot", stage, *_LISTS], log.with_suffix(".lists.log"), deadline=60)
    for name, place in _FILES.items():
        (stage / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(FOLDER / name, stage / place)


BASE = Base(
    suite=SUITE,
    packages=FOLDER / "packages.txt",
    finish=_finish,
    inputs=(FOLDER, programs.NCCL_SOURCES, _SCRIPT, *_LISTS, *tree.COMPILER_PACKAGES),
)
