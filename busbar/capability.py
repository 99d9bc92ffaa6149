"""Capabilities: software on a measured cluster, each in its own folder with one entry module.

The core names none. It finds `stacks/<name>/capability.py` beside this package, in a checkout and in the
installed wheel, and entry points of other distributions in the group `busbar.capabilities`. Both have a
CAPABILITY, which names its modules as texts, so that they are imported only when used.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from busbar.exits import Misuse
from busbar.finding import STACK, Fix

if TYPE_CHECKING:
    from rich.console import RenderableType
    from typer import Typer


FOLDER = Path(__file__).resolve().parents[1] / "stacks"
ENTRY_POINTS = "busbar.capabilities"
CANCEL_JOBS = "BUSBAR_CANCEL_JOBS"  # A destroy sets it for its steps: true if they may end jobs.


@dataclass(frozen=True)
class Gate:
    """The gate of a project: the names of the outputs that decide whether an update has succeeded.

    `raised`: the configuration key that, raised by one, measures again. `summary`: the module whose function
    `summary` makes the tables. `contract`: the value of the output `version`, raised when an output changes
    its meaning or is removed; a new output alone does not raise it.
    """

    version: str
    passed: str
    reasons: str
    title: str
    raised: str
    summary: str
    contract: int = 1

    def tables(self, outputs: Mapping[str, Any], *, folder: Path | None = None) -> RenderableType:
        """The outputs for a terminal; `folder` is where verdicts were kept. Raises ValueError."""
        made: RenderableType = importlib.import_module(self.summary).summary(outputs, folder=folder)
        return made

    def refusal(self, outputs: Mapping[str, Any], /, *, enforce: bool) -> str | None:
        """Why `pulumi up` has to fail, for the terminal; None if it may succeed, always without `enforce`."""
        if not enforce or outputs.get(self.passed) is True:
            return None
        listed = "\n".join(f"  - {reason}" for reason in outputs.get(self.reasons) or ["there is no result"])
        return (
            f"{self.title} for cluster {outputs.get('cluster_name')}:\n{listed}\n"
            f"The outputs are kept. Fix: after the repair raise {self.raised} by one; to accept it as it is: "
            f"{self.raised.partition('.')[0]}.enforce: false; {Fix('to see them', ('status', STACK))}"
        )


@dataclass(frozen=True, kw_only=True)
class Capability:
    """One capability. Modules are named as texts, functions as MODULE:NAME."""

    name: str
    """The folder and the group of commands have this name."""
    help: str
    """One line on that group."""
    commands: str
    """Module with `register`, which adds commands, if any, and with a project `describe` (check-config)."""
    config: str | None = None
    """The ProjectConfig of its Pulumi project, which is called busbar-NAME, if there is one."""
    gate: Gate | None = None
    """The gate of the updates of that project."""
    steps: Mapping[str, str] = field(default_factory=dict)
    """Step of its updates -> function by which `busbar step` runs it: an Api, the request (a model), a Clock
    and a ProgressCallback -> what is printed, as JSON."""
    operations: str | None = None
    """Module with the functions of busbar.cli.operation.Operations, and `measure`, `diagnose` and `paths` (of
    `diagnose --paths`) as those of busbar/fabric/commands, if it has hosts of its own."""
    measure: str | None = None
    """Function by which `busbar measure` serves its stacks, if it has no hosts of its own."""
    host_roles: Mapping[str, str] = field(default_factory=dict)
    """Role in a list of hosts -> its key in the section `hosts` (busbar.config.stackfile.ROLES)."""
    changed: str | None = None
    """Function that `notify` calls."""
    repeat: str = ""
    """The command for a person where `changed` has failed."""
    drains: str | None = None
    """Function that makes a DrainHook of a Node, or None."""
    nodes: str | None = None
    """Function of an Api by which `busbar nodes` names Nodes that start no jobs: Node -> why."""
    ready: str | None = None
    """Function by which `busbar verify` and the end of every update with a gate ask whether it works, if it
    has no hosts of its own: its configuration, the ClusterOutputs, an Api -> Findings. Raises ApiError."""
    waits: Collection[str] = ()
    """The steps of its project that wait until it works, which `up --converge cluster` runs again."""
    jobs: str | None = None
    """Function by which a destroy asks for its jobs: an Api, or the path of the stack file if it has hosts of
    its own, and whether to end them -> those that run. Raises NoVerdict where that is unknown."""
    job_kinds: Collection[str] = ()
    """Its kinds of jobs on Kubernetes, which a destroy of its stack ends, in any namespace."""
    judge: str | None = None
    """Function that judges a folder with a kept log of its gate again: Path -> Verdict or None."""

    def register(self, group: Typer) -> None:
        add = getattr(importlib.import_module(self.commands), "register", None)
        group.info.hidden = add is None  # The help lists no group without commands for people.
        if add:
            add(group)

    @property
    def project(self) -> str:
        """The name of its Pulumi project, and namespace of its keys in a stack file."""
        return f"busbar-{self.name}"

    def describe(self, path: Path) -> tuple[list[str], Sequence[Any]]:
        """A stack file in a few lines, and the warnings on it. Raises ConfigError."""
        made: tuple[list[str], Sequence[Any]] = importlib.import_module(self.commands).describe(path)
        return made

    def on_hosts(self, path: Path) -> Any:
        """The module `operations`, for a stack file. Raises Misuse if it has no hosts of its own."""
        if self.operations:
            return importlib.import_module(self.operations)
        stack = path.stem.removeprefix("Pulumi.")
        again = f", or busbar up with {self.gate.raised} raised by one, for its gate" if self.gate else ""
        raise Misuse(
            f"{path.name} is a stack of {self.project}, which has no hosts of its own",
            Fix("name the stack of its cluster; for this one", ("status", stack), again),
        )

    def measuring(self, path: Path) -> Any:
        """The function of `busbar measure` for a stack file. Raises as `on_hosts`."""
        return pkgutil.resolve_name(self.measure) if self.measure else self.on_hosts(path).measure

    def problems(self, config: Any, cluster: Any, api: Any) -> list[Any]:
        """The Findings of `ready`. Raises ApiError."""
        return [*pkgutil.resolve_name(self.ready)(config, cluster, api)] if self.ready else []

    def read(self, path: Path) -> Any:
        """The configuration in a stack file of its project. Raises ConfigError."""
        return pkgutil.resolve_name(str(self.config)).read(path)

    def stack_schema(self) -> dict[str, Any] | None:
        """The JSON Schema of `stacks/<name>/Pulumi.<stack>.yaml`; None without a Pulumi project."""
        return pkgutil.resolve_name(self.config).schema() if self.config else None


@cache
def capabilities() -> tuple[Capability, ...]:
    """All capabilities, sorted by name. Raises TypeError or ValueError for an invalid CAPABILITY."""
    entries = [
        EntryPoint(file.parent.name, f"stacks.{file.parent.name}.capability:CAPABILITY", ENTRY_POINTS)
        for file in FOLDER.glob("*/capability.py")
    ]
    found: dict[str, Capability] = {}
    for entry in [*entries, *entry_points(group=ENTRY_POINTS)]:
        capability = entry.load()
        if not isinstance(capability, Capability):
            raise TypeError(f"{entry.value} is not a Capability but {type(capability).__name__}")
        if capability.name != entry.name or entry.name in found:
            raise ValueError(f"{entry.value} has the name {capability.name!r}, expected {entry.name!r}, once")
        found[entry.name] = capability
    return tuple(found[name] for name in sorted(found))


def of_project(names: Collection[str]) -> Capability | None:
    """The capability whose project is among `names`; None for the cluster's project."""
    return next((each for each in capabilities() if each.project in names), None)


