"""`python -m lab up`: boots the hosts, from nothing or from an incomplete state, until they answer ssh."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lab import topology
from lab.capabilities import hosts_of_capabilities
from lab.engine import environment
from lab.everything import in_background
from lab.hosts import keys, machine, network, nspawn, ssh
from lab.hosts.rootfs import BASE
from lab.mirror import artifacts, server
from lab.paths import KNOWN_HOSTS, LOGS, RUN, SSH_KEY, cache
from lab.steps import LabError, locked, log_line, step
from lab.topology import BRIDGE, GATEWAY, MIRROR_URL, Host

SSH_DEADLINE_SECONDS = 60


def up(hosts: Sequence[Host]) -> None:
    """Bring the lab up: prepared machine, tools, artifacts, network, mirror, booted hosts. Safe to run again.

    Raises LabError with the step that failed, the reason and the fix.
    """

    def built() -> Path:
        with in_background():
            base = BASE.ensure()
        artifacts.publish()
        return base

    boot(hosts, built)


def boot(hosts: Sequence[Host], build: Callable[[], Path]) -> None:
    """Boot those of `hosts` that are off over the base that `build` returns, until they answer ssh.

    Raises LabError as `up`.
    """
    machine.require_root()
    with locked(cache() / "locks" / "lab"):
        machine.prepare()
        _refuse_other_checkouts_lab()
        base = build()
        RUN.mkdir(exist_ok=True)
        environment.environment()
        _network()
        _boot(hosts, base)


def _refuse_other_checkouts_lab() -> None:
    """One lab per machine: the bridge's name and addresses are constants."""
    if network.bridge_exists() and not network.made_here():
        raise LabError(
            f"this machine has a bridge {BRIDGE} that this checkout did not make: another checkout's lab "
            "is up, or its files were deleted. Fix: run `python -m lab down` there; if it is gone, here"
        )


def _network() -> None:
    if not network.is_up():
        with step(f"bridge {BRIDGE} {GATEWAY}, NAT"):
            network.up()
    if not server.running():
        with step(f"artifact mirror {MIRROR_URL}"):
            server.start()


def _boot(hosts: Sequence[Host], base: Path) -> None:
    client_key = keys.ensure_client_key(SSH_KEY)
    own = tuple(hosts_of_capabilities())
    KNOWN_HOSTS.write_text(
        "".join(
            f"{h.address} {keys.public_line(keys.host_key(h.name))}\n" for h in (*topology.every_host(), *own)
        )
    )
    absent = [h for h in hosts if not nspawn.usable(h)]
    if absent:
        with step(f"boot {', '.join(h.name for h in absent)}"):
            for h in absent:
                nspawn.boot(h, base, client_key, () if h.for_k3s else own)
    waiting = [h for h in hosts if h in absent or not ssh.answers(h)]
    if not waiting:
        log_line(f"the lab is up: {', '.join(h.name for h in hosts)}")
        return
    with step("wait for ssh on every host"):
        _wait_for_ssh(waiting)


def _wait_for_ssh(hosts: Sequence[Host]) -> None:
    """Wait until every host answers; raises LabError with the names of those that do not in time."""
    until = time.monotonic() + SSH_DEADLINE_SECONDS
    waiting = list(hosts)
    while waiting:
        for h in waiting:
            if not nspawn.running(h):
                raise LabError(f"{h.name} ended during its boot: see {LOGS}/{h.name}.console.log")
        waiting = [h for h in waiting if not ssh.answers(h)]
        if waiting and time.monotonic() > until:
            names = ", ".join(h.name for h in waiting)
            raise LabError(
                f"ssh to {names} timed out after {SSH_DEADLINE_SECONDS} s; "
                f"see {LOGS}/{waiting[0].name}.console.log"
            )
        if waiting:
            time.sleep(0.2)
