"""The stack that a command works on, and the options of the command."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from busbar.cli.stackfile import open_file
from busbar.exits import Misuse

# Steps at the same time. The engine's default is 4 per CPU of this machine, although a step only waits for a
# host: a laptop would update 440 workers in waves of 16. K3s advises that at most 50 nodes join at a time.
PARALLEL = 50
# A value of `--converge` beside host names.
ALL = "all"
CHARTS = "cluster"
_STACK_FILE = re.compile(r"Pulumi\.(?P<stack>.+)\.ya?ml")


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
        """Whether the state is refreshed first, so that a chart that was uninstalled is installed again."""
        return self.refresh or self.applies_charts

    @property
    def applies_charts(self) -> bool:
        """Whether objects of charts that have changed are applied again."""
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
            f"{path} is not a stack file of {folder}: a stack file is named Pulumi.STACK.yaml and is beside "
            "Pulumi.yaml",
            "rename or move it",
        )
    return Target(folder, match["stack"])
