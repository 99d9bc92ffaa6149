"""Hosts from an inventory of Ansible, as the section `hosts` of a stack file.

The input is the JSON of `ansible-inventory --list`, in which ranges and variables are resolved. Nothing is
guessed: everything without a place in the section is reported.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from busbar.text import listed

# Group of an inventory -> its key in `hosts`; `[]` is a list, and `_` in a group is read as `-`. A host of
# several groups has the role of the first one here. Names of NVIDIA/deepops (config.example/inventory), of
# Kubespray since 2.16 (inventory/sample), and of k3s-io/k3s-ansible (inventory-sample.yml).
GROUPS: Mapping[str, str] = {
    "load-balancers": "load_balancers[]",
    **dict.fromkeys(("kube-master", "kube-control-plane", "server", "servers"), "servers[]"),
    **dict.fromkeys(("kube-node", "agent", "workers"), "workers[]"),
}
# Variable of a host -> its key; if a host has several of them, the first one counts.
_VARIABLES = {
    "ansible_host": "address",
    "ansible_ssh_host": "address",
    "ip": "address",
    "ansible_user": "user",
    "ansible_ssh_user": "user",
    "ansible_port": "port",
    "ansible_ssh_port": "port",
    "pool": "pool",
    "host_key": "host_key",
}
_KEYS = ("address", "user", "port", "pool", "host_key")
_ALL = ("all", "ungrouped")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass
class ImportedHosts:
    """Hosts by group, in the order of the file, and the variables of each host."""

    groups: dict[str, list[str]] = field(default_factory=dict)
    variables: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, group: str, host: str, variables: Mapping[str, Any]) -> None:
        """Put a host into a group; earlier values of a variable stay."""
        members = self.groups.setdefault(group, [])
        if host not in members:
            members.append(host)
        self.variables[host] = {**variables, **self.variables.get(host, {})}


def parse(text: str) -> ImportedHosts:
    """Parse an inventory. Raises ValueError, with the line if known."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}: " if text.lstrip().startswith("{") else ""
        raise ValueError(f"{line}is not JSON") from None
    if not isinstance(content, dict):
        raise ValueError("is not a JSON object")
    if "_meta" not in content:
        raise ValueError("has no `_meta`, as `ansible-inventory --list` prints it")
    found = ImportedHosts()
    if odd := [name for name, group in content.items() if not isinstance(group, dict)]:
        raise ValueError(f"{odd[0]}: is not a group of `ansible-inventory --list`")
    variables = content["_meta"].get("hostvars", {})
    for group in content:
        for host in _members(content, group, ()) if group != "_meta" else ():
            found.add(group, host, variables.get(host, {}))
    return found


def section(
    found: ImportedHosts, table: Mapping[str, str], needed: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """The section `hosts` as YAML, "" without a host in the table's groups, and notes on what it lacks.

    `table`: as GROUPS. `needed`: keys of `hosts` that a stack must have; a missing one is a comment.
    """
    roles, notes = _roles(found, table)
    if not roles:
        return "", notes
    lines = ["hosts:", *(f"  # missing: {key}" for key in needed if f"{key}[]" not in roles)]
    for key, hosts in roles.items():
        lines.append(f"  {key.removesuffix('[]')}:")
        for host in hosts:
            lines += _host(host, found.variables[host], is_item=key.endswith("[]"))
    return "\n".join(lines) + "\n", notes


def host_list(
    found: ImportedHosts, table: Mapping[str, str], roles: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """The hosts in the contract of busbar.config.stackfile.HostList, not validated, and notes.

    `table`: as GROUPS; `roles`: as ROLES there.
    """
    role_of = {key.removesuffix("[]"): role for role, key in roles.items()}
    known, notes = _roles(found, table)
    listed = []
    for key, hosts in known.items():
        for host in hosts:
            values, _ = _values(host, found.variables[host])
            listed.append({"name": _name(host), "role": role_of[key.removesuffix("[]")], **values})
    listed.sort(key=lambda host: [*roles].index(host["role"]))
    return {"version": 1, "hosts": listed}, notes


def _roles(found: ImportedHosts, table: Mapping[str, str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the hosts by key of `hosts`, and a note on each host that is in several groups."""
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
    return roles, notes


def unknown(found: ImportedHosts, tables: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Notes on what is not imported: unknown groups, hosts in no known group, and unknown variables."""
    known = {group for table in tables for group in _known(found, table)}
    imported = {host for group in known for host in found.groups[group]}
    for group, hosts in found.groups.items():
        if group not in known and group not in _ALL and hosts:
            yield f"group {group}: not known ({listed(hosts, 3)})"
    if others := [host for host in found.variables if host not in imported]:
        yield f"{listed(others, 3)}: in no known group, not imported"
    named = {name: None for host, own in found.variables.items() if host in imported for name in own}
    if variables := [name for name in named if name not in _VARIABLES]:
        yield f"variables that are not known: {listed(variables, 8)}; not imported"


def _known(found: ImportedHosts, table: Mapping[str, str]) -> dict[str, str]:
    """The groups of the inventory that are in the table, in its order, with their keys."""
    named = {group: group.replace("_", "-") for group in found.groups}
    return {group: key for each, key in table.items() for group in named if named[group] == each}


def _values(host: str, variables: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """The values of the keys of a host, and the keys that only Ansible can compute."""
    values: dict[str, Any] = {}
    for variable, key in _VARIABLES.items():
        if variable in variables:
            values.setdefault(key, variables[variable])
    computed = {key for key, value in values.items() if not _is_plain(value)}
    values.setdefault("address", host)
    return {key: values[key] for key in _KEYS if key in values.keys() - computed}, computed


def _name(written: str) -> str:
    return written.partition(".")[0].lower() if not is_address(written) else written


def _host(host: str, variables: Mapping[str, Any], *, is_item: bool) -> list[str]:
    values, computed = _values(host, variables)
    name = _name(host)
    lines = [f"name: {_scalar(name)}" + ("" if name == host else f"   # {host} in the inventory")]
    if not _NAME.fullmatch(name) or is_address(name):
        lines[0] += "   # missing: a name of lower-case letters, digits and -"
    for key in _KEYS:
        if key in computed:
            lines.append(f"# missing: {key}, which is computed in the inventory")
        elif key in values:
            is_number = key == "port" and str(values[key]).isdigit()
            lines.append(f"{key}: {values[key] if is_number else _scalar(values[key])}")
        elif key == "host_key":
            lines.append("# missing: host_key")
    first = "    - " if is_item else "    "
    return [f"{first if not number else ' ' * len(first)}{line}" for number, line in enumerate(lines)]


def _is_plain(value: Any) -> bool:
    """Whether a value is plain: not a template of Ansible, not from its vault, not a list."""
    return isinstance(value, str | int) and "{{" not in str(value)


def is_address(text: str) -> bool:
    """Return whether the text is an IP address, not a name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _scalar(value: Any) -> str:
    """One text as YAML, in quotes if it would be read as something else."""
    return str(yaml.safe_dump(str(value), width=1000)).splitlines()[0]


def _members(content: Mapping[str, Any], group: str, above: tuple[str, ...]) -> Iterator[str]:
    yield from content.get(group, {}).get("hosts", ())
    for child in content.get(group, {}).get("children", ()):
        if child not in above:
            yield from _members(content, child, (*above, group))
