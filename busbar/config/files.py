"""Checks of the files that the configuration names: they exist and have the expected content."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from busbar.config.cluster import Cluster
from busbar.config.errors import Finding, KeyPath
from busbar.config.operators import Chart
from busbar.config.ssh import Ssh
from busbar.text import counted

CONFIG_MAP_BYTES = 1_000_000
"""Kubernetes allows 1 MiB for the whole object."""


def resolve(root: Path, name: str) -> Path:
    """A path of the configuration: `~` is the home folder; relative paths start at the project folder."""
    return root / Path(name).expanduser()


def unusable(cluster: Cluster, root: Path) -> Iterator[Finding]:
    """Yield one finding per file that is not usable; `root` is the project folder."""
    yield from ssh_key(cluster.ssh, root)
    gpus = 0
    for name, pool in cluster.pools.items():
        if pool.validation and pool.validation.topology_file:
            where = ("pools", name, "validation", "topology_file")
            yield from _topology(root, pool.validation.topology_file, where, pool.gpus)
        else:
            gpus = max(gpus, pool.gpus)
    if file := cluster.validation.topology_file:
        yield from _topology(root, file, ("validation", "topology_file"), gpus)
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


def _topology(root: Path, name: str, where: KeyPath, gpus: int) -> Iterator[Finding]:
    """The pods mount the file from a ConfigMap, which limits its name and size. It may name no GPU at all,
    which NCCL then adds, but not some of them only."""
    path, fix = resolve(root, name), ""
    if not (problem := _unreadable(path)):
        if not re.fullmatch(r"[-._A-Za-z0-9]{1,253}", path.name):
            problem, fix = "is not a file name for a ConfigMap", "use A-Z a-z 0-9 . _ - only"
        elif path.stat().st_size > CONFIG_MAP_BYTES:
            problem = f"has {path.stat().st_size} bytes; a ConfigMap holds at most {CONFIG_MAP_BYTES}"
        else:
            problem, fix = _not_of(path, gpus)
    if problem:
        yield Finding(where, problem, fix, repr(name))


def _not_of(path: Path, gpus: int) -> tuple[str, str]:
    """The problem of a topology file of hosts with so many GPUs, and the fix; both empty without one."""
    from xml.etree import ElementTree

    try:
        system = ElementTree.fromstring(path.read_bytes())
    except ElementTree.ParseError as error:
        return f"is not XML: {error}", "take the whole file from its source: xmllint --noout FILE"
    if system.tag != "system":
        return "is not an NCCL topology: its outermost element is not <system>", ""
    # PCI class 03: VGA and 3D controllers.
    found = sum(each.get("class", "").startswith("0x03") for each in system.iter("pci"))
    if 0 < found < gpus:
        return (
            f"has {counted(found, 'GPU')}, expected {gpus}",
            "use the file of this type of host, or correct gpus",
        )
    return "", ""


def _unreadable(path: Path) -> str | None:
    try:
        path.open("rb").close()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None
