"""`python -m lab down`: remove every trace, also after a crash and also when nothing is there."""

from __future__ import annotations

import shutil

from lab import cgroups, host, machine, mirror, network, processes
from lab.lock import locked
from lab.paths import HOSTS, RUN, cache
from lab.steps import LabError
from lab.topology import BRIDGE


def down() -> list[str]:
    """Remove hosts, mounts, cgroups, mirror, network, run state; returns what was removed, in words.

    Raises LabError when something is left behind.
    """
    machine.require_root()
    with locked(cache() / "locks" / "lab"):
        removed = mirror.stop()
        names = {path.name for path in HOSTS.iterdir()} if HOSTS.is_dir() else set()
        for name in sorted(names):
            removed += host.stop(HOSTS / name)
        # Hosts whose files were deleted under them: only the command line still tells that they are the lab's.
        for process in processes.find("systemd-nspawn", f"--network-bridge={BRIDGE}"):
            process.end(grace=0)
            removed.append(f"host without files (process {process.pid})")
        if cgroups.remove():
            removed.append("cgroups")
        removed += network.down()
        if RUN.exists():
            shutil.rmtree(RUN)
            removed.append(f"{RUN} (ssh key, logs, stack state)")
        if network.bridge_exists() or RUN.exists():
            raise LabError(f"{BRIDGE} or {RUN} is still there: see `ip link` and `findmnt`")
    return removed
