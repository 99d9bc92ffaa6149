"""Image archives into the containerd of hosts that run: what a capability brings after `make up`."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import zstandard

from lab.hosts import ssh
from lab.images import build_all
from lab.images.catalog import Archive
from lab.paths import cache, tools
from lab.status import known_hosts
from lab.steps import LabError, run, step
from lab.topology import Host

IMPORT_SECONDS = 300
# containerd keeps it with the image, so it is gone when the image is.
_LABEL = "busbar.lab/recipe"
_CTR = "k3s ctr images"


def k3s_hosts() -> list[Host]:
    """The servers and workers. Raises LabError where one of them does not answer."""
    found = [host for host in known_hosts() if host.role in ("server", "worker")]
    if silent := [host.name for host in found if not ssh.answers(host)]:
        raise LabError(f"{', '.join(silent)} does not answer ssh: the lab is not up. Fix: `make up`")
    return found


def import_where_absent(archive: Archive, image: str, hosts: Sequence[Host]) -> None:
    """Build the archive and import it on the hosts that lack `image`, one of its images, in this version.

    Raises LabError.
    """
    [path] = build_all(cache(), tools(), [archive])
    recipe = archive.recipe(tools())
    absent = [host for host in hosts if not _has(host, image, recipe)]
    if not absent:
        return
    names = ", ".join(host.name for host in absent)
    with step(f"import {path.name} on {names}"), ThreadPoolExecutor(len(absent)) as pool:
        list(pool.map(lambda host: _import(host, path, image, recipe), absent))


def _has(host: Host, image: str, recipe: str) -> bool:
    wanted = f'name=={image},labels."{_LABEL}"=={recipe}'
    return bool(run(ssh.command(host, [f"{_CTR} list --quiet '{wanted}'"])).stdout.strip())


def _import(host: Host, archive: Path, image: str, recipe: str) -> None:
    """Stream the archive, decompressed, to the host's containerd. Raises LabError."""
    script = f"{_CTR} import - && {_CTR} label {image} {_LABEL}={recipe}"
    with (
        archive.open("rb") as packed,
        subprocess.Popen(
            ssh.command(host, [script]),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as importing,
    ):  # fmt: skip
        assert importing.stdin is not None
        # Where it has ended early, it says why.
        with contextlib.suppress(BrokenPipeError):
            zstandard.ZstdDecompressor().copy_stream(packed, importing.stdin)
        try:
            printed, _ = importing.communicate(timeout=IMPORT_SECONDS)
        except subprocess.TimeoutExpired:
            importing.kill()
            raise LabError(
                f"{host.name}: the import of {archive.name} timed out after {IMPORT_SECONDS} s"
            ) from None
    if importing.returncode != 0:
        said = printed.decode(errors="replace").strip()
        raise LabError(f"{host.name}: the import of {archive.name} failed: {said}")
