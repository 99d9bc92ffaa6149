"""What K3s servers and workers install, as values of host scripts: the binary and the image archives."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from busbar.config import ConfigError, K3s
from busbar.config.checksums import Arch
from busbar.hosts import downloads

# The scripts have deadlines of their own, by the size of each archive, which is not known here. This one ends
# a script that hangs: it allows for some 100 GB.
ARCHIVES_SECONDS = 4 * 3600
ARCHITECTURES: Final[tuple[Arch, ...]] = ("amd64", "arm64")


def binary_values(k3s: K3s, root: Path) -> dict[str, str]:
    """The K3s binary: VERSION, and URL_<ARCH> and SHA256_<ARCH> of each architecture with a known checksum.

    `root` is the project folder.
    """
    values = {"VERSION": k3s.version}
    for arch in ARCHITECTURES:
        try:
            binary = downloads.k3s_binary(k3s, arch, root)
        except ConfigError:
            # The configuration has been checked to have one of the two; the host's script refuses the other.
            continue
        values |= {f"URL_{arch.upper()}": binary.url, f"SHA256_{arch.upper()}": binary.sha256}
    return values


def image_lines(k3s: K3s, role: Literal["server", "worker"], root: Path) -> str:
    """The image archives for the hosts of one role: one `<sha256> <url>` per line."""
    archives = downloads.image_archives(k3s, role, root)
    return "\n".join(f"{archive.sha256} {archive.url}" for archive in archives)


def install_seconds(k3s: K3s, role: Literal["server", "worker"], seconds: int) -> int:
    """The time limit of an installation that takes `seconds` without image archives."""
    return seconds + (ARCHIVES_SECONDS if any(role in image.roles for image in k3s.images) else 0)
