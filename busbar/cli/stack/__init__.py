"""The commands that drive a Pulumi stack through the Automation API: `busbar up STACK` and its kin.

The only package of busbar that imports pulumi, and only when one of its commands runs: `busbar --help` and
the other commands work without it. `pulumi up` does the same work; these commands add readable rows, recovery
of what a killed update left behind, and exit codes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, NoReturn

import typer

from busbar.cli.stack.target import PARALLEL, Options, Target, find
from busbar.cli.stackfile import AsJson, Project, Stack, Yes

BEGAN = time.monotonic()
"""Start of this process, to a few tenths of a second; the import of pulumi, which takes seconds, is later."""

Refresh = Annotated[bool, typer.Option("--refresh", help="Read the real state of all resources first.")]
Parallel = Annotated[
    int, typer.Option("--parallel", min=1, envvar="PULUMI_PARALLEL", help="Steps at the same time.")
]


def up(
    stack: Stack,
    project: Project = None,
    yes: Yes = False,
    skip_preview: Annotated[
        bool, typer.Option("--skip-preview", help="Do not show the changes first.")
    ] = False,
    refresh: Refresh = False,
    parallel: Parallel = PARALLEL,
    converge: Annotated[
        str,
        typer.Option(
            "--converge",
            metavar="HOST,...",
            help="Apply these hosts again although nothing changed (`busbar verify` names them); `cluster`: "
            "the charts; `all`: everything. Uninstalls nothing.",
        ),
    ] = "",
) -> None:
    """Create or update a stack: the changes, a question, one row per step, then what was measured.

    A new stack is created. What a killed update left behind is recovered. Kubeconfig and outputs are kept in
    .busbar/STACK of the project folder, readable by their owner only.

    Exit code 0: done, and the gate passed; 1: failed, the gate included, or declined.
    """
    options = Options(
        yes=yes,
        skip_preview=skip_preview,
        refresh=refresh,
        parallel=parallel,
        converge=tuple(filter(None, converge.split(","))),
    )
    _exit(stack, project, lambda target: _commands().up(target, options), checked=True)


def preview(stack: Stack, project: Project = None, refresh: Refresh = False) -> None:
    """Show what `busbar up` would change. A new stack is created, empty."""
    options = Options(refresh=refresh)
    _exit(stack, project, lambda target: _commands().preview(target, options), checked=True)


def destroy(stack: Stack, project: Project = None, yes: Yes = False, parallel: Parallel = PARALLEL) -> None:
    """Remove everything that a stack made: the list, a question, one row per step.

    Refused while jobs run, unless removal.cancel_jobs is set, and while other stacks are on the cluster. The
    empty stack, its history and its file stay. The kept kubeconfig and outputs are removed.
    """
    _exit(stack, project, lambda target: _commands().destroy(target, Options(yes=yes, parallel=parallel)))


def recover(stack: Stack, project: Project = None, yes: Yes = False) -> None:
    """Import the newest whole copy of a lost state, which `busbar up` keeps on the servers.

    Hosts and login are those of the stack file. What is missing or damaged is shown. Refused where the state
    has made something, the hosts belong to two clusters, the copy is of another project or stack, or a token
    was rotated since. Nothing on the hosts is changed.
    """
    from busbar.cli.stack import copies

    _exit(stack, project, lambda target: copies.recover(target, yes=yes), checked=True)


def status(stack: Stack, project: Project = None, as_json: AsJson = False) -> None:
    """Show the last update, interrupted steps and the outputs of a stack. Changes nothing.

    Exit code 0: the last update succeeded, no step was interrupted, and the gate passed; 1: otherwise.
    """
    _exit(stack, project, lambda target: _commands().status(target, as_json=as_json))


def _exit(
    stack: str, project: Path | None, command: Callable[[Target], int], *, checked: bool = False
) -> NoReturn:
    """Run a command on a stack; `checked`: validate its file before the engine starts."""
    target = find(stack, project)
    if checked:
        _check(target.project / target.file)
    raise typer.Exit(command(target))


def _check(path: Path) -> None:
    """Raise ConfigError if a stack file of busbar is invalid; those of other programs are not checked."""
    from busbar.capability import of_project
    from busbar.cli.stackfile import capability_of
    from busbar.config import ConfigError, stackfile
    from busbar.config.stackfile import KEY, PROJECT

    if stackfile.kept_hosts(path):
        return  # The program reads the list of hosts anew and checks the whole before it begins.
    name = stackfile.project_name(path.parent) or ""
    try:
        written, capability = stackfile.keys(path), capability_of(path)
    except ConfigError:
        if name == PROJECT or of_project([name]):
            raise
        return
    if capability and written:
        capability.describe(path)
    elif written and (name == PROJECT or f"{PROJECT}:{KEY}" in written):
        stackfile.read(path).cluster()


def _commands() -> ModuleType:
    """The module of the commands, which imports pulumi."""
    from busbar.cli.stack import commands

    return commands
