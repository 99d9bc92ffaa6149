"""The image of Training Operator v1's controller: the real program, built from its Go module."""

from __future__ import annotations

from pathlib import Path

from lab.build.recipe import key
from lab.images.archive import File, Image
from lab.images.catalog import Archive
from stacks.training.package.versions import TRAINING_OPERATOR_IMAGE

NAME = PROGRAM = "training-operator"
IMAGE = TRAINING_OPERATOR_IMAGE
_USER = "65532:65532"


def archive() -> Archive:
    """The archive, as those of catalog.py. `tools` must hold the program."""
    return Archive(NAME, lambda tools: key(IMAGE, _USER, tools / PROGRAM), _images)


def _images(work: Path, tools: Path) -> list[Image]:
    manager = File(tools / PROGRAM, 0o755)
    return [Image(IMAGE, files={"manager": manager}, folders=("tmp",), entrypoint=("/manager",), user=_USER)]
