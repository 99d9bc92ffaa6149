"""Capabilities in the lab: `make up-<name>` brings up `stacks/<name>`.

That is on the cluster of `make up`, or on hosts of its own. `stacks/<name>/lab/part.py` has a PART: what the
lab must have for it beside what `make up` makes.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from busbar.config import ConfigError, stackfile
from lab.build.go import Tool
from lab.engine.environment import environment
from lab.hosts import machine
from lab.images.catalog import Archive
from lab.steps import LabError
from lab.topology import PROJECT, Host

STACKS = PROJECT / "stacks"


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a capability brings to the lab.

    `tools`: programs to build before its drills. `archives`: its image archives. `prepare`: builds what a
    stack file needs and puts it on the hosts; it raises LabError and ConfigError. `hosts`: its own hosts, in
    the order of their boot; `prepare` boots them.
    """

    tools: tuple[Tool, ...] = ()
    archives: tuple[Archive, ...] = ()
    prepare: Callable[[Path], None]
    hosts: tuple[Host, ...] = ()


def parts() -> dict[str, Part]:
    """The parts of all capabilities that have one, by name."""
    names = sorted(file.parent.parent.name for file in STACKS.glob("*/lab/part.py"))
    return {name: importlib.import_module(f"stacks.{name}.lab.part").PART for name in names}


def hosts_of_capabilities() -> Iterator[Host]:
    """The hosts that capabilities have of their own."""
    for part in parts().values():
        yield from part.hosts


def bring_up(name: str, stack: str) -> NoReturn:
    """Prepare the hosts and become `busbar up` of a stack: its exit code is that of the make target.

    Raises LabError where the lab is not up, or there is no such capability or stack.
    """
    folder, known = STACKS / name, parts()
    if not (folder / "Pulumi.yaml").is_file():
        raise LabError(f"stacks/{name} is not a capability. Fix: `make up-NAME`, NAME of {', '.join(known)}")
    machine.require_root()
    try:
        file = stackfile.find(stack, folder, PROJECT)
        if name in known:
            known[name].prepare(file)
    except (stackfile.NoStackFileError, ConfigError) as error:
        raise LabError(str(error)) from None
    os.environ.update(environment())
    sys.stdout.flush()
    os.chdir(PROJECT)
    command = [sys.executable, "-m", "busbar", "up", stack, "--project", str(folder)]
    os.execv(sys.executable, [*command, "--yes", "--skip-preview"])