def drain_hooks(api: Any, node: str, reason: str, *, end_jobs: bool = False) -> list[Any]:
    """The busbar.kube.drain.DrainHooks of capabilities that have jobs on a Node. Raises ApiError."""
    asked = (pkgutil.resolve_name(each.drains) for each in capabilities() if each.drains)
    return [hook for ask in asked if (hook := ask(api, node, reason, end_jobs=end_jobs))]


def node_states(api: Any) -> dict[str, str]:
    """Node -> why it starts no jobs of a capability. Raises ApiError."""
    found: dict[str, list[str]] = {}
    for each in capabilities():
        for node, why in pkgutil.resolve_name(each.nodes)(api).items() if each.nodes else ():
            found.setdefault(node, []).append(why)
    return {node: "; ".join(texts) for node, texts in found.items()}


def notify(
    connect: Callable[[], Any], say: Callable[[str], None], outputs: Mapping[str, Any] | None = None
) -> None:
    """Tell capabilities that a cluster has changed. Their errors, and those of CONNECT, are only warnings."""
    for each in capabilities():
        if each.changed:
            try:
                pkgutil.resolve_name(each.changed)(connect(), outputs)
            except Exception as error:
                what = f"stacks/{each.name}, where it is installed, does not show this change"
                say(f"warning: {what}: {error}. Fix: run `{each.repeat}`")
