"""ssh to the lab's hosts, with the run state's key and the pinned host keys."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from lab.paths import KNOWN_HOSTS, SSH_KEY
from lab.topology import Host


def command(host: Host, argv: Sequence[str] = (), *, user: str = "root") -> list[str]:
    """The ssh command line for a shell, or for `argv`, on the host."""
    return [
        "ssh",
        "-i",
        str(SSH_KEY),
        "-o",
        "IdentitiesOnly=yes",
        "-o",
        f"UserKnownHostsFile={KNOWN_HOSTS}",
        "-o",
        "GlobalKnownHostsFile=/dev/null",
        "-o",
        "StrictHostKeyChecking=yes",
        "-o",
        "ConnectTimeout=5",
        "-o",
        "LogLevel=ERROR",  # without the hosts' banner
        *(("-o", "SetEnv=BUSBAR_LAB_QUIET=1") if argv else ()),
        f"{user}@{host.address}",
        *argv,
    ]


def answers(host: Host) -> bool:
    """True when the host runs a command over ssh."""
    try:
        return subprocess.run(
            command(host, ["true"]), stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
        ).returncode == 0  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
