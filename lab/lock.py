"""One at a time, between processes: a lock that a killed holder does not leave behind."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.steps import LabError, say

DEADLINE_SECONDS = 3600


@contextmanager
def locked(path: Path, *, deadline: float = DEADLINE_SECONDS) -> Iterator[None]:
    """Hold the lock file `path`; waits at most `deadline` seconds for another holder (LabError)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        until = time.monotonic() + deadline
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise LabError(
                        f"another process held {path} for {deadline:.0f} s: see `fuser {path}`"
                    ) from None
                if not told:
                    say(f"waiting for another lab command (it holds {path})")
                    told = True
                time.sleep(0.2)
        yield
