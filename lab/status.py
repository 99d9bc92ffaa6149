"""`python -m lab status`."""

from __future__ import annotations

from rich.table import Table

from lab import simulated
from lab.capabilities import hosts_of_capabilities
from lab.hosts import network, nspawn, ssh
from lab.mirror import server
from lab.paths import HOSTS
from lab.steps import CONSOLE
from lab.topology import BRIDGE, MIRROR_URL, Host, every_host, hosts


def known_hosts() -> tuple[Host, ...]:
    """The hosts with files in the run state, in the order of their boot; the default hosts if none."""
    names = {path.name for path in HOSTS.iterdir()} if HOSTS.is_dir() else set()
    if not names:
        return hosts()
    return tuple(h for h in (*every_host(), *hosts_of_capabilities()) if h.name in names)


def show() -> bool:
    """Print a table of the lab's parts; True when all of them run."""
    table = Table(box=None, pad_edge=False)
    for title in ("part", "address", "state"):
        table.add_column(title)
    ok = True
    for h in known_hosts():
        process = nspawn.running(h)
        answers = process is not None and ssh.answers(h)
        ok = ok and answers
        state = "stopped" if process is None else "answers ssh" if answers else "running, no ssh yet"
        table.add_row(h.name, h.address, f"{state} (process {process.pid})" if process else state)
    for name, address, runs in (
        (f"bridge {BRIDGE}, NAT", "", network.is_up()),
        ("artifact mirror", MIRROR_URL, server.running() is not None),
    ):
        ok = ok and runs
        table.add_row(name, address, "up" if runs else "down")
    CONSOLE.print(table)
    CONSOLE.print("simulated or replaced:")
    for name, reason in simulated.parts().items():
        CONSOLE.print(f"  {name}: {reason}", style="dim")
    return ok
