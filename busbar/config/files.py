"""The files that the configuration names: are they there, and do they hold what they must?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from busbar.config.cluster import Cluster
from busbar.config.errors import ConfigError
from busbar.hosts import downloads

CONFIG_MAP_BYTES = 1_000_000
"""Kubernetes allows 1 MiB for the whole object."""


def resolve(root: Path, name: str) -> Path:
    """A path of the configuration: `~` is the home folder, a relative one starts at the project folder."""
    return root / Path(name).expanduser()


def findings(cluster: Cluster, root: Path) -> Iterator[str]:
    """What is wrong with the files, one finding each; `root` is the project folder."""
    if cluster.ssh.key_file:
        yield from _key(resolve(root, cluster.ssh.key_file), cluster.ssh.key_file)
    if cluster.validation.topology_file:
        yield from _topology(
            resolve(root, cluster.validation.topology_file), cluster.validation.topology_file
        )
    for name, chart in (
        ("gpu_operator", cluster.gpu_operator),
        ("network_operator", cluster.network_operator),
    ):
        if chart.enabled and chart.is_local and not resolve(root, chart.chart).exists():
            yield f"{name}.chart: {chart.chart!r} is neither a folder nor an archive on this machine"
    try:
        downloads.check(cluster.k3s, root)
    except ConfigError as error:
        yield from error.findings


def _key(path: Path, name: str) -> Iterator[str]:
    problem = _unreadable(path)
    if problem:
        yield f"ssh.key_file: {name!r} {problem}"
    elif b"PRIVATE KEY-----" not in path.read_bytes()[:200]:
        yield f"ssh.key_file: {name!r} holds no private key; the public half lies in the .pub file"


def _topology(path: Path, name: str) -> Iterator[str]:
    """The file travels to the pods as a ConfigMap, which sets limits to its name and its size."""
    where = f"validation.topology_file: {name!r}"
    problem = _unreadable(path)
    if problem:
        yield f"{where} {problem}"
    elif not re.fullmatch(r"[-._A-Za-z0-9]{1,253}", path.name):
        yield f"{where}: a ConfigMap cannot hold a file of this name: use A-Z a-z 0-9 . _ - only"
    elif path.stat().st_size > CONFIG_MAP_BYTES:
        yield f"{where} has {path.stat().st_size} bytes; a ConfigMap holds {CONFIG_MAP_BYTES}"
    elif b"<system" not in path.read_bytes():
        yield f"{where} is no NCCL topology: it has no <system> element"


def _unreadable(path: Path) -> str | None:
    try:
        path.open("rb").close()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None
