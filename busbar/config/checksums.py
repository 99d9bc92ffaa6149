"""The sha256 of everything that hosts download.

A checksum comes from the configuration (`sha256`) or from `k3s.checksums_file`. A download without one is
refused, because an unchecked binary would run as root on every host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, unquote

from busbar.config.errors import ConfigError, Finding
from busbar.config.k3s import ImageArchive, K3s

BINARIES = {"amd64": "k3s", "arm64": "k3s-arm64"}
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
                Finding(
                    ("k3s", "checksums_file"),
                    f"cannot be read: {reason}",
                    f"save the file published with the release there: {published}",
                    repr(k3s.checksums_file),
                )
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
                    Finding(
                        ("k3s", "checksums_file"),
                        f"line {number} of {k3s.checksums_file!r} is not in the format of sha256sum: "
                        f"{line[:80]!r}",
                    )
                ]
            )
        sums[found["name"].rpartition("/")[2]] = found["sum"].lower()
    return sums


def binaries(k3s: K3s, listed: Mapping[str, str]) -> dict[str, str]:
    """Architecture -> checksum of the K3s binary, where one is known; `listed`: as `read_checksums`."""
    own = k3s.sha256.model_dump() if k3s.sha256 else {}
    sums = {arch: own.get(arch) or listed.get(name) for arch, name in BINARIES.items()}
    return {arch: sha256 for arch, sha256 in sums.items() if sha256}


def archive(image: ImageArchive, listed: Mapping[str, str]) -> str | None:
    """The checksum of an image archive, or None if it is unknown."""
    return image.sha256 or listed.get(unquote(image.url.rpartition("/")[2]))


def without_checksum(k3s: K3s, project: Path | None) -> Iterator[Finding]:
    """Downloads without a checksum; the binary needs one for at least one architecture.

    `project`: the folder that `k3s.checksums_file` starts from. Without it that file may name all of them.
    """
    if k3s.checksums_file and project is None:
        return
    try:
        listed = read_checksums(k3s, project or Path())
    except ConfigError as error:
        yield from error.findings
        return
    if not binaries(k3s, listed):
        yield Finding(
            ("k3s", "version"),
            f"the checksum of {k3s.version!r} is unknown",
            "save the sha256sum file published with the release beside the stack and set "
            "k3s.checksums_file, or set k3s.sha256.amd64",
        )
    for index, image in enumerate(k3s.images):
        if archive(image, listed) is None:
            text = f"the checksum of {image.url!r} is unknown"
            yield Finding(("k3s", "images", index), text, "set sha256, or add it to k3s.checksums_file")
