"""The files that the configuration names: they exist and have the expected content; checksums."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, unquote

from busbar.config.cluster import Chart, Cluster, ImageArchive, K3s, Ssh
from busbar.config.findings import ConfigError
from busbar.finding import Finding, KeyPath

CONFIG_MAP_BYTES = 1_000_000
"""Kubernetes allows 1 MiB for the whole object."""


def resolve(root: Path, name: str) -> Path:
    """A path of the configuration: `~` is the home folder; relative paths start at the project folder."""
    return root / Path(name).expanduser()


def unusable(cluster: Cluster, root: Path) -> Iterator[Finding]:
    """Yield one finding per file that is not usable; `root` is the project folder."""
    yield from ssh_key(cluster.ssh, root)
    if file := cluster.validation.topology_file:
        yield from _topology(root, file, ("validation", "topology_file"))
    for name, pool in cluster.pools.items():
        if pool.validation and (file := pool.validation.topology_file):
            yield from _topology(root, file, ("pools", name, "validation", "topology_file"))
    for name, chart in cluster:
        if not isinstance(chart, Chart) or not chart.enabled or not chart.is_local:
            continue
        if not resolve(root, chart.chart).exists():
            yield Finding(
                (name, "chart"), "is not a folder or an archive on this machine", found=repr(chart.chart)
            )


def ssh_key(ssh: Ssh, root: Path) -> Iterator[Finding]:
    """Check that the key file can be read and has a private key."""
    if not (name := ssh.key_file):
        return
    path = resolve(root, name)
    if problem := _unreadable(path):
        yield Finding(("ssh", "key_file"), problem, found=repr(name))
    elif b"PRIVATE KEY-----" not in path.read_bytes()[:200]:
        yield Finding(("ssh", "key_file"), "contains no private key", "name a file without .pub", repr(name))


def _topology(root: Path, name: str, where: KeyPath) -> Iterator[Finding]:
    """The pods mount the file from a ConfigMap, which limits its name and size."""
    path, fix = resolve(root, name), ""
    if not (problem := _unreadable(path)):
        if not re.fullmatch(r"[-._A-Za-z0-9]{1,253}", path.name):
            problem, fix = "is not a file name for a ConfigMap", "use A-Z a-z 0-9 . _ - only"
        elif path.stat().st_size > CONFIG_MAP_BYTES:
            problem = f"has {path.stat().st_size} bytes; a ConfigMap holds at most {CONFIG_MAP_BYTES}"
        else:
            problem, fix = _not_a_topology(path), "take the whole file from its source: xmllint --noout FILE"
    if problem:
        yield Finding(where, problem, fix, repr(name))


def _not_a_topology(path: Path) -> str:
    """The problem of a file that is not a topology of NCCL; empty for one."""
    from xml.etree import ElementTree

    try:
        system = ElementTree.fromstring(path.read_bytes())
    except ElementTree.ParseError as error:
        return f"is not XML: {error}"
    return "" if system.tag == "system" else "is not an NCCL topology: its outermost element is not <system>"


def _unreadable(path: Path) -> str | None:
    try:
        path.open("rb").close()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


BINARIES = {"amd64": "k3s", "arm64": "k3s-arm64"}
"""Name of the K3s binary in a release, by architecture."""

_SUM_LINE = re.compile(r"(?P<sum>[0-9a-fA-F]{64}) [ *](?P<name>\S.*)")


def read_checksums(k3s: K3s, project: Path) -> dict[str, str]:
    """{file name: sha256} of `k3s.checksums_file`. Raises ConfigError where it has another format."""
    if not k3s.checksums_file:
        return {}
    where = ("k3s", "checksums_file")
    try:
        text = resolve(project, k3s.checksums_file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        published = f"{k3s.base_url}/{quote(k3s.version, safe='')}/sha256sum-amd64.txt"
        fix = f"save the file published with the release there: {published}"
        problem = Finding(where, f"cannot be read: {reason}", fix, repr(k3s.checksums_file))
        raise ConfigError([problem]) from None
    sums: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _SUM_LINE.fullmatch(line.rstrip())
        if found is None:
            at = f"line {number} of {k3s.checksums_file!r}"
            raise ConfigError([Finding(where, f"{at} is not in the format of sha256sum: {line[:80]!r}")])
        sums[found["name"].rpartition("/")[2]] = found["sum"].lower()
    return sums


def binary_checksums(k3s: K3s, listed: Mapping[str, str]) -> dict[str, str]:
    """Architecture -> checksum of the K3s binary, where one is known; `listed`: as `read_checksums`."""
    own = k3s.sha256.model_dump() if k3s.sha256 else {}
    sums = {arch: own.get(arch) or listed.get(name) for arch, name in BINARIES.items()}
    return {arch: sha256 for arch, sha256 in sums.items() if sha256}


def archive_checksum(image: ImageArchive, listed: Mapping[str, str]) -> str | None:
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
    if not binary_checksums(k3s, listed):
        yield Finding(
            ("k3s", "version"),
            f"the checksum of {k3s.version!r} is unknown",
            "save the release's sha256sum file and set k3s.checksums_file, or set k3s.sha256.amd64",
        )
    for index, image in enumerate(k3s.images):
        if archive_checksum(image, listed) is None:
            text = f"the checksum of {image.url!r} is unknown"
            yield Finding(("k3s", "images", index), text, "set sha256, or add it to k3s.checksums_file")
