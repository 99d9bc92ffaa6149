"""`python -m lab down`: remove every trace, also after a crash and also when nothing is there."""

from __future__ import annotations

import shutil

from lab.hosts import cgroups, machine, network, nspawn
from lab.mirror import server
from lab.paths import HOSTS, RUN, cache
from lab.steps import LabError, locked, log_line
from lab.topology import BRIDGE, PROJECT


def down() -> list[str]:
    """Remove hosts, mounts, cgroups, mirror, network, run state; prints and returns what was removed.

    Raises LabError when something is left, and when the lab belongs to another checkout.
    """
    machine.require_root()
    with locked(cache() / "locks" / "lab"):
        refuse_other_checkouts_lab()
        removed: list[str] = []

        def note(*things: str) -> None:
            for thing in things:
                log_line(f"removed {thing}")
                removed.append(thing)

        note(*server.stop())
        names = {path.name for path in HOSTS.iterdir()} if HOSTS.is_dir() else set()
        for name in sorted(names):
            if parts := nspawn.stop(HOSTS / name):
                note(f"host {name}: {', '.join(parts)}")
        # Hosts whose files were deleted while they ran are recognised by their cgroups.
        if cgroups.kill():
            note("hosts without files")
        if cgroups.remove():
            note("cgroups")
        note(*network.down())
        if RUN.exists():
            shutil.rmtree(RUN)
            note(f"{RUN}: ssh key, logs, stack state")
        if network.bridge_exists() or RUN.exists():
            raise LabError(f"{BRIDGE} or {RUN} could not be removed: see `ip link` and `findmnt`")
    return removed


def refuse_other_checkouts_lab() -> None:
    """Bridge and cgroups are the machine's. Raises LabError while the checkout that created them exists."""
    owner = network.owner()
    if owner is not None and owner != PROJECT and (owner / RUN.name).is_dir():
        raise LabError(
            f"the lab on this machine belongs to the checkout {owner}; nothing was removed. "
            f"Fix: run `make down` in {owner}"
        )
