"""The stack of a program: its configuration, its outputs, and the messages that the engine gets."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

import pulumi
from pulumi.runtime import get_config_env, is_config_secret
from pulumi_command import local, remote

from busbar import config, outputs
from busbar.components.engine.ssh import SshLogin
from busbar.config.cluster import AnyCluster, has_list
from busbar.config.findings import unknown_keys
from busbar.config.project import Config, ProjectConfig
from busbar.config.stackfile import KEY, PROJECT, plain_text
from busbar.hosts.inventory import Inventory
from busbar.names import CLUSTER_ID, STATE_BEFORE_1_0
from busbar.outputs import FOLLOW_UP, ClusterOutputs, ContractError

C = TypeVar("C", bound=AnyCluster)
INCOMPLETE = f"the outputs stay as they were: a step failed {outputs.FOLLOW_UP}"
UNFINISHED = f"no host is uninstalled: a step failed {outputs.FOLLOW_UP}"


Step = remote.Command | local.Command
DEBUG_MESSAGES = "BUSBAR_DEBUG_MESSAGES"


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """A checked configuration. Secrets are Outputs; values that shape the graph are plain.

    `secrets`: the secrets that are set, by key (busbar.config.SECRETS).
    """

    cluster: config.Cluster
    inventory: Inventory
    login: SshLogin
    secrets: Mapping[str, pulumi.Output[str]]
    project: Path
    """The folder of the program, which relative paths of the configuration start from."""

    @classmethod
    def of(
        cls, data: Mapping[str, Any], secrets: Mapping[str, pulumi.Output[str]], project: Path
    ) -> StackConfig:
        """Check the object `busbar:cluster`; `secrets` and `project` as above.

        Raises pulumi.RunError with every finding, before any resource is registered.
        """
        cluster, login = checked(data, secrets, project, config.load, config.warnings)
        return cls(
            cluster=cluster, inventory=Inventory.of(cluster), login=login, secrets=secrets, project=project
        )

    @property
    def registry_credentials(self) -> pulumi.Output[dict[str, Any]] | None:
        """Registry -> login, secret; None if none is set."""
        text = self.secrets.get("registryCredentials")
        return None if text is None else text.apply(config.registry_credentials)


def checked(
    data: Mapping[str, Any],
    secrets: Mapping[str, pulumi.Output[str]],
    project: Path,
    load: Callable[..., C],
    warnings: Callable[[C], Iterable[config.Finding]],
    roles: Mapping[str, str] | None = None,
) -> tuple[C, SshLogin]:
    """Load a configuration with LOAD, and its login; show the warnings.

    `roles`: of a list of hosts elsewhere, as busbar.config.stackfile.ROLES, which it is by default.
    Raises pulumi.RunError with every finding, before any resource is registered.
    """
    try:
        if has_list(data):
            # Few configurations need it, and a program loads as few modules as possible.
            from busbar.components.engine.listed_hosts import load_listed

            load = partial(load_listed, roles=roles, load=load)
        found = load(data, secret_keys=secrets, root=project)
        login = SshLogin.load(found.ssh, secrets, project)
    except config.ConfigError as error:
        raise invalid(error) from None
    for warning in warnings(found):
        pulumi.warn(str(warning))
    return found, login


def read_stack(
    project: str = PROJECT, key: str = KEY, secrets: Collection[str] = config.SECRETS
) -> tuple[Mapping[str, Any], Mapping[str, pulumi.Output[str]]]:
    """`<project>:<key>` of the selected stack, not checked yet, and the secrets that are set, by key.

    Raises pulumi.RunError for an unknown key, and for a secret that is not encrypted or has another form.
    """
    stack = pulumi.Config(project)
    # Pulumi.yaml declares the secret keys with an empty default.
    given = [name for name in secrets if stack.get(name)]
    problems = list(unknown_keys(sorted(get_config_env()), project, [key, *secrets]))
    problems += [plain_text(name, project) for name in given if not is_config_secret(f"{project}:{name}")]
    try:
        if problems:
            raise config.ConfigError(problems)
        if "registryCredentials" in given:
            config.registry_credentials(stack.require("registryCredentials"))
    except config.ConfigError as error:
        raise invalid(error) from None
    return stack.get_object(key) or {}, {name: stack.require_secret(name) for name in given}


def invalid(error: config.ConfigError) -> pulumi.RunError:
    """The error that ends the program for an invalid configuration."""
    return pulumi.RunError(f"invalid configuration of stack {pulumi.get_stack()}:\n{error}")


def load_config(project: ProjectConfig[Config]) -> Config:
    """The configuration of the selected stack.

    Raises pulumi.RunError with every finding, before any resource is registered.
    """
    data, _ = read_stack(project.project, project.key, project.secrets)
    try:
        return project.load(data)
    except config.ConfigError as error:
        raise invalid(error) from None


async def load_cluster(stack: str) -> ClusterOutputs:
    """The outputs of the cluster's stack, passed or not. Raises pulumi.RunError if they cannot be read."""
    try:
        return await ClusterOutputs.from_stack(pulumi.StackReference(stack))
    except ContractError as error:
        raise pulumi.RunError(f"{stack}: {error}") from None


