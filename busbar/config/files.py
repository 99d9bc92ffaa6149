"""Checks of the files that the configuration names: they exist and have the expected content."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from busbar.config.cluster import Cluster
from busbar.config.operators import Chart

CONFIG_MAP_BYTES = 1_000_000
"""Kubernetes allows 1 MiB for the whole object."""


def resolve(root: Path, name: str) -> Path:
    """A path of the configuration: `~` is the home folder; relative paths start at the project folder."""
    return root / Path(name).expanduser()


def findings(cluster: Cluster, root: Path) -> Iterator[str]:
    """Yield one finding per file that is not usable; `root` is the project folder."""
    if cluster.ssh.key_file:
        yield from _key(resolve(root, cluster.ssh.key_file), cluster.ssh.key_file)
    own = {f"pools.{name}.validation": pool.validation for name, pool in cluster.pools.items()}
    for where, validation in {"validation": cluster.validation, **own}.items():
        if validation and validation.topology_file:
            name = validation.topology_file
            yield from _topology(resolve(root, name), f"{where}.topology_file: {name!r}")
    for name, chart in cluster:
        if not isinstance(chart, Chart) or not chart.enabled or not chart.is_local:
            continue
        if not resolve(root, chart.chart).exists():
            yield f"{name}.chart: {chart.chart!r} is not a folder or an archive on this machine"


def _key(path: Path, name: str) -> Iterator[str]:
    problem = _unreadable(path)
    if problem:
        yield f"ssh.key_file: {name!r} {problem}"
    elif b"PRIVATE KEY-----" not in path.read_bytes()[:200]:
        yield f"ssh.key_file: {name!r} contains no private key. Fix: name the file without .pub"


def _topology(path: Path, where: str) -> Iterator[str]:
    """The pods mount the file from a ConfigMap, which limits its name and size."""
    problem = _unreadable(path)
    if problem:
        yield f"{where} {problem}"
    elif not re.fullmatch(r"[-._A-Za-z0-9]{1,253}", path.name):
        yield f"{where} is not a file name for a ConfigMap. Fix: use A-Z a-z 0-9 . _ - only"
    elif path.stat().st_size > CONFIG_MAP_BYTES:
        yield f"{where} has {path.stat().st_size} bytes; a ConfigMap holds at most {CONFIG_MAP_BYTES}"
    elif b"<system" not in path.read_bytes():
        yield f"{where} is not an NCCL topology: it has no <system> element"


def _unreadable(path: Path) -> str | None:
    try:
        path.open("rb").close()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None
