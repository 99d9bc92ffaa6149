"""The stack of a program: its configuration, its outputs, and the messages that the engine gets."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pulumi
from pulumi.runtime import get_config_env, invoke, is_config_secret
from pulumi_command import local, remote

from busbar import config, names, outputs
from busbar.components.engine.hosts import HostArgs, SshLogin
from busbar.config import ConfigError, Finding, stackfile
from busbar.config.cluster import AnyCluster, HostsFrom, has_list
from busbar.config.findings import unknown_keys
from busbar.config.project import Config, ProjectConfig
from busbar.config.stackfile import plain_text, read_file, with_listed_hosts
from busbar.finding import STACK, STACK_SHOWN, Fix
from busbar.hosts import proxy
from busbar.hosts.inventory import Host, Inventory
from busbar.kube.wait import Deadline, SystemClock
from busbar.manifests.names import sha256
from busbar.names import CLUSTER_ID
from busbar.outputs import FOLLOW_UP, ClusterOutputs, ContractError
from busbar.text import listed
from busbar.writing import write_whole

T = TypeVar("T")
_SHOWN = 8
READ_SECONDS = 5.0


def load_listed(
    data: Mapping[str, Any],
    *,
    load: Callable[..., T],
    roles: Mapping[str, str],
    root: Path,
    **more: Any,
) -> T:
    """Load a configuration with its list of hosts, and keep that. Raises ConfigError, also for lost hosts."""
    found = with_listed_hosts(
        data, roles, lambda given: read_file(given, root) if given.file else _read_output(given)
    )
    still = {host.name for host in found.listed.hosts}
    _refuse_lost(found.given, {name: host for name, host in _former_hosts().items() if name not in still})
    made, text = found.load(load, root=root, **more), found.listed.text(found.given.source)
    if os.environ.get(stackfile.LISTED, sha256(text)) != sha256(text):
        what = f"the list of {found.given.source} has changed since the preview was shown"
        raise ConfigError([Finding(("hosts_from",), what, "run it again: it shows what would change now")])
    write_whole(stackfile.kept_in(root, pulumi.get_stack()), text)
    return made


def _read_output(given: HostsFrom) -> Any:
    """The output of the other stack, which is known in a preview too. Raises ConfigError."""
    found = ask_engine("readStackOutputs", {"name": given.stack}, f"the outputs of stack {given.stack}")
    outputs, where, shown = found["outputs"], ("hosts_from", "output"), repr(given.output)
    if given.output not in outputs:
        has = f"it has: {listed(sorted(outputs), _SHOWN) or 'none'}"
        lost = "without a list every host would be removed, so nothing changes"
        text = f"is not an output of stack {given.stack} ({has}), and {lost}"
        raise ConfigError([Finding(where, text, "update that stack, or name its output", shown)])
    if given.output in found["secretOutputNames"]:
        text = f"is a secret of stack {given.stack}, and a list of hosts has none"
        raise ConfigError([Finding(where, text, "export it there with pulumi.Output.unsecret", shown)])
    # All numbers arrive as floats.
    return json.loads(json.dumps(outputs[given.output]), parse_float=_number)


def _former_hosts() -> dict[str, Mapping[str, Any]]:
    """The hosts that the state of this stack has, by name: each has a resource that removes it."""
    stack = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    found = ask_engine("readStackResourceOutputs", {"stackName": stack}, "the state of this stack")
    specs = (
        json.loads(each["outputs"]["stdin"])
        for urn, each in found["outputs"].items()
        if names.is_removal(urn.rpartition("::")[2]) and each["type"] == "command:local:Command"
    )
    return dict(sorted((spec["host"]["name"], spec["host"]) for spec in specs))


def _refuse_lost(given: HostsFrom, gone: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ConfigError for hosts of the state that are not in the list, except for workers if so configured.

    A list is often the answer of an API, and an empty or partial answer must not drain a cluster.
    """
    others = sorted(name for name, host in gone.items() if host["role"] != "worker")
    workers = [] if given.allow_removal else sorted(gone.keys() - {*others})
    inline = "for one update list the hosts in the file instead"
    text = f"no longer in {given.source}. The update would drain and uninstall what is missing there"
    problems = [
        Finding(("hosts_from",), f"{listed(names, _SHOWN)}: {text}", f"put them back; to remove them, {way}")
        for names, way in ((workers, "set hosts_from.allow_removal: true"), (others, inline))
        if names
    ]
    if problems:
        raise ConfigError(problems)


def ask_engine(function: str, arguments: Mapping[str, Any], what: str) -> Any:
    """The answer of the engine. Raises ConfigError.

    Meanwhile the engine writes the state of this stack. A file that it writes in a backend of files has a
    second one, which is empty for a moment (gocloud.dev blob/fileblob/attrs.go): the answer is EOF.
    """
    deadline = Deadline(SystemClock(), READ_SECONDS)
    while True:
        try:
            return invoke(f"pulumi:pulumi:{function}", arguments).value
        except Exception as error:
            # The SDK has no class of its own; the engine's reason is after the last "returned an error".
            reason = str(error).rpartition("returned an error: ")[2]
            if deadline.passed or not reason.endswith("EOF"):
                text = f"{what} cannot be read: {reason}"
                fix = "name it as `pulumi stack ls --all` does, and check the access to its backend"
                raise ConfigError([Finding(("hosts_from",), text, fix)]) from None
        deadline.pause(0.1)


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


