"""The sha256 of everything that hosts download.

A checksum comes from the configuration (`sha256`), from `k3s.checksums_file`, or from `busbar.versions`. A
download without one is refused, because an unchecked binary would run as root on every host.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

from busbar import versions
from busbar.config.errors import ConfigError
from busbar.config.k3s import Image, K3s

Arch = Literal["amd64", "arm64"]
BINARIES: dict[Arch, str] = {"amd64": "k3s", "arm64": "k3s-arm64"}
"""Name of the K3s binary in a release, by architecture."""

_SUM_LINE = re.compile(r"(?P<sum>[0-9a-fA-F]{64}) [ *](?P<name>\S.*)")


def read_checksums(k3s: K3s, project: Path) -> dict[str, str]:
    """`k3s.checksums_file` as {file name: sha256}; empty if none is configured.

    Raises ConfigError if the file cannot be read or is not in the format of sha256sum.
    """
    if not k3s.checksums_file:
        return {}
    try:
        text = (project / Path(k3s.checksums_file).expanduser()).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        published = f"{k3s.base_url}/{quote(k3s.version, safe='')}/sha256sum-amd64.txt"
        raise ConfigError(
            [
                f"k3s.checksums_file: {k3s.checksums_file!r} cannot be read: {reason}. "
                f"Fix: save the file published with the release there: {published}"
            ]
        ) from None
    sums: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _SUM_LINE.fullmatch(line.rstrip())
        if found is None:
            raise ConfigError(
                [
                    f"k3s.checksums_file: line {number} of {k3s.checksums_file!r} is not in the format of "
                    f"sha256sum: {line[:80]!r}"
                ]
            )
        sums[found["name"].rpartition("/")[2]] = found["sum"].lower()
    return sums


def binary_sha256(k3s: K3s, arch: Arch, project: Path) -> str | None:
    """The checksum of the K3s binary for one architecture, or None if it is unknown.

    Raises ConfigError as `read_checksums`.
    """
    configured = getattr(k3s.sha256, arch) if k3s.sha256 else None
    listed = read_checksums(k3s, project).get(BINARIES[arch])
    return configured or listed or versions.k3s_sha256(k3s.version, arch)


def image_sha256(k3s: K3s, image: Image, project: Path) -> str | None:
    """The checksum of an image archive, or None if it is unknown. Raises as `read_checksums`."""
    return image.sha256 or read_checksums(k3s, project).get(file_name(image.url))


def file_name(url: str) -> str:
    """The last part of the URL's path."""
    return unquote(url.rpartition("/")[2])


def unknown_binary(k3s: K3s, arch: Arch) -> str:
    """The finding for a K3s binary without a checksum."""
    return (
        f"k3s.version: the checksum of {k3s.version!r} for {arch} is unknown. Fix: save the sha256sum file "
        f"published with the release beside the stack (k3s.checksums_file), or set k3s.sha256.{arch}"
    )


def unknown_image(k3s: K3s, index: int) -> str:
    """The finding for an image archive without a checksum."""
    return (
        f"k3s.images[{index}]: {file_name(k3s.images[index].url)!r} is not in {k3s.checksums_file}. "
        "Fix: add it there, or set sha256"
    )


def findings(k3s: K3s, project: Path) -> list[str]:
    """Downloads without a checksum; the binary needs one for at least one architecture."""
    try:
        sums = [binary_sha256(k3s, arch, project) for arch in BINARIES]
    except ConfigError as error:
        return error.findings
    found = [] if any(sums) else [unknown_binary(k3s, "amd64")]
    for index, image in enumerate(k3s.images):
        if image_sha256(k3s, image, project) is None:
            found.append(unknown_image(k3s, index))
    return found
