"""What a built thing was made from, as a short hash: the same recipe is not built twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def key(*parts: str | bytes | Path) -> str:
    """A short hash over texts, bytes, files and folders (names and contents, no hidden or built ones)."""
    digest = hashlib.sha256()
    for part in parts:
        for piece in _pieces(part):
            digest.update(len(piece).to_bytes(8, "big") + piece)
    return digest.hexdigest()[:16]


def lines(path: Path) -> list[str]:
    """The lines of a list file, without comments and empty ones."""
    every = (line.strip() for line in path.read_text().splitlines())
    return [line for line in every if line and not line.startswith("#")]


def _pieces(part: str | bytes | Path) -> Iterable[bytes]:
    if isinstance(part, bytes):
        yield part
    elif isinstance(part, str):
        yield part.encode()
    elif part.is_dir():
        for path in sorted(part.rglob("*")):
            inside = path.relative_to(part)
            if path.is_file() and not any(name.startswith((".", "__", "build")) for name in inside.parts):
                yield str(inside).encode()
                yield path.read_bytes()
    else:
        yield part.read_bytes()
