"""Hosts from the inventories of other tools, as the section `hosts` of a stack file.

The input is the JSON of `ansible-inventory --list`, in which ranges and variables are resolved, or of
`terraform output -json`, whose outputs are taken as groups. Nothing is guessed: everything without a place in
the section is reported.
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
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass
class ImportedHosts:
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


def parse(text: str) -> ImportedHosts:
    """Parse an inventory in either form. Raises ValueError, with the line if known."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}: " if text.lstrip().startswith("{") else ""
        raise ValueError(f"{line}is not JSON") from None
    if not isinstance(content, dict):
        raise ValueError("is not a JSON object")
    return _ansible(content) if "_meta" in content else _terraform(content)


def section(
    found: ImportedHosts, table: Mapping[str, str], needed: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """The section `hosts` as YAML, "" without a host in the table's groups, and notes on what it lacks.

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


def _host(host: str, variables: Mapping[str, Any], *, is_item: bool) -> list[str]:
    values: dict[str, Any] = {}
    for variable, key in _VARIABLES.items():
        if variable in variables:
            values.setdefault(key, variables[variable])
    computed = {key for key, value in values.items() if not _is_plain(value)}
    written = host if "name" in computed else str(values.get("name") or host)
    name = written.partition(".")[0].lower() if not is_address(written) else written
    lines = [f"name: {_scalar(name)}" + ("" if name == written else f"   # {written} in the inventory")]
    if not _NAME.fullmatch(name) or is_address(name):
        lines[0] += "   # missing: a name of lower-case letters, digits and -"
    values.setdefault("address", host)
    for key in _KEYS:
        if key in computed:
            lines.append(f"# missing: {key}, which is computed in the inventory")
        elif key in values:
            is_number = key == "port" and str(values[key]).isdigit()
            lines.append(f"{key}: {values[key] if is_number else _scalar(values[key])}")
    lines.append("# missing: host_key")
    first = "    - " if is_item else "    "
    return [f"{first if not number else ' ' * len(first)}{line}" for number, line in enumerate(lines)]


def _is_plain(value: Any) -> bool:
    """Whether a value is plain: not a template of Ansible, not from its vault, not a list."""
    return isinstance(value, str | int) and "{{" not in str(value)


def is_address(text: str) -> bool:
    """Whether the text is an IP address, and no name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _scalar(value: Any) -> str:
    """One text as YAML, in quotes if it would be read as something else."""
    return str(yaml.safe_dump(str(value), width=1000)).splitlines()[0]


def _ansible(content: Mapping[str, Any]) -> ImportedHosts:
    """Read an Ansible inventory: each group with its own hosts and those of its children."""
    found = ImportedHosts()
    if odd := [name for name, group in content.items() if not isinstance(group, dict)]:
        raise ValueError(f"{odd[0]}: is not a group of `ansible-inventory --list`")
    variables = content["_meta"].get("hostvars", {})
    for group in content:
        for host in _members(content, group, ()) if group != "_meta" else ():
            found.add(group, host, variables.get(host, {}))
    return found


def _members(content: Mapping[str, Any], group: str, above: tuple[str, ...]) -> Iterator[str]:
    yield from content.get(group, {}).get("hosts", ())
    for child in content.get(group, {}).get("children", ()):
        if child not in above:
            yield from _members(content, child, (*above, group))


def _terraform(outputs: Mapping[str, Any]) -> ImportedHosts:
    """Read Terraform outputs: each is a group, with a list of hosts or addresses, or either by host name."""
    found = ImportedHosts()
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
