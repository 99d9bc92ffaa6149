"""`make up`: the lab's hosts, then `busbar up` on stack dev, as a site would run it on its own machines."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from lab import simulated
from lab.engine.environment import environment
from lab.steps import CONSOLE
from lab.topology import PROJECT, STACK, hosts
from lab.up import up


def bring_up() -> NoReturn:
    """Boot the hosts, name what is simulated, and become `busbar up`: its exit code is that of `make up`."""
    up(hosts())
    os.environ.update(environment())
    if names := simulated.parts():
        CONSOLE.print("\n[bold]simulated or replaced in this lab[/] (how faithfully: lab/README.md)")
        for name, reason in names.items():
            CONSOLE.print(f"  {name}: {reason}", style="dim")
    sys.stdout.flush()
    os.chdir(PROJECT)
    os.execv(sys.executable, [sys.executable, "-m", "busbar", "up", STACK, "--yes", "--skip-preview"])
