"""What a killed update leaves behind: the lock of the file backend, and steps recorded as pending."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from pulumi import automation as auto

from busbar.cli.stack.engine import Snapshot
from busbar.cli.stack.engine_texts import LOCK_HOLDER, PENDING, PENDING_STEP

Result = TypeVar("Result")


def without_stale_lock(stack: auto.Stack, say: Callable[[str], None], update: Callable[[], Result]) -> Result:
    """Run `update`. If a dead process of this machine left the stack locked, unlock it and repeat.

    If a holder is alive or on another machine, the lock stays and ConcurrentUpdateError is raised.
    """
    try:
        return update()
    except auto.ConcurrentUpdateError as error:
        holders = [(match["host"], int(match["pid"])) for match in LOCK_HOLDER.finditer(str(error))]
        if not holders or any(_may_live(host, pid) for host, pid in holders):
            raise
        pids = ", ".join(str(pid) for _, pid in holders)
        say(f"removed the lock of an update that was killed (process {pids})")
        stack.cancel()
        return update()


def _may_live(host: str, pid: int) -> bool:
    if host != os.uname().nodename:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether the process has ended and nobody waits for it: process 1 of a container may not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (OSError, IndexError):  # not Linux, or gone since
        return False
    return state in "ZX"


def interrupted_steps(warning: str) -> tuple[tuple[str, str], ...]:
    """(URN, kind) of the steps in the engine's warning of pending steps; empty for any other text.

    The kind is the engine's: creating, updating, deleting, ...
    """
    if not PENDING.search(warning):
        return ()
    return tuple((match["urn"], match["kind"]) for match in PENDING_STEP.finditer(warning))


def is_completed(state: Snapshot) -> bool:
    """True if the state has pending creations and each of them has been made since."""
    resources = set(state.resources)
    return bool(state.pending) and all(kind == "creating" and urn in resources for urn, kind in state.pending)


def forget_completed(stack: auto.Stack, state: Snapshot) -> Collection[str]:
    """Drop the records of interrupted creations that a later update has completed; returns their URNs.

    The engine keeps these records after that update and warns of them each time. A creation that was not
    completed keeps its record: what it made may exist outside the state. Raises CommandError.
    """
    if not is_completed(state) or state.root is None:
        return ()
    # The target is the stack's own resource, so that no provider is asked and no other resource changes.
    stack.refresh(
        clear_pending_creates=True,
        target=[state.root],
        suppress_progress=True,
        color="never",
        show_secrets=False,
    )
    return [urn for urn, _ in state.pending]
