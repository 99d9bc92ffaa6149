"""Hosts from a list elsewhere (`hosts_from`): read before the first resource, and compared with the state.

The engine itself reads the state of this stack and the outputs of the other one, which adds no resource.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pulumi
from pulumi.runtime import invoke

from busbar import names
from busbar.config import ConfigError, Finding
from busbar.config.cluster import HostsFrom
from busbar.config.stackfile import ROLES, ListedHosts, kept_in, read_file, with_listed_hosts
from busbar.text import listed
from busbar.writing import write_whole

T = TypeVar("T")
_SHOWN = 8


def load_listed(
    data: Mapping[str, Any],
    *,
    load: Callable[..., T],
    roles: Mapping[str, str] | None,
    root: Path,
    **more: Any,
) -> T:
    """Load a configuration with the hosts of its list, and keep the list in .busbar/STACK/hosts.json.

    Shows which hosts come and go. Raises ConfigError, also where a host has left the list (`_refuse_lost`).
    """
    found = with_listed_hosts(
        data,
        roles or ROLES,
        lambda given: read_file(given, root) if given.file else _read_output(given),
    )
    former = _former_hosts()
    gone = [name for name in former if name not in {host.name for host in found.listed.hosts}]
    _refuse_lost(found.given, {name: former[name] for name in gone})
    made = found.load(load, root=root, **more)
    if former:
        _show_changes(found, former, gone)
    write_whole(kept_in(root, pulumi.get_stack()), found.listed.text(found.given.source))
    return made


def _read_output(given: HostsFrom) -> Any:
    """The output of the other stack, which is known in a preview too. Raises ConfigError."""
    found = _ask("readStackOutputs", {"name": given.stack}, f"the outputs of stack {given.stack}")
    outputs, where, shown = found["outputs"], ("hosts_from", "output"), repr(given.output)
    if given.output not in outputs:
        has = listed(sorted(outputs), _SHOWN) or "none"
        text = (
            f"is not an output of stack {given.stack} (it has: {has}), and without a list every host would "
            "be removed, so nothing changes"
        )
        raise ConfigError([Finding(where, text, "update that stack, or name its output", shown)])
    if given.output in found["secretOutputNames"]:
        text = f"is a secret of stack {given.stack}, and a list of hosts has none"
        raise ConfigError([Finding(where, text, "export it there with pulumi.Output.unsecret", shown)])
    # All numbers arrive as floats.
    return json.loads(json.dumps(outputs[given.output]), parse_float=_number)


def _former_hosts() -> dict[str, Mapping[str, Any]]:
    """The hosts that the state of this stack has, by name: each has a resource that removes it."""
    stack = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    found = _ask("readStackResourceOutputs", {"stackName": stack}, "the state of this stack")
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
    inline = "list the hosts in the stack file, below hosts, for one update"
    text = f"no longer in {given.source}. The update would drain and uninstall what is missing there"
    problems = [
        Finding(("hosts_from",), f"{listed(names, _SHOWN)}: {text}", f"put them back; to remove them, {way}")
        for names, way in ((workers, "set hosts_from.allow_removal: true"), (others, inline))
        if names
    ]
    if problems:
        raise ConfigError(problems)


def _show_changes(found: ListedHosts, former: Mapping[str, Mapping[str, Any]], gone: list[str]) -> None:
    now = {host.name: host.address for host in found.listed.hosts}
    moved = [
        f"{name} {host['address']} -> {now[name]}"
        for name, host in former.items()
        if name in now and host["address"] != now[name]
    ]
    new = [name for name in now if name not in former]
    changes = {"added": new, "removed": gone, "with another address": moved}
    if told := [f"{kind}: {listed(names, _SHOWN)}" for kind, names in changes.items() if names]:
        pulumi.warn(f"hosts of {found.given.source}: {'; '.join(told)}")


def _ask(function: str, arguments: Mapping[str, Any], what: str) -> Any:
    """The answer of the engine. Raises ConfigError."""
    try:
        return invoke(f"pulumi:pulumi:{function}", arguments).value
    except Exception as error:
        # The SDK has no class of its own for it; the engine's reason is after the last "returned an error".
        reason = str(error).rpartition("returned an error: ")[2]
        fix = "name it as `pulumi stack ls --all` does, and check the access to its backend"
        raise ConfigError([Finding(("hosts_from",), f"{what} cannot be read: {reason}", fix)]) from None


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value
