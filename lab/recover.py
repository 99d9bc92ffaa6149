"""After a `pulumi up` that was killed: the file backend keeps its lock, and nobody holds it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TypeVar

from pulumi import automation as auto

Result = TypeVar("Result")

# `created by root@host (pid 4711) at 2026-...`: what the file backend says of a lock.
_HOLDER = re.compile(r"created by \S+@(?P<host>\S+) \(pid (?P<pid>\d+)\)")


def with_stale_lock_removed(stack: auto.Stack, update: Callable[[], Result]) -> Result:
    """Run `update`; where a dead process of this machine left the stack locked, unlock and run it again.

    A lock whose holder lives, or sits on another machine, is left alone and the error raised.
    """
    try:
        return update()
    except auto.errors.ConcurrentUpdateError as error:
        holders = list(_HOLDER.finditer(str(error)))
        if not holders or any(_alive(match["host"], int(match["pid"])) for match in holders):
            raise
        stack.cancel()
        return update()


def _alive(host: str, pid: int) -> bool:
    if host != os.uname().nodename:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
