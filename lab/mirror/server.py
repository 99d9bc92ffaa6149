"""The artifact mirror: an HTTP server on the bridge that serves the hosts what a site's mirror would.

`python -m lab.mirror.server FOLDER` serves; `start` and `stop` run that as a process of its own.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil

from lab.hosts import processes
from lab.paths import ARTIFACTS, LOGS, RUN
from lab.steps import LabError
from lab.topology import GATEWAY, MIRROR_PORT, MIRROR_URL, PROJECT

DEADLINE_SECONDS = 10
_RECORD = RUN / "mirror.json"


def running() -> psutil.Process | None:
    """The mirror's process; None if it does not run."""
    return processes.recorded(_RECORD)


def start() -> None:
    """Start the mirror if it does not run, and wait until it answers. Raises LabError after 10 s."""
    if running() and _answers():
        return
    stop()
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    with (LOGS / "mirror.log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "lab.mirror.server", str(ARTIFACTS)],
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    processes.record(_RECORD, child.pid)
    until = time.monotonic() + DEADLINE_SECONDS
    while not _answers():
        if child.poll() is not None or time.monotonic() > until:
            raise LabError(
                f"the artifact mirror on {MIRROR_URL} timed out or ended: see {LOGS / 'mirror.log'}"
            )
        time.sleep(0.05)


def stop() -> list[str]:
    """End the mirror, also one without a record after a crash; returns what was ended."""
    recorded = processes.recorded(_RECORD)
    orphans = processes.find(Path(sys.executable).name, "lab.mirror.server", str(ARTIFACTS))
    removed = []
    for process in {*orphans, *([recorded] if recorded else [])}:
        processes.end(process)
        removed.append(f"artifact mirror (process {process.pid})")
    _RECORD.unlink(missing_ok=True)
    return removed


def serve(folder: Path) -> None:
    """Serve `folder` until the process is ended."""
    handler = partial(_Handler, directory=str(folder))
    with ThreadingHTTPServer((GATEWAY, MIRROR_PORT), handler) as server:
        server.serve_forever()


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"


def _answers() -> bool:
    connection = http.client.HTTPConnection(GATEWAY, MIRROR_PORT, timeout=2)
    try:
        connection.request("HEAD", "/")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
