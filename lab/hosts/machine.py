"""Requirements on this machine: root, a few Debian packages, Go."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from lab.paths import cache
from lab.steps import LabError, run_logged, step

# program -> Debian packages that contain it (the same names in Debian 12, Ubuntu 22.04 and 24.04)
_PROGRAMS = {
    "systemd-nspawn": "systemd-container",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "iptables": "iptables",
    "ssh": "openssh-client",
    "gcc": "gcc libc6-dev",
    "zstd": "zstd",
}
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def require_root() -> None:
    """Raises LabError unless this is root: namespaces, mounts and a bridge need it."""
    if os.geteuid() != 0:
        raise LabError(
            f"the lab boots containers on its own bridge and needs root, got uid {os.geteuid()}. "
            "Fix: retry with sudo"
        )


def missing() -> list[str]:
    """Debian packages that have to be installed."""
    absent = [package for program, package in _PROGRAMS.items() if shutil.which(program) is None]
    packages = " ".join(absent).split()
    return packages if _KEYRING.exists() else [*packages, "debian-archive-keyring"]


def prepare() -> None:
    """Install what is missing; raises LabError where that cannot be done."""
    packages = missing()
    if packages:
        if shutil.which("apt-get") is None:
            raise LabError(
                f"this machine lacks {', '.join(packages)} and has no apt-get: install them and retry"
            )
        with step(f"apt-get install {' '.join(packages)}"):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            logs = cache() / "logs"
            # One unreachable third-party source fails the whole update; the install fails if it matters.
            with contextlib.suppress(LabError):
                run_logged(["apt-get", "update"], logs / "apt-update.log", deadline=300, env=environment)
            install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
            run_logged(install, logs / "apt-install.log", deadline=600, env=environment)
    if shutil.which("go") is None:
        raise LabError(
            "the lab builds its tools from Go modules; no `go` on PATH. Fix: see go.dev/doc/install"
        )
