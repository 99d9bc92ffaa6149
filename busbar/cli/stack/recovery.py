"""Recovery after a killed update or a full disk: locks, pending steps, a truncated state."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from pulumi import automation as auto

from busbar.cli.stack.engine import Snapshot
from busbar.cli.stack.errors import LOCK_HOLDER, LOST, PENDING, PENDING_STEP, TRUNCATED
from busbar.finding import STACK

Result = TypeVar("Result")

# A lock that stays empty for this time, in seconds, is not being written.
SETTLE_SECONDS = 3


def without_stale_lock(stack: auto.Stack, say: Callable[[str], None], update: Callable[[], Result]) -> Result:
    """Run `update`. If a dead process of this machine left the stack locked, unlock it and repeat.

    An empty lock, which a full disk causes, is removed. Raises ConcurrentUpdateError if a holder is alive, as
    the engine of a busbar that was killed, or on another machine.
    """
    try:
        return update()
    except auto.ConcurrentUpdateError as error:
        holders = [match.groupdict() for match in LOCK_HOLDER.finditer(str(error))]
        here = os.uname().nodename
        if not holders or any(each["host"] != here or _lives(int(each["pid"])) for each in holders):
            raise
        pids = ", ".join(holder["pid"] for holder in holders)
        say(f"removed the lock of an update that was killed (process {pids})")
        stack.cancel()
        return update()
    except auto.CommandError as error:
        files = StateFiles.of(stack.workspace, stack.name) if TRUNCATED.search(str(error)) else None
        if not (removed := files.remove_empty_locks() if files else []):
            raise
        for path in removed:
            say(f"removed an empty lock: {path}")
        return without_stale_lock(stack, say, update)


def _lives(pid: int) -> bool:
    """Whether the process is running; a zombie, as process 1 of a container may leave it, is not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:  # not Linux, or gone since
        return True
    return state not in ("Z", "X")


def interrupted_steps(warning: str) -> tuple[tuple[str, str], ...]:
    """(URN, kind: creating, updating, ...) of the steps in the engine's warning; empty for any other text."""
    if not PENDING.search(warning):
        return ()
    return tuple((match["urn"], match["kind"]) for match in PENDING_STEP.finditer(warning))


def forget_completed(stack: auto.Stack, state: Snapshot) -> None:
    """Drop the records of interrupted creations, if a later update has completed each of them.

    The engine keeps these records after that update and warns of them each time. A creation that was not
    completed keeps its record: what it made may exist outside the state. Raises CommandError.
    """
    resources = set(state.resources)
    if not state.pending or any(kind != "creating" or urn not in resources for urn, kind in state.pending):
        return
    # The target is the stack's own resource, so that no provider is asked and no other resource changes.
    stack.refresh(
        clear_pending_creates=True,
        target=[urn for urn in state.resources if "::pulumi:pulumi:Stack::" in urn],
        suppress_progress=True,
        color="never",
        show_secrets=False,
    )


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
        attrs, last, aside = (state.with_name(state.name + end) for end in (".attrs", ".bak", ".truncated"))
        if not state.is_file() or _is_whole(state):
            if _is_whole(attrs) or not attrs.exists():
                return None
            return f"`rm {quote(str(attrs))}`; the file is truncated, and the engine does without it."
        kept = (self.folder / "backups" / self.project / self.stack).glob("*.json")
        whole = [path for path in (last, *kept) if _is_whole(path)]
        if not whole:
            return f"{state} is truncated and has no backup: {LOST}"
        newest = max(whole, key=lambda path: path.stat().st_mtime)
        written = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(newest.stat().st_mtime))
        old, new, kept_as = (quote(str(path)) for path in (state, newest, aside))
        # Not moved: without the file, where the second command fails, an update would create the stack anew.
        restore = f"`cp {old} {kept_as} && cp {new} {old}` restores the backup of {written}"
        return f"{restore}; then `busbar up {STACK}`."


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
