"""Images of Trainer's and JobSet's controllers: the real programs, built from their Go modules."""

from __future__ import annotations

from pathlib import Path

from lab.build.recipe import key
from lab.images.archive import File, Image
from lab.images.catalog import Archive

NAME = "trainer"
# The name in Trainer's chart, and that of JobSet's releases: its chart names a build from its main branch.
IMAGE = "ghcr.io/kubeflow/trainer/trainer-controller-manager:v2.3.0"
JOBSET = "registry.k8s.io/jobset/jobset:v0.12.0"
# Their Dockerfiles have this user; the charts ask for any user but root.
_USER = "65532:65532"
_PROGRAMS = {IMAGE: "trainer-controller-manager", JOBSET: "jobset"}


def archive() -> Archive:
    """The archive, as those of catalog.py. `tools` must hold both programs."""
    return Archive(NAME, _recipe, _images)


def _recipe(tools: Path) -> str:
    programs = [tools / program for program in _PROGRAMS.values()]
    return key(IMAGE, JOBSET, _USER, *programs)


def _images(work: Path, tools: Path) -> list[Image]:
    return [
        Image(
            name,
            files={"manager": File(tools / program, 0o755)},
            folders=("tmp",),
            entrypoint=("/manager",),
            user=_USER,
        )
        for name, program in _PROGRAMS.items()
    ]
