"""Which stack a command works on, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from busbar.cli.stack.errors import StackError
from busbar.exits import USAGE

# Steps at the same time. The engine's own default is 4 per CPU of this machine, but a step waits for a host:
# from a laptop 440 workers would go in waves of 16. K3s advises at most 50 nodes that join at the same time.
PARALLEL = 50
# A value of `--converge`, beside names of hosts.
ALL = "all"
CLUSTER = "cluster"
_STACK_FILE = re.compile(r"Pulumi\.(?P<stack>.+)\.ya?ml")


@dataclass(frozen=True)
class Options:
    """Options of the commands.

    `parallel`: the number of steps at the same time. `converge`: hosts to apply again.
    """

    yes: bool = False
    skip_preview: bool = False
    refresh: bool = False
    parallel: int = PARALLEL
    converge: tuple[str, ...] = ()

    @property
    def refreshes(self) -> bool:
        """Whether the real state is read first: a chart that was uninstalled is then installed again."""
        return self.refresh or ALL in self.converge or CLUSTER in self.converge


@dataclass(frozen=True)
class Target:
    """A stack of a project. `stack` is what the engine is given: `prod`, or `organization/busbar/prod`."""

    project: Path
    stack: str

    @property
    def name(self) -> str:
        """The stack's short name."""
        return self.stack.rpartition("/")[2]

    @property
    def file(self) -> str:
        """The name of the stack's file."""
        return f"Pulumi.{self.name}.yaml"

    @property
    def folder(self) -> Path:
        """Where reports, kubeconfig and outputs of the stack are kept."""
        return self.project / ".busbar" / self.name


def find(stack: str, project: Path | None, cwd: Path) -> Target:
    """The stack with this name or this file.

    `project` is the folder of Pulumi.yaml; without it, the folder of the stack file if one is given, else the
    nearest folder from `cwd` upward. Raises StackError if the project or the stack file does not exist.
    """
    from busbar.config import stackfile

    is_file = stack.endswith((".yaml", ".yml"))
    if is_file and project is None:
        project = (cwd / Path(stack).expanduser()).parent
    folder = stackfile.project_folder(project, cwd)
    if folder is None:
        where = f"{cwd} or above" if project is None else str(cwd / project)
        raise StackError(
            f"there is no Pulumi.yaml in {where}. Fix: --project FOLDER, or make a site: busbar init DIR",
            exit_code=USAGE,
        )
    path = stackfile.find(stack, project, cwd).resolve()
    if not is_file:
        return Target(folder, stack)
    match = _STACK_FILE.fullmatch(path.name)
    if match is None or path.parent != folder:
        raise StackError(
            f"{path} is not a stack file of {folder}: a stack file is named Pulumi.STACK.yaml and is beside "
            "Pulumi.yaml. Fix: rename or move it.",
            exit_code=USAGE,
        )
    return Target(folder, match["stack"])
