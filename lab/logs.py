"""`python -m lab logs`: the logs of a host, or of the lab."""

from __future__ import annotations

import subprocess
from pathlib import Path

from lab.hosts import ssh
from lab.paths import LOGS, cache
from lab.topology import Host


def print_host_log(host: Host, lines: int) -> None:
    """Print the end of the host's journal over ssh; if ssh does not answer, of its console."""
    if ssh.answers(host):
        argv = ["journalctl", "--no-pager", "--boot", f"--lines={lines}"]
        subprocess.run(ssh.command(host, argv), stdin=subprocess.DEVNULL, timeout=60, check=False)
        return
    _print(LOGS / f"{host.name}.console.log", lines)


def print_lab_logs(lines: int) -> None:
    """Print the ends of the lab's own logs, and list the paths of the build logs."""
    for log in sorted(LOGS.glob("*.log")):
        _print(log, lines)
    for log in sorted((cache() / "logs").glob("*.log")):
        print(log)


def _print(log: Path, lines: int) -> None:
    print(f"== {log}")
    text = log.read_text(errors="replace") if log.exists() else "(no such file)"
    print("\n".join(text.splitlines()[-lines:]))
