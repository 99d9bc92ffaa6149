"""Processes of the lab, recorded in files so that a later command can end exactly these.

A pid can be reused by another program. A record therefore also holds the process's start time, and psutil
compares start times before it sends a signal.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil

# psutil computes a start time from the boot time, which moves when the clock is adjusted.
_SAME_START_SECONDS = 2.0
_POLL_SECONDS = 0.02
_KILL_SECONDS = 10.0


def record(path: Path, pid: int) -> None:
    """Write the record of the running process `pid`; writes nothing if it has ended."""
    try:
        started = psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"pid": pid, "started": started}))


def recorded(path: Path) -> psutil.Process | None:
    """The recorded process if it still runs; None otherwise, also for a truncated record."""
    try:
        content = json.loads(path.read_text())
        process = psutil.Process(int(content["pid"]))
        same = abs(process.create_time() - float(content["started"])) <= _SAME_START_SECONDS
    except (FileNotFoundError, json.JSONDecodeError, KeyError, TypeError, ValueError, psutil.NoSuchProcess):
        return None
    return process if same and runs(process) else None


def find(program: str, *arguments: str) -> list[psutil.Process]:
    """Running processes of `program` whose command line contains all these arguments."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        argv = process.info["cmdline"] or [""]
        if Path(argv[0]).name == program and set(arguments) <= set(argv) and runs(process):
            found.append(process)
    return found


def runs(process: psutil.Process) -> bool:
    """True while this very process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def ends_within(process: psutil.Process, seconds: float) -> bool:
    """Wait up to `seconds` for the process to end; False if it still runs then."""
    until = time.monotonic() + seconds
    while runs(process):
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def end(process: psutil.Process, *, grace: float = 5.0) -> None:
    """SIGTERM, after `grace` seconds SIGKILL (0: SIGKILL at once). Returns when the process has ended.

    Raises TimeoutError if it still runs 10 s after SIGKILL.
    """
    try:
        if grace:
            process.terminate()
            if ends_within(process, grace):
                return
        process.kill()
    except psutil.NoSuchProcess:
        return
    if not ends_within(process, _KILL_SECONDS):
        raise TimeoutError(f"process {process.pid} still runs {_KILL_SECONDS:.0f} s after SIGKILL")
