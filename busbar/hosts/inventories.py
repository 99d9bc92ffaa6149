"""Hosts from the inventories of other tools, as the section `hosts` of a stack file.

Read are Ansible's INI, as DeepOps and Kubespray write it, and the JSON of `terraform output -json`, whose
outputs are taken for groups. Nothing is guessed: what has no place in the section is named.
"""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from busbar.text import listed

# Group of an inventory -> its key in `hosts`; `[]` is a list, and `_` in a group is read as `-`. Names of
# NVIDIA/deepops (config.example/inventory), and those that Kubespray has had since 2.16.
GROUPS: Mapping[str, str] = {
    "kube-master": "servers[]",
    "kube-control-plane": "servers[]",
    "kube-node": "workers[]",
    **{role.replace("_", "-"): f"{role}[]" for role in ("load_balancers", "servers", "workers")},
}
# Variable of a host -> its key; of several that a host has, the first counts.
_VARIABLES = {
    "ansible_host": "address",
    "ansible_ssh_host": "address",
    "address": "address",
    "private_ip": "address",
    "private_ip_address": "address",
    "ip": "address",
    "ansible_user": "user",
    "ansible_ssh_user": "user",
    "user": "user",
    "ansible_port": "port",
    "ansible_ssh_port": "port",
    "port": "port",
    "pool": "pool",
    "name": "name",
}
_KEYS = ("address", "user", "port", "pool")
_ALL = ("all", "ungrouped")
_RANGE = re.compile(r"\[([0-9]+):([0-9]+)\]")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass
class Inventory:
    """Hosts by group, in the order of the file, and the variables of each host."""

    groups: dict[str, list[str]] = field(default_factory=dict)
    variables: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, group: str, host: str, variables: Mapping[str, Any]) -> None:
        """Put a host into a group; earlier values of a variable stay."""
        members = self.groups.setdefault(group, [])
        if host not in members:
            members.append(host)
        self.variables[host] = {**variables, **self.variables.get(host, {})}


def parse(text: str) -> Inventory:
    """An inventory in either form. Raises ValueError, with the line where it has one."""
    return _terraform(text) if text.lstrip().startswith("{") else _ini(text)


def section(found: Inventory, table: Mapping[str, str], needed: Sequence[str] = ()) -> tuple[str, list[str]]:
    """The section `hosts` as YAML, "" without a host of the table's groups, and notes on what is not in it.

    `table`: as GROUPS. `needed`: keys of `hosts` that a stack must have; a missing one is a comment.
    """
    roles: dict[str, list[str]] = {}
    notes: list[str] = []
    taken: dict[str, str] = {}
    for group, key in _known(found, table).items():
        for host in found.groups[group]:
            if host in taken and taken[host] != key:
                notes.append(f"{host} is also in the group {group}: a host has one role, {taken[host]}")
            elif not key.endswith("[]") and roles.get(key):
                notes.append(f"{host} of the group {group}: {key} is one host, {roles[key][0]}")
            elif host not in taken:
                taken[host] = key
                roles.setdefault(key, []).append(host)
    if not roles:
        return "", notes
    lines = ["hosts:", *(f"  # missing: {key}" for key in needed if f"{key}[]" not in roles)]
    for key, hosts in roles.items():
        lines.append(f"  {key.removesuffix('[]')}:")
        for host in hosts:
            lines += _host(host, found.variables[host], is_item=key.endswith("[]"))
    return "\n".join(lines) + "\n", notes


