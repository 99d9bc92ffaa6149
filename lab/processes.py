"""Processes of the lab, remembered so that exactly these can be ended, also by a later command.

A pid alone may belong to somebody else by now: a record holds the process's start time too, and ends nothing
whose start time differs.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """One process of this machine; `started`: clock ticks since boot (proc(5), stat field 22)."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this pid now; None where there is none, or where it is a zombie."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = text.rpartition(")")[2].split()  # the name before it may hold blanks and parentheses
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        """True while this very process runs."""
        return Process.of(self.pid) == self

    def end(self, *, grace: float = 5.0) -> None:
        """SIGTERM, after `grace` seconds SIGKILL; returns when it is gone, TimeoutError if it never goes."""
        for how, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
            if patience and self.alive:
                os.kill(self.pid, how)
                if self.gone_within(patience):
                    return
        if self.alive:
            raise TimeoutError(f"process {self.pid} outlived SIGKILL")

    def gone_within(self, seconds: float) -> bool:
        """Wait until it is gone, at most that long; False when it still runs then."""
        until = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > until:
                return False
            _reap(self.pid)
            time.sleep(0.02)
        return True


def remember(path: Path, process: Process) -> None:
    """Write the record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(process)))


def recall(path: Path) -> Process | None:
    """The recorded process where it still runs; None otherwise, also for a record that a crash cut short."""
    try:
        process = Process(**json.loads(path.read_text()))
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None
    return process if process.alive else None


def find(program: str, *words: str) -> list[Process]:
    """Running processes of `program` whose command line holds all these words."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            arguments = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if Path(arguments[0]).name == program and all(word in arguments for word in words):
            process = Process.of(int(folder.name))
            if process is not None:
                found.append(process)
    return found


def _reap(pid: int) -> None:
    """Take the exit status of a child of ours, so that it does not stay as a zombie."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
