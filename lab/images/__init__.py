"""Image archives for the lab's hosts, made from packages and sources: there is no registry to pull from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lab.images.archive import write
from lab.images.catalog import Archive, archives
from lab.steps import locked, step


def build_all(cache: Path, tools: Path, wanted: Iterable[Archive] | None = None) -> list[Path]:
    """Make `<cache>/images/<name>.tar.zst` of each archive where it is missing, or its recipe has changed.

    `wanted`: without it those of `make up`. `tools` holds the programs in them, which the lab built before.
    Returns the archives' paths. Raises LabError when a build fails.
    """
    return [_build(each, cache / "images", tools) for each in (archives() if wanted is None else wanted)]


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
