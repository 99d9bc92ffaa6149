"""The hosts' common base: one debootstrap of Debian, kept in the cache under the hash of its recipe."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from lab.paths import LAB, cache
from lab.steps import LabError, locked, run_logged, step

SUITE = "bookworm"
DEADLINE_SECONDS = 1200
_UNITS = ("busbar-lab-boot.service", "busbar-lab-apt.service")
_RECIPE = ("packages.txt", "setup.sh", *_UNITS)


def packages() -> list[str]:
    """The Debian packages of base/packages.txt."""
    lines = (LAB / "hosts" / "base" / "packages.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def key() -> str:
    """A short hash of everything that the base is made from."""
    digest = hashlib.sha256(SUITE.encode())
    for name in _RECIPE:
        digest.update((LAB / "hosts" / "base" / name).read_bytes())
    return digest.hexdigest()[:12]


def folder() -> Path:
    """The folder of the base for the present recipe, whether or not it exists."""
    return cache() / f"base-{SUITE}-{key()}"


def ensure() -> Path:
    """Make the base if it is missing; returns its folder. Raises LabError when debootstrap fails."""
    base = folder()
    if base.is_dir():
        return base
    with locked(cache() / "locks" / base.name):
        if base.is_dir():
            return base
        with step(f"debootstrap {SUITE} (once; kept in {base})"):
            _make(base)
    return base


def _make(base: Path) -> None:
    stage = base.with_name(base.name + ".new")
    shutil.rmtree(stage, ignore_errors=True)  # left by an interrupted run
    stage.parent.mkdir(parents=True, exist_ok=True)
    if stage.exists():
        raise LabError(f"{stage} exists and cannot be removed: check `findmnt` for a mount in it")
    log = cache() / "logs" / f"{base.name}.log"
    run_logged(
        ["debootstrap", "--variant=minbase", "--include=" + ",".join(packages()), SUITE, stage],
        log,
        deadline=DEADLINE_SECONDS,
    )
    for unit in _UNITS:
        shutil.copy2(LAB / "hosts" / "base" / unit, stage / "etc" / "systemd" / "system")
    shutil.copy2(LAB / "hosts" / "base" / "setup.sh", stage / "setup.sh")
    run_logged(["chroot", stage, "/setup.sh"], log.with_suffix(".setup.log"), deadline=120)
    (stage / "setup.sh").unlink()
    os.replace(stage, base)
