"""One image with Multus, whereabouts and CNI plugins: the real programs, built from their Go modules."""

from __future__ import annotations

from pathlib import Path

from lab.build.recipe import key
from lab.images.archive import File, Image
from lab.images.catalog import Archive
from stacks.training.lab.tools import CNI_PLUGINS

NAME = "multus"
IMAGE = "docker.io/busbar-lab/multus:1"
_PROGRAMS = ("multus", "thin_entrypoint", "whereabouts", "install-whereabouts", *CNI_PLUGINS)


def archive() -> Archive:
    """The archive, as those of catalog.py. `tools` must hold the programs."""
    return Archive(NAME, _recipe, _images)


def _recipe(tools: Path) -> str:
    return key(IMAGE, *_PROGRAMS, *(tools / program for program in _PROGRAMS))


def _images(work: Path, tools: Path) -> list[Image]:
    files = {program: File(tools / program, 0o755) for program in _PROGRAMS}
    return [Image(IMAGE, files=files, folders=("tmp",), entrypoint=("/thin_entrypoint",))]