async def refuse_other_cluster(name: str, identifier: str) -> None:
    """Record that this stack is for the cluster `name`, before anything on it is registered.

    The update or preview fails if the state has another identifier, or is from before 1.0. Otherwise the
    engine would treat resources of the other cluster as those of this one.
    """

    def before_update(args: pulumi.ResourceHookArgs) -> None:
        recorded = (args.old_inputs or {}).get("input")
        if not isinstance(recorded, Mapping):
            raise ValueError(STATE_BEFORE_1_0)
        raise ValueError(
            f"cluster {name} is another one than before: its id is {identifier}, expected {recorded['id']}. "
            "Nothing was changed. Fix: configure the former cluster again; or, to move, first run "
            "`busbar destroy` on this stack, which removes what it has on the former one. If that one is "
            f"gone, run `pulumi stack rm --force --preserve-config {pulumi.get_stack()}`, then retry"
        )

    hook = pulumi.ResourceHook(CLUSTER_ID, before_update, pulumi.ResourceHookOptions(on_dry_run=True))
    opts = pulumi.ResourceOptions(hooks=pulumi.ResourceHookBinding(before_update=[hook]))
    if not await pulumi.Stash(CLUSTER_ID, input={"id": identifier}, opts=opts).output.is_known():
        raise pulumi.RunError(f"nothing is updated on cluster {name} {FOLLOW_UP}")


class Gate(Protocol):
    """Returns why an update has to fail by its outputs; None if it may succeed."""

    def __call__(self, outputs: Mapping[str, Any], /, *, enforce: bool) -> str | None: ...


def export_all(values: Mapping[str, pulumi.Input[Any]], steps: Iterable[Step] = ()) -> None:
    """Export all values; if one is unknown or one of `steps` failed, none, so that the former ones stay.

    `busbar up` continues after a failed step. The engine would then store placeholders for unknown values,
    and delete what is no longer configured, such as a server whose replacement failed to join. A failing
    program prevents both.
    """
    needed = [pulumi.Output.from_input(value) for value in values.values()]
    needed += [step.stdout for step in steps]

    checked: pulumi.Output[None] = pulumi.Output.from_input(_fail_unless_known(needed, INCOMPLETE))
    for name, value in values.items():
        pulumi.export(name, pulumi.Output.all(value, checked)[0])


async def fail_unless_made(steps: Iterable[Step]) -> None:
    """Raise pulumi.RunError if one of the steps has failed: the engine then deletes nothing."""
    await _fail_unless_known([step.stdout for step in steps], UNFINISHED)


async def _fail_unless_known(values: Iterable[pulumi.Output[Any]], reason: str) -> None:
    known = [await value.is_known() for value in values]
    if not all(known) and not pulumi.runtime.is_dry_run():
        raise pulumi.RunError(reason)


async def fail_unless_passed(
    built: pulumi.Output[dict[str, Any]], *, enforce: bool, gate: Gate = outputs.CLUSTER.refusal
) -> None:
    """Raise pulumi.RunError with the reasons if the gate does not pass. The outputs are kept nevertheless.

    In a preview this is a warning, because a failed preview would keep `pulumi up` from measuring again.
    """
    if not await built.is_known():
        return  # in the preview of a first update nothing is measured yet
    reason = gate(await built.future() or {}, enforce=enforce)
    if reason is None:
        return
    if not pulumi.runtime.is_dry_run():
        raise pulumi.RunError(f"{reason} {outputs.GATE}")
    pulumi.warn(reason)


def end_quietly_when_interrupted() -> None:
    """Print no traceback of a KeyboardInterrupt; any other exception is printed as before.

    The engine ends a program that still runs, after a failed step or Ctrl-C, with SIGINT to the process group
    of its language host (pulumi/pulumi sdk/go/common/resource/plugin/plugin.go, InterruptChildren), and shows
    what the program prints beside the real reason.
    """
    sys.excepthook = _print


def _print(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def leave_out_debug_messages() -> None:
    """Send the engine no debug messages unless BUSBAR_DEBUG_MESSAGES is set: `pulumi up --debug` shows them.

    The SDK sends about four per resource even if nobody sees them, each in its own call, for which the whole
    program waits (pulumi/pulumi sdk/python/lib/pulumi/log.py). docs/scale.md has the cost.
    """
    if not os.environ.get(DEBUG_MESSAGES):
        setattr(pulumi.log, "debug", lambda *_, **__: None)  # noqa: B010 - mypy knows it as a function