C = TypeVar("C", bound=AnyCluster)
INCOMPLETE = f"the outputs stay as they were: a step failed {outputs.FOLLOW_UP}"
UNFINISHED = f"no host is uninstalled: a step failed {outputs.FOLLOW_UP}"
Step = remote.Command | local.Command


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """A checked configuration; `secrets`: those that are set, by key (busbar.config.SECRETS)."""

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
        """Check the object `busbar:cluster`. Raises pulumi.RunError with every finding."""
        cluster, login = checked(data, secrets, project, config.load, config.warnings)
        return cls(
            cluster=cluster, inventory=Inventory.of(cluster), login=login, secrets=secrets, project=project
        )

    def host_args(self, host: Host, owner: str, install_id: pulumi.Input[str]) -> HostArgs:
        """A host and the resource that installs it, in the cluster with this identifier."""
        return HostArgs(
            login=self.login,
            host=host,
            owner=owner,
            install_id=install_id,
            fronts=self.inventory.fronts,
            environment=proxy.environment(self.inventory, of_servers=host.role == "server"),
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
    roles: Mapping[str, str] = stackfile.ROLES,
) -> tuple[C, SshLogin]:
    """Load a configuration with LOAD, and its login; show the warnings.

    `roles`: of a list of hosts elsewhere, as busbar.config.stackfile.ROLES.
    Raises pulumi.RunError with every finding, before any resource is registered.
    """
    with _refused():
        if has_list(data):
            load = partial(load_listed, roles=roles, load=load)
        found = load(data, secret_keys=secrets, root=project)
        login = SshLogin.load(found.ssh, secrets, project)
    for warning in warnings(found):
        pulumi.warn(str(warning))
    return found, login


def read_stack(
    project: str = stackfile.PROJECT, key: str = stackfile.KEY, secrets: Collection[str] = config.SECRETS
) -> tuple[Mapping[str, Any], Mapping[str, pulumi.Output[str]]]:
    """`<project>:<key>` of the selected stack, not checked yet, and the secrets that are set, by key.

    Raises pulumi.RunError for an unknown key, and for a secret that is not encrypted or has another form.
    """
    stack = pulumi.Config(project)
    os.environ.setdefault(STACK_SHOWN, pulumi.get_stack())
    # Pulumi.yaml declares the secret keys with an empty default.
    given = [name for name in secrets if stack.get(name)]
    problems = list(unknown_keys(sorted(get_config_env()), project, [key, *secrets]))
    problems += [plain_text(name, project) for name in given if not is_config_secret(f"{project}:{name}")]
    with _refused():
        if problems:
            raise ConfigError(problems)
        if "registryCredentials" in given:
            config.registry_credentials(stack.require("registryCredentials"))
    return stack.get_object(key) or {}, {name: stack.require_secret(name) for name in given}


@contextmanager
def _refused() -> Iterator[None]:
    """End the program for an invalid configuration."""
    try:
        yield
    except ConfigError as error:
        raise pulumi.RunError(f"invalid configuration of stack {pulumi.get_stack()}:\n{error}") from None


def load_config(project: ProjectConfig[Config]) -> Config:
    """The configuration of the selected stack. Raises pulumi.RunError with every finding."""
    data, _ = read_stack(project.project, project.key, project.secrets)
    with _refused():
        return project.load(data)


async def load_cluster(stack: str) -> ClusterOutputs:
    """The outputs of the cluster's stack, passed or not. Raises pulumi.RunError if they cannot be read."""
    try:
        return await ClusterOutputs.from_stack(pulumi.StackReference(stack))
    except ContractError as error:
        raise pulumi.RunError(f"{stack}: {error}") from None


async def refuse_other_cluster(name: str, identifier: str) -> None:
    """Record that this stack is for the cluster `name`, before anything on it is registered.

    The update or preview fails if the state has another: its resources would be taken for those of this one.
    """

    def refusal(recorded: Mapping[str, str]) -> str:
        return (
            f"cluster {name} is another one than before: its id is {identifier}, expected {recorded['id']}. "
            "Nothing was changed. Fix: configure the former cluster again; or, to move, first "
            f"{Fix(command=('destroy', STACK))}, which removes what this stack has on the former one, or "
            "forgets it where that one is gone"
        )

    def before_update(args: pulumi.ResourceHookArgs) -> None:
        raise ValueError(refusal((args.old_inputs or {})["input"]))

    hook = pulumi.ResourceHook(CLUSTER_ID, before_update, pulumi.ResourceHookOptions(on_dry_run=True))
    opts = pulumi.ResourceOptions(hooks=pulumi.ResourceHookBinding(before_update=[hook]))
    recorded = await pulumi.Stash(CLUSTER_ID, input={"id": identifier}, opts=opts).output.future()
    if recorded is None:
        raise pulumi.RunError(f"nothing is updated on cluster {name} {FOLLOW_UP}")
    # A targeted update (`pulumi up --target`) runs no hook of what is not its target.
    if recorded["id"] != identifier:
        raise pulumi.RunError(refusal(recorded))


def export_all(values: Mapping[str, pulumi.Input[Any]], steps: Iterable[Step] = ()) -> None:
    """Export all values; if one is unknown or one of `steps` failed, none, so that the former ones stay.

    `busbar up` continues after a failed step. The engine would then store placeholders for unknown values,
    and delete what is no longer configured, such as a former server. A failing program prevents both.
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
    built: pulumi.Output[dict[str, Any]],
    *,
    enforce: bool,
    gate: Callable[..., str | None] = outputs.CLUSTER_GATE.refusal,
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
        raise pulumi.RunError(f"{reason} {outputs.GATE_FAILED}")
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
    """Send the engine no debug messages, also with `pulumi up --debug`.

    The SDK sends about four per resource even if nobody sees them, each in its own call, for which the whole
    program waits (pulumi/pulumi sdk/python/lib/pulumi/log.py). docs/scale.md has the cost.
    """
    setattr(pulumi.log, "debug", lambda *_, **__: None)  # noqa: B010 - mypy knows it as a function
