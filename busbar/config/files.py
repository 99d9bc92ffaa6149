"""Checks of the files that the configuration names: they exist and have the expected content."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from busbar.config.cluster import Cluster
from busbar.config.errors import Finding, KeyPath
from busbar.config.operators import Chart
from busbar.config.ssh import Ssh

CONFIG_MAP_BYTES = 1_000_000
"""Kubernetes allows 1 MiB for the whole object."""


def resolve(root: Path, name: str) -> Path:
    """A path of the configuration: `~` is the home folder; relative paths start at the project folder."""
    return root / Path(name).expanduser()


def findings(cluster: Cluster, root: Path) -> Iterator[Finding]:
    """Yield one finding per file that is not usable; `root` is the project folder."""
    yield from ssh_key(cluster.ssh, root)
    if cluster.validation.topology_file:
        yield from _topology(root, cluster.validation.topology_file, ("validation", "topology_file"))
    for name, pool in cluster.pools.items():
        if pool.validation and pool.validation.topology_file:
            where = ("pools", name, "validation", "topology_file")
            yield from _topology(root, pool.validation.topology_file, where)
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
        yield Finding(
            ("ssh", "key_file"), "contains no private key", "name the file without .pub", repr(name)
        )


def _topology(root: Path, name: str, where: KeyPath) -> Iterator[Finding]:
    """The pods mount the file from a ConfigMap, which limits its name and size."""
    path, fix = resolve(root, name), ""
    if not (problem := _unreadable(path)):
        if not re.fullmatch(r"[-._A-Za-z0-9]{1,253}", path.name):
            problem, fix = "is not a file name for a ConfigMap", "use A-Z a-z 0-9 . _ - only"
        elif path.stat().st_size > CONFIG_MAP_BYTES:
            problem = f"has {path.stat().st_size} bytes; a ConfigMap holds at most {CONFIG_MAP_BYTES}"
        elif b"<system" not in path.read_bytes():
            problem = "is not an NCCL topology: it has no <system> element"
    if problem:
        yield Finding(where, problem, fix, repr(name))


def _unreadable(path: Path) -> str | None:
    try:
        path.open("rb").close()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None
