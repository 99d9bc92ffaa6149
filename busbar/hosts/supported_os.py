"""The operating systems that hosts may run, and their package manager.

To support another one: a row in SUPPORTED_OS; a new package manager also needs a row in PACKAGE_MANAGERS and
the four functions of host/packages.sh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PackageManager:
    """Commands for a fix that a person types. `fabric_manager` may use {branch} and {version}."""

    install: str
    base_packages: str
    fabric_manager: str
    nfs_client: str


@dataclass(frozen=True)
class OperatingSystem:
    """Supported releases (VERSION_ID of /etc/os-release) and the package manager, a key of PACKAGE_MANAGERS.

    A major release stands for its minor ones: 9 for 9.4. docs/hosts.md says what differs between them.
    """

    releases: tuple[str, ...]
    packages: str

    def supports(self, version: str) -> bool:
        """Whether a VERSION_ID is one of the supported releases, or a minor one of them."""
        return any(version == release or version.startswith(f"{release}.") for release in self.releases)


PACKAGE_MANAGERS: Mapping[str, PackageManager] = {
    "apt": PackageManager(
        install="apt-get install",
        base_packages="curl iproute2 iptables procps util-linux",
        fabric_manager="nvidia-fabricmanager-{branch}={version}-1",
        nfs_client="nfs-common",
    ),
}

SUPPORTED_OS: Mapping[str, OperatingSystem] = {
    "ubuntu": OperatingSystem(("22.04", "24.04", "26.04"), "apt"),
    "debian": OperatingSystem(("12", "13"), "apt"),
}
"""Supported systems by ID of /etc/os-release."""

_RED_HAT = "packages by dnf, rules for firewalld, and SELinux (the policy k3s-selinux)"
_SUSE = "packages by zypper, and rules for firewalld"
_MISSING: Mapping[str, str] = {
    **dict.fromkeys(("rhel", "rocky", "almalinux", "centos", "ol", "fedora", "amzn"), _RED_HAT),
    **dict.fromkeys(("sles", "opensuse-leap"), _SUSE),
}
"""System -> what busbar lacks for it (needs of K3s: k3s-io/docs docs/installation/requirements.md)."""


def missing(os_id: str) -> str:
    """The feature that busbar lacks for an operating system without a row in SUPPORTED_OS."""
    return _MISSING.get(os_id, "packages by any other tool than apt")


def package_manager(os_id: str) -> PackageManager | None:
    """The package manager of a supported operating system, else None."""
    found = SUPPORTED_OS.get(os_id)
    return PACKAGE_MANAGERS[found.packages] if found else None


def describe() -> str:
    """All supported systems as text: `ubuntu 22.04/24.04/26.04, debian 12/13`."""
    return ", ".join(f"{name} {'/'.join(each.releases)}" for name, each in SUPPORTED_OS.items())
