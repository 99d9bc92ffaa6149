"""What the hosts download, each with the sha256 that it must have.

A checksum comes from the configuration (`sha256`), from `k3s.checksums_file`, or from `busbar.versions`; what
has none is refused, because an unchecked binary would run as root on every host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

from busbar import versions
from busbar.config.errors import ConfigError
from busbar.config.k3s import K3s

Arch = Literal["amd64", "arm64"]
_BINARIES: Mapping[Arch, str] = {"amd64": "k3s", "arm64": "k3s-arm64"}
_SUM_LINE = re.compile(r"(?P<sum>[0-9a-fA-F]{64}) [ *](?P<name>\S.*)")


@dataclass(frozen=True)
class Download:
    """One file: where it lies and what it must hash to (64 lower-case hexadecimal digits)."""

    url: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The last part of the URL's path."""
        return unquote(self.url.rpartition("/")[2])


def k3s_binary(k3s: K3s, arch: Arch, root: Path) -> Download:
    """The K3s binary for one architecture; `root` is the project folder.

    Raises ConfigError where its checksum is not known.
    """
    url = f"{k3s.base_url}/{quote(k3s.version, safe='')}/{_BINARIES[arch]}"
    given = getattr(k3s.sha256, arch) if k3s.sha256 else None
    listed = read_checksums(k3s, root).get(_BINARIES[arch])
    checksum = given or listed or versions.k3s_sha256(k3s.version, arch)
    if checksum is None:
        raise ConfigError(
            [
                f"k3s.version: no checksum is known for {k3s.version!r} on {arch}: put the sha256sum file "
                f"published with the release beside the stack (k3s.checksums_file), or give k3s.sha256.{arch}"
            ]
        )
    return Download(url, checksum)


def image_archives(k3s: K3s, role: Literal["server", "worker"], root: Path) -> list[Download]:
    """The image archives for the hosts of one role. Raises ConfigError where a checksum is not known."""
    sums = read_checksums(k3s, root)
    found: list[Download] = []
    missing: list[str] = []
    for index, image in enumerate(k3s.images):
        checksum = image.sha256 or sums.get(Download(image.url, "").file_name)
        if checksum is None:
            name = Download(image.url, "").file_name
            missing.append(f"k3s.images[{index}]: {name!r} is not in {k3s.checksums_file}; give its sha256")
        elif role in image.roles:
            found.append(Download(image.url, checksum))
    if missing:
        raise ConfigError(missing)
    return found


def read_checksums(k3s: K3s, root: Path) -> dict[str, str]:
    """`k3s.checksums_file` as {file name: sha256}; empty where none is configured.

    Raises ConfigError where the file cannot be read or is not in the format of sha256sum.
    """
    if not k3s.checksums_file:
        return {}
    try:
        text = (root / Path(k3s.checksums_file).expanduser()).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise ConfigError([f"k3s.checksums_file: {k3s.checksums_file!r} cannot be read: {reason}"]) from None
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


def check(k3s: K3s, root: Path) -> None:
    """Raise ConfigError unless the binary, for one architecture at least, and all archives have checksums."""
    read_checksums(k3s, root)
    problems: list[str] = []
    errors: list[ConfigError] = []
    for arch in _BINARIES:
        try:
            k3s_binary(k3s, arch, root)
        except ConfigError as error:
            errors.append(error)
    if len(errors) == len(_BINARIES):
        problems += errors[0].findings
    try:
        image_archives(k3s, "server", root)
    except ConfigError as error:
        problems += error.findings
    if problems:
        raise ConfigError(problems)
