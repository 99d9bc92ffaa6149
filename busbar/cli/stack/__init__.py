"""The commands that drive a Pulumi stack through the Automation API: `busbar up STACK` and its kin.

The only package of busbar that imports pulumi, and only when one of its commands runs: `busbar --help` and
the other commands work without it. `pulumi up` does the same work; these commands add readable rows, recovery
of what a killed update left behind, and exit codes.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from busbar.cli.stackfile import AsJson, Project, Stack, Yes, open_file
from busbar.exits import Misuse

BEGAN = time.monotonic()
"""Start of this process, to a few tenths of a second; the import of pulumi, which takes seconds, is later."""

# Steps at the same time. The engine's default is 4 per CPU of this machine, although a step only waits for a
# host: a laptop would update 440 workers in waves of 16. K3s advises that at most 50 nodes join at a time.
PARALLEL = 50
# A value of `--converge` beside host names.
ALL = "all"
CHARTS = "cluster"
_STACK_FILE = re.compile(r"Pulumi\.(?P<stack>.+)\.yaml")


@dataclass(frozen=True)
class Options:
    """Options of the commands; `converge`: hosts to apply again. `only_preview`: nothing is updated."""

    yes: bool = False
    skip_preview: bool = False
    refresh: bool = False
    parallel: int = PARALLEL
    converge: tuple[str, ...] = ()
    only_preview: bool = False

    @property
    def refreshes(self) -> bool:
        """True if the state is refreshed first, so that a chart that was uninstalled is installed again."""
        return self.refresh or self.applies_charts

    @property
    def applies_charts(self) -> bool:
        """True if objects of charts that have changed are applied again."""
        return ALL in self.converge or CHARTS in self.converge


@dataclass(frozen=True)
class Target:
    """A stack of a project. `stack`: its name for the engine, `prod` or `organization/busbar/prod`."""

    project: Path
    stack: str

    @property
    def name(self) -> str:
        return self.stack.rpartition("/")[2]

    @property
    def file(self) -> str:
        return f"Pulumi.{self.name}.yaml"

    @property
    def written(self) -> bytes:
        """The content of the stack file, of which a program of others may have none."""
        path = self.project / self.file
        return path.read_bytes() if path.exists() else b""

    @property
    def folder(self) -> Path:
        """The folder with the reports, kubeconfig and outputs of the stack."""
        return self.project / ".busbar" / self.name


def find(stack: str, project: Path | None) -> Target:
    """The stack with this name or this file.

    `project` is the folder of Pulumi.yaml; without it, the folder of the stack file if one is given, else the
    nearest folder upward from here. Raises Misuse if the project or the stack file does not exist.
    """
    from busbar.config import stackfile

    cwd = Path.cwd()
    is_file = stack.endswith((".yaml", ".yml"))
    if is_file and project is None:
        project = (cwd / Path(stack).expanduser()).parent
    folder = stackfile.project_folder(project, cwd)
    if folder is None:
        where = f"{cwd} or above" if project is None else str(cwd / project)
        raise Misuse(f"there is no Pulumi.yaml in {where}", stackfile.NO_PROJECT)
    path = open_file(stack, project).resolve()
    if not is_file:
        return Target(folder, stack)
    match = _STACK_FILE.fullmatch(path.name)
    if match is None or path.parent != folder:
        raise Misuse(
            f"{path} is not a stack file of {folder}: one is named Pulumi.STACK.yaml, beside Pulumi.yaml",
            "rename or move it",
        )
    return Target(folder, match["stack"])


Refresh = Annotated[bool, typer.Option("--refresh", help="Refresh the state of all resources first.")]
Parallel = Annotated[
    int, typer.Option("--parallel", min=1, envvar="PULUMI_PARALLEL", help="Steps at the same time.")
]


def up(
    stack: Stack,
    project: Project = None,
    yes: Yes = False,
    skip_preview: Annotated[bool, typer.Option("--skip-preview", help="Show no changes first.")] = False,
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
    target = _checked(stack, project)
    options = Options(
        yes=yes,
        skip_preview=skip_preview,
        refresh=refresh,
        parallel=parallel,
        converge=tuple(filter(None, converge.split(","))),
    )
    _run("up", target, options)


def preview(stack: Stack, project: Project = None, refresh: Refresh = False) -> None:
    """Show what `busbar up` would change. A new stack is created, empty."""
    _run("up", _checked(stack, project), Options(refresh=refresh, only_preview=True))


def destroy(stack: Stack, project: Project = None, yes: Yes = False, parallel: Parallel = PARALLEL) -> None:
    """Remove everything that a stack made: the list, a question, one row per step.

    Refused while jobs run, unless removal.cancel_jobs is set, and while other stacks are on the cluster. The
    empty stack, its history and its file stay. The kept kubeconfig and outputs are removed.
    """
    _run("destroy", find(stack, project), Options(yes=yes, parallel=parallel))


def recover(stack: Stack, project: Project = None, yes: Yes = False) -> None:
    """Import the newest whole copy of a lost state, which `busbar up` keeps on the servers.

    Hosts and login are those of the stack file. What is missing or damaged is shown. Refused where the state
    has made something, the hosts belong to two clusters, the copy is of another project or stack, or a token
    was rotated since. Nothing on the hosts is changed.
    """
    from busbar.cli.stack import copies

    raise typer.Exit(copies.recover(_checked(stack, project), yes=yes))


def status(stack: Stack, project: Project = None, as_json: AsJson = False) -> None:
    """Show the last update, interrupted steps and the outputs of a stack. Changes nothing.

    Exit code 0: the last update succeeded, no step was interrupted, and the gate passed; 1: otherwise.
    """
    _run("status", find(stack, project), as_json)


def _run(command: str, target: Target, *arguments: Any) -> NoReturn:
    """Run a function of the module of the commands, which imports pulumi."""
    from busbar.cli.stack import commands

    raise typer.Exit(getattr(commands, command)(target, *arguments))


def _checked(stack: str, project: Path | None) -> Target:
    """The stack, whose file is valid. Raises ConfigError; files of other programs are not checked."""
    from busbar.capability import of_project
    from busbar.cli.stackfile import capability_of
    from busbar.config import ConfigError, stackfile
    from busbar.config.stackfile import KEY, PROJECT

    target = find(stack, project)
    path = target.project / target.file
    if stackfile.kept_hosts(path):
        return target  # The program reads the list of hosts anew and checks the whole before it begins.
    name = stackfile.project_name(target.project) or ""
    try:
        written, capability = stackfile.keys(path), capability_of(path)
    except ConfigError:
        if name == PROJECT or of_project([name]):
            raise
        return target
    if capability and written:
        capability.describe(path)
    elif written and (name == PROJECT or f"{PROJECT}:{KEY}" in written):
        stackfile.read(path).cluster()
    return target
