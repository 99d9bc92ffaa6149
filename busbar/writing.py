"""Files that are replaced as a whole: a reader sees the former or the new text, never a part."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file with these permissions, less the umask, and make its folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    # A file that a killed process with the same number has left would keep its permissions.
    new.unlink(missing_ok=True)
    new.touch(mode)
    new.write_text(text, encoding="utf-8")
    new.replace(path)
