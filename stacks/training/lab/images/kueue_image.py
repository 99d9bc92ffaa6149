"""The image of Kueue's controller: the real program, built from its Go module."""

from __future__ import annotations

from pathlib import Path

from lab.build.recipe import key
from lab.images import binaries
from lab.images.archive import File, Image
from lab.images.catalog import Archive
from stacks.training.package.versions import KUEUE

NAME = PROGRAM = "kueue"
# The release has this one: the chart in the Go module names a build from its branch.
REPOSITORY = "registry.k8s.io/kueue/kueue"
IMAGE = f"{REPOSITORY}:v{KUEUE}"
# Its Dockerfile has this user.
_USER = "65532:65532"


def archive() -> Archive:
    """The archive, as those of catalog.py. `tools` must hold the program."""
    return Archive(NAME, lambda tools: key(IMAGE, _USER, binaries.static(tools / PROGRAM)), _images)


def _images(work: Path, tools: Path) -> list[Image]:
    manager = File(binaries.static(tools / PROGRAM), 0o755)
    return [Image(IMAGE, files={"manager": manager}, folders=("tmp",), entrypoint=("/manager",), user=_USER)]
