"""Image archives for the lab's hosts, made from packages and sources: there is no registry to pull from.

`build_all` is all that the rest of the lab needs; `python -m lab.images` does the same by hand.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from lab.images import kueue_image, multus_image, torch_image, trainer_image, training_operator_image
from lab.images.archive import write
from lab.images.catalog import Archive, archives
from lab.steps import locked, step

NAMES = tuple(archive.name for archive in archives())
TORCH, TRAINER, MULTUS = torch_image.NAME, trainer_image.NAME, multus_image.NAME
TRAINING_OPERATOR, KUEUE = training_operator_image.NAME, kueue_image.NAME
# For `make up-training`: made only if they are named.
TRAINING_NAMES = (TORCH, TRAINER, TRAINING_OPERATOR, KUEUE, MULTUS)


def build_all(cache: Path, tools: Path, *, only: Collection[str] = NAMES) -> list[Path]:
    """Make `<cache>/images/{operators,system,nccl}.tar.zst` where missing, or their recipe has changed.

    `only`: names of archives; those of TRAINING_NAMES are made only if they are named. `tools` holds the
    programs that the lab built before: `coredns`, `mpi-operator`, for TRAINING_NAMES also theirs. Returns the
    archives' paths. Raises LabError when a program is missing or a build fails.
    """
    known = (
        *archives(),
        torch_image.archive(),
        trainer_image.archive(),
        training_operator_image.archive(),
        kueue_image.archive(),
        multus_image.archive(),
    )
    return [_build(archive, cache / "images", tools) for archive in known if archive.name in only]


def _build(archive: Archive, folder: Path, tools: Path) -> Path:
    path = folder / f"{archive.name}.tar.zst"
    record = folder / f"{archive.name}.recipe"
    with locked(folder / "locks" / archive.name):
        recipe = archive.recipe(tools)
        if path.is_file() and record.is_file() and record.read_text() == recipe:
            return path
        work = folder / "work"
        work.mkdir(parents=True, exist_ok=True)
        images = archive.images(work, tools)
        with step(f"image archive {path.name}: {', '.join(image.name for image in images)}"):
            record.unlink(missing_ok=True)
            write(images, path)
            record.write_text(recipe)
    return path
