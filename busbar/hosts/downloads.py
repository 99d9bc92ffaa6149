"""What the hosts download, each file with its sha256, and how a host script gets to know it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from busbar.config import ConfigError, K3s, checksums
from busbar.config.checksums import Arch

Role = Literal["server", "worker"]

# The scripts have deadlines of their own, by the size of each archive, which is not known here. This one ends
# a script that hangs: it allows for some 100 GB.
ARCHIVES_SECONDS = 4 * 3600


@dataclass(frozen=True)
class Download:
    """One file: its URL, and its sha256 (64 lower-case hexadecimal digits)."""

    url: str
    sha256: str


def k3s_values(k3s: K3s, role: Role, project: Path) -> dict[str, str]:
    """What host/k3s-server.sh and host/k3s-agent.sh install, as values of the script.

    VERSION; URL_<ARCH> and SHA256_<ARCH> for every architecture with a known checksum; IMAGES, one line
    `<sha256> <url>` per image archive of the role. Raises ConfigError if a checksum file cannot be read, an
    archive has no checksum, or no architecture has one.
    """
    values = {"VERSION": k3s.version}
    for arch in checksums.BINARIES:
        # The host's script refuses an architecture that is missing here.
        if checksums.binary_sha256(k3s, arch, project) is not None:
            binary = k3s_binary(k3s, arch, project)
            values |= {f"URL_{arch.upper()}": binary.url, f"SHA256_{arch.upper()}": binary.sha256}
    if len(values) == 1:
        raise ConfigError([checksums.unknown_binary(k3s, "amd64")])
    archives = image_archives(k3s, role, project)
    values["IMAGES"] = "\n".join(f"{archive.sha256} {archive.url}" for archive in archives)
    return values


def install_seconds(k3s: K3s, role: Role, seconds: int) -> int:
    """The time limit of an installation that takes `seconds` without image archives."""
    return seconds + (ARCHIVES_SECONDS if any(role in image.roles for image in k3s.images) else 0)


def k3s_binary(k3s: K3s, arch: Arch, project: Path) -> Download:
    """The K3s binary for one architecture. Raises ConfigError if its checksum is unknown."""
    sha256 = checksums.binary_sha256(k3s, arch, project)
    if sha256 is None:
        raise ConfigError([checksums.unknown_binary(k3s, arch)])
    return Download(f"{k3s.base_url}/{quote(k3s.version, safe='')}/{checksums.BINARIES[arch]}", sha256)


def image_archives(k3s: K3s, role: Role, project: Path) -> list[Download]:
    """The image archives for the hosts of one role. Raises ConfigError if a checksum is unknown."""
    found: list[Download] = []
    missing: list[str] = []
    for index, image in enumerate(k3s.images):
        sha256 = checksums.image_sha256(k3s, image, project)
        if sha256 is None:
            missing.append(checksums.unknown_image(k3s, index))
        elif role in image.roles:
            found.append(Download(image.url, sha256))
    if missing:
        raise ConfigError(missing)
    return found
