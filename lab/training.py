"""`make up-training`: stacks/training on the lab's cluster, as a site would run it after `make up`."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import zstandard

from lab.engine.environment import environment
from lab.hosts import machine, ssh
from lab.images import TORCH, build_all, torch_image
from lab.paths import cache, tools
from lab.status import known_hosts
from lab.steps import LabError, run, step
from lab.topology import PROJECT, STACK, Host

STACKS_TRAINING = PROJECT / "stacks" / "training"
IMPORT_SECONDS = 300
# containerd keeps it with the image, so it is gone when the image is.
_LABEL = "busbar.lab/recipe"
_CTR = "k3s ctr images"


def bring_up() -> NoReturn:
    """Put the training image on the workers and become `busbar up`: its exit code is that of the make target.

    Raises LabError where the lab is not up.
    """
    machine.require_root()
    prepare()
    os.environ.update(environment())
    sys.stdout.flush()
    os.chdir(PROJECT)
    command = [sys.executable, "-m", "busbar", "up", STACK, "--project", str(STACKS_TRAINING)]
    os.execv(sys.executable, [*command, "--yes", "--skip-preview"])


def prepare() -> None:
    """Build the training image if it is missing, and import it on every worker that does not have it.

    A site has a registry for this. Raises LabError where a worker does not answer.
    """
    workers = [host for host in known_hosts() if host.role == "worker"]
    if silent := [host.name for host in workers if not ssh.answers(host)]:
        raise LabError(f"{', '.join(silent)} does not answer ssh: the lab is not up. Fix: `make up`")
    [archive] = build_all(cache(), tools(), only=[TORCH])
    recipe = torch_image.archive().recipe(tools())
    absent = [host for host in workers if not _has_image(host, recipe)]
    if not absent:
        return
    names = ", ".join(host.name for host in absent)
    with step(f"import {torch_image.IMAGE} on {names}"), ThreadPoolExecutor(len(absent)) as pool:
        list(pool.map(lambda host: _import(host, archive, recipe), absent))


def _has_image(host: Host, recipe: str) -> bool:
    wanted = f'name=={torch_image.IMAGE},labels."{_LABEL}"=={recipe}'
    found = run(ssh.command(host, [f"{_CTR} list --quiet '{wanted}'"]))
    return bool(found.stdout.strip())


def _import(host: Host, archive: Path, recipe: str) -> None:
    """Stream the archive, decompressed, to the host's containerd. Raises LabError."""
    script = f"{_CTR} import - && {_CTR} label {torch_image.IMAGE} {_LABEL}={recipe}"
    with (
        archive.open("rb") as packed,
        subprocess.Popen(
            ssh.command(host, [script]),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as importing,
    ):  # fmt: skip
        assert importing.stdin is not None
        try:
            zstandard.ZstdDecompressor().copy_stream(packed, importing.stdin)
            printed, _ = importing.communicate(timeout=IMPORT_SECONDS)
        except BrokenPipeError:
            printed, _ = importing.communicate(timeout=IMPORT_SECONDS)
        except subprocess.TimeoutExpired:
            importing.kill()
            raise LabError(f"{host.name}: the import of {archive.name} timed out") from None
    if importing.returncode != 0:
        said = printed.decode(errors="replace").strip()
        raise LabError(f"{host.name}: the import of {archive.name} failed: {said}")