def unknown(found: Inventory, tables: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Groups that no table has, hosts that are in no other ones, and variables, which are not imported."""
    known = {group for table in tables for group in _known(found, table)}
    imported = {host for group in known for host in found.groups[group]}
    for group, hosts in found.groups.items():
        if group not in known and group not in _ALL and hosts:
            yield f"group {group}: not known ({listed(hosts, 3)})"
    if others := [host for host in found.variables if host not in imported]:
        yield f"{listed(others, 3)}: in no known group, not imported"
    owners: dict[str, list[str]] = {}
    for host in found.variables:
        for variable in found.variables[host]:
            if host in imported and variable not in _VARIABLES:
                owners.setdefault(variable, []).append(host)
    for variable, hosts in owners.items():
        yield f"variable {variable} of {listed(hosts, 3)}: not known, not imported"


def _known(found: Inventory, table: Mapping[str, str]) -> dict[str, str]:
    """The groups of the inventory that are in the table, with their keys."""
    named = {group: table.get(group.replace("_", "-")) for group in found.groups}
    return {group: key for group, key in named.items() if key}


def _host(host: str, variables: Mapping[str, Any], *, is_item: bool) -> list[str]:
    values: dict[str, Any] = {}
    for variable, key in _VARIABLES.items():
        if variable in variables:
            values.setdefault(key, variables[variable])
    written = str(values.get("name") or host)
    name = written.partition(".")[0].lower() if not _is_address(written) else written
    lines = [f"name: {_scalar(name)}" + ("" if name == written else f"   # {written} in the inventory")]
    if not _NAME.fullmatch(name) or _is_address(name):
        lines[0] += "   # missing: a name of lower-case letters, digits and -"
    values.setdefault("address", host)
    lines += [
        f"{key}: {values[key] if str(values[key]).isdigit() and key == 'port' else _scalar(values[key])}"
        for key in _KEYS
        if key in values
    ]
    lines.append("# missing: host_key")
    first = "    - " if is_item else "    "
    return [f"{first if not number else ' ' * len(first)}{line}" for number, line in enumerate(lines)]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _scalar(value: Any) -> str:
    """One text as YAML, in quotes where it would be read as something else."""
    return str(yaml.safe_dump(str(value), width=1000)).splitlines()[0]


def _ini(text: str) -> Inventory:
    """Hosts with their variables, `[GROUP]`, `[GROUP:children]` and `[GROUP:vars]`."""
    found = Inventory()
    children: dict[str, list[str]] = {}
    shared: dict[str, dict[str, str]] = {}
    group, kind = "ungrouped", ""
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith(("#", ";")):
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if heading := re.fullmatch(r"\[([^\]:]+)(?::(\w+))?\](\s*#.*)?", line):
            group, kind = heading[1], heading[2] or ""
            if kind not in ("", "children", "vars"):
                raise ValueError(f"line {number}: [{group}:{kind}] is not known, expected :children or :vars")
        elif kind == "children":
            children.setdefault(group, []).append(words[0])
        elif kind == "vars":
            shared.setdefault(group, {}).update(_pairs([line], number))
        else:
            for host in _expanded(words[0]):
                found.add(group, host, _pairs(words[1:], number))
    for parent in children:
        for host in _members(found.groups, children, parent, ()):
            found.add(parent, host, {})
    # A host's own values are stronger than those of its groups; of two groups the smaller one is.
    members = {
        name: found.groups.get(name, []) if name not in _ALL else [*found.variables] for name in shared
    }
    for name in sorted(shared, key=lambda each: len(members[each])):
        for host in members[name]:
            found.variables[host] = {**shared[name], **found.variables[host]}
    return found


def _members(
    groups: Mapping[str, Sequence[str]],
    children: Mapping[str, Sequence[str]],
    group: str,
    above: tuple[str, ...],
) -> Iterator[str]:
    yield from groups.get(group, ())
    for child in children.get(group, ()):
        if child not in above:
            yield from _members(groups, children, child, (*above, group))


def _pairs(words: Sequence[str], number: int) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            # Not the text: it may be a password.
            raise ValueError(
                f"line {number}: expected NAME=VALUE after the host, or in a section of variables"
            )
        found[name.strip()] = value.strip().strip("\"'")
    return found


def _expanded(host: str) -> list[str]:
    """`gpu[01:16]` -> gpu01 ... gpu16, as Ansible reads it."""
    found = _RANGE.search(host)
    if found is None:
        return [host]
    first, last = found[1], found[2]
    numbers = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    before, after = host[: found.start()], host[found.end() :]
    return [each for number in numbers for each in _expanded(f"{before}{number}{after}")]


def _terraform(text: str) -> Inventory:
    """Each output is a group: a list of hosts or of addresses, or an object of either by the host's name."""
    try:
        outputs = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: is not JSON: {error.msg}") from None
    found = Inventory()
    for group, output in outputs.items():
        if not isinstance(output, dict) or "value" not in output:
            raise ValueError(f"{group}: is not an output of `terraform output -json`: it has no `value`")
        value = output["value"]
        hosts = [*_hosts_of(group, value)] if not output.get("sensitive") else []
        if not hosts:
            found.notes.append(f"output {group}: no hosts in it, not imported")
        elif all("name" not in variables for _, variables in hosts) and isinstance(value, list):
            found.notes.append(f"output {group}: its hosts have no names, so they are numbered")
        for host, variables in hosts:
            found.add(group, host, variables)
    return found


def _hosts_of(group: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    named = value.items() if isinstance(value, dict) else ((None, each) for each in _list(value))
    for number, (name, host) in enumerate(named, start=1):
        if isinstance(host, dict):
            known = name or host.get("name") or f"{group.replace('_', '-')}-{number}"
            yield str(known), {key: each for key, each in host.items() if each is not None}
        elif isinstance(host, str):
            yield name or f"{group.replace('_', '-')}-{number}", {"address": host}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
