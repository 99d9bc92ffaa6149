"""What hosts have in common: a debootstrap of Debian, kept in the cache under the hash of its recipe."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.build.recipe import key, lines
from lab.paths import LAB, cache
from lab.steps import LabError, locked, run_logged, step

DEADLINE_SECONDS = 1200
_OWN = LAB / "hosts" / "base"
_UNITS = ("busbar-lab-boot.service", "busbar-lab-apt.service")
_SETUP = "setup.sh"


@dataclass(frozen=True, kw_only=True)
class Base:
    """A tree that hosts are overlays of.

    `packages`: the file that lists them. `finish`: called with the new tree and the path of a log;
    `inputs`: what it reads beside `packages`.
    """

    suite: str
    packages: Path
    finish: Callable[[Path, Path], None] | None = None
    inputs: tuple[Path | str, ...] = ()

    def folder(self) -> Path:
        """The folder of the base for the present recipe, whether or not it exists."""
        recipe = key(self.suite, self.packages, *(_OWN / name for name in (_SETUP, *_UNITS)), *self.inputs)
        return cache() / f"base-{self.suite}-{recipe[:12]}"

    def ensure(self) -> Path:
        """Make the base if it is missing; returns its folder. Raises LabError when debootstrap fails."""
        base = self.folder()
        if base.is_dir():
            return base
        with locked(cache() / "locks" / base.name):
            if base.is_dir():
                return base
            with step(f"debootstrap {self.suite} (once; kept in {base})"):
                self._make(base)
        return base

    def _make(self, base: Path) -> None:
        stage = base.with_name(base.name + ".new")
        shutil.rmtree(stage, ignore_errors=True)  # left by an interrupted run
        stage.parent.mkdir(parents=True, exist_ok=True)
        if stage.exists():
            raise LabError(f"{stage} exists and cannot be removed: check `findmnt` for a mount in it")
        log = cache() / "logs" / f"{base.name}.log"
        include = "--include=" + ",".join(lines(self.packages))
        run_logged(
            ["debootstrap", "--variant=minbase", include, self.suite, stage], log, deadline=DEADLINE_SECONDS
        )
        for unit in _UNITS:
            shutil.copy2(_OWN / unit, stage / "etc" / "systemd" / "system")
        shutil.copy2(_OWN / _SETUP, stage / _SETUP)
        run_logged(["chroot", stage, f"/{_SETUP}"], log.with_suffix(".setup.log"), deadline=120)
        (stage / _SETUP).unlink()
        if self.finish:
            self.finish(stage, log.with_suffix(".finish.log"))
        os.replace(stage, base)


SUITE = "bookworm"
BASE = Base(suite=SUITE, packages=_OWN / "packages.txt")
"""Of the hosts of `make up`."""
