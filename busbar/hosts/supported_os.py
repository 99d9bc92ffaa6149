"""The operating systems that hosts may run, and the packages that a person may have to install there."""

from __future__ import annotations

from collections.abc import Mapping

SUPPORTED_OS: Mapping[str, tuple[str, ...]] = {"ubuntu": ("22.04", "24.04", "26.04"), "debian": ("12", "13")}
"""Supported releases (VERSION_ID of /etc/os-release), by ID. docs/hosts.md says what differs between them."""

BASE_PACKAGES = "curl iproute2 iptables procps util-linux"
NFS_CLIENT = "nfs-common"

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


def install(os_id: str, packages: str) -> str | None:
    """The command that installs packages on a supported operating system, else None."""
    return f"apt-get install {packages}" if os_id in SUPPORTED_OS else None


def describe() -> str:
    """All supported systems as text: `ubuntu 22.04/24.04/26.04, debian 12/13`."""
    return ", ".join(f"{name} {'/'.join(releases)}" for name, releases in SUPPORTED_OS.items())
