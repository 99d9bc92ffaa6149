"""Repairs files of a file backend after a full disk or a crash: empty locks, and a truncated state.

The engine writes a file under a temporary name and renames it. Where writing fails, the temporary file stays,
empty, and every later update takes it for a lock (pulumi pkg/backend/diy/lock.go, checkForLock).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from urllib.parse import unquote, urlsplit

from pulumi import automation as auto

# A lock that stays empty for this time, in seconds, is not being written.
SETTLE_SECONDS = 3


@dataclass(frozen=True)
class StateFiles:
    """The files of one stack below `folder`, the `.pulumi` of the backend."""

    folder: Path
    project: str
    stack: str

    @classmethod
    def of(cls, workspace: auto.Workspace, stack: str) -> StateFiles | None:
        """The state files of the selected backend; None if it is not a folder. Raises CommandError."""
        folder = folder_of(workspace.who_am_i().url or "", Path(str(workspace.work_dir)))
        name = stack.rpartition("/")[2]
        return cls(folder, workspace.project_settings().name, name) if folder else None

    def remove_empty_locks(self) -> list[Path]:
        """Remove empty locks that are not being written, and return them.

        A writer that was stopped for all that time fails when it renames its file, and changes nothing.
        """
        if before := self._empty_locks():
            time.sleep(SETTLE_SECONDS)
        settled = sorted(path for path, *_ in before & self._empty_locks())
        for path in settled:
            path.unlink(missing_ok=True)
        return settled

    def _empty_locks(self) -> set[tuple[Path, int, int]]:
        """Path, inode and time of change of each empty lock."""
        folder = self.folder / "locks/organization" / self.project / self.stack
        found = ((path, path.stat()) for path in folder.glob("*.json*") if path.suffix != ".attrs")
        try:
            return {(path, stat.st_ino, stat.st_mtime_ns) for path, stat in found if stat.st_size == 0}
        except FileNotFoundError:  # an update has just ended, and with it its lock
            return set()

    def repair(self) -> str | None:
        """The commands that repair an unreadable state; None if it can be read, or is not a plain file."""
        state = self.folder / "stacks" / self.project / f"{self.stack}.json"
        attributes, last, aside = (
            state.with_name(state.name + end) for end in (".attrs", ".bak", ".truncated")
        )
        if not state.is_file() or _is_whole(state):
            if _is_whole(attributes) or not attributes.exists():
                return None
            return f"`rm {quote(str(attributes))}`; the file is truncated, and the engine does without it."
        kept = (self.folder / "backups" / self.project / self.stack).glob("*.json")
        whole = [path for path in (last, *kept) if _is_whole(path)]
        if not whole:
            return f"{state} is truncated and has no backup: see docs/sites.md, A lost state file."
        newest = max(whole, key=lambda path: path.stat().st_mtime)
        written = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(newest.stat().st_mtime))
        old, new, kept_as = (quote(str(path)) for path in (state, newest, aside))
        # Not moved: without the file, where the second command fails, an update would create the stack anew.
        return f"`cp {old} {kept_as} && cp {new} {old}` restores the backup of {written}; then `busbar up`."


def _is_whole(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return True


def folder_of(url: str, cwd: Path) -> Path | None:
    """The folder `.pulumi` of a file backend; None for any other. `cwd`: the engine's working directory."""
    parts = urlsplit(url)
    if parts.scheme != "file":
        return None
    return cwd / Path(unquote(parts.netloc + parts.path)).expanduser() / ".pulumi"
