"""The contract `hosts`: a list of SSH hosts that something else writes, and a configuration that reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError

from busbar.config.errors import ConfigError, Finding, KeyPath, did_you_mean, finding, section, show
from busbar.config.files import resolve
from busbar.config.hosts import HostConfig, HostsFrom, Topology
from busbar.config.kubernetes_values import DnsLabel
from busbar.config.network_values import HcaName, HostKey
from busbar.config.schema import tidy
from busbar.config.values import Int, Matching, NonEmpty
from busbar.models import ConfigModel

T = TypeVar("T")
VERSION = 1
FILE = "hosts.json"
# Role -> its key below `hosts` of a K3s cluster; `[]` is a list.
ROLES: Mapping[str, str] = {
    "load_balancer": "load_balancers[]",
    "server": "servers[]",
    "worker": "workers[]",
    "nfs_server": "nfs_server",
}
# The keys of a host in a list that a stack file does not have.
OF_LIST = {"role", "gpus", "hcas", "provider_id"}

Guid = Annotated[
    str,
    Matching(r"(0x)?[0-9a-fA-F]{16}|([0-9a-fA-F]{4}:){3}[0-9a-fA-F]{4}", "a GUID, as 9803:9b03:0067:ab12"),
]


class ListedHca(ConfigModel):
    """An HCA of a host."""

    name: HcaName = Field(description="Its name on the host, such as mlx5_0.")
    guid: Guid | None = Field(default=None, description="Its node GUID.")


class ListedHost(HostConfig):
    """A host that is reachable over SSH."""

    role: Literal["load_balancer", "server", "worker", "nfs_server", "controller", "login"] = Field(
        description="What it becomes; in Slurm: controller, login, and worker for compute hosts."
    )
    host_key: HostKey | None = Field(  # type: ignore[assignment]
        default=None, description="Its ed25519 host key. No cluster is made without it: `busbar hosts keys`."
    )
    pool: DnsLabel | None = Field(default=None, description="Pool of a worker; optional with a single pool.")
    topology: Topology | None = Field(default=None, description="Where a worker is in the fabric.")
    gpus: Annotated[Int, Field(ge=0, le=64)] | None = Field(
        default=None, description="Number of its GPUs. For other programs; preflight counts those it finds."
    )
    hcas: list[ListedHca] | None = Field(default=None, description="Its HCAs. For other programs.")
    provider_id: NonEmpty | None = Field(default=None, description="Its id at the provider.")


class HostList(ConfigModel):
    """Hosts, in the order in which a stack file would list them. It has no secret."""

    version: Literal[1] = Field(description="Version of this contract.")
    source: NonEmpty | None = Field(default=None, description="Where the list was read, in a kept copy.")
    hosts: Annotated[list[ListedHost], Field(min_length=1)] = Field(description="The hosts of one cluster.")

    def text(self, source: str | None = None) -> str:
        """The list as JSON."""
        kept = self.model_copy(update={"source": source})
        return kept.model_dump_json(indent=2, exclude_none=True) + "\n"


def hosts_schema() -> dict[str, Any]:
    """The JSON Schema of the contract."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Hosts"}
    return {**head, **tidy(HostList.model_json_schema())}


@dataclass(frozen=True)
class ListedHosts:
    """A configuration with the hosts of its list, where a stack file has them."""

    data: Mapping[str, Any]
    given: HostsFrom
    listed: HostList

    def load(self, load: Callable[..., T], **more: Any) -> T:
        """Load the configuration. Raises ConfigError, whose findings name the list."""
        try:
            return load(self.data, **more)
        except ConfigError as error:
            found = error.findings
        source = self.given.source
        raise ConfigError(
            replace(each, origin=_origin(self.data, each.path, source))
            if each.path[0] == "hosts" and "virtual_ip" not in each.path
            else each
            for each in found
        )


def read_list(
    data: Mapping[str, Any], roles: Mapping[str, str], read: Callable[[HostsFrom], Any]
) -> ListedHosts:
    """The configuration DATA with the list of its `hosts_from`, which READ returns.

    `roles`: as ROLES. Raises ConfigError for an invalid list; its hosts are not checked together.
    """
    given = section(HostsFrom, "hosts_from", data["hosts_from"])
    hosts = data.get("hosts") or {}
    keys = {role: key.removesuffix("[]") for role, key in roles.items()}
    both = [("hosts", key) for key in keys.values() if not isinstance(hosts, Mapping) or key in hosts]
    if both:
        raise ConfigError(
            Finding(path, "given together with hosts_from", "remove one of the two") for path in both
        )
    listed = validated(read(given), given.source)
    problems = [*_of_other_roles(listed.hosts, roles, given.source), *_not_listed(listed.hosts, given)]
    if problems:
        raise ConfigError(problems)
    groups: dict[str, Any] = {}
    for host in listed.hosts:
        made = host.model_dump(exclude_none=True, exclude=OF_LIST)
        if reason := given.quarantine.get(host.name):
            made["quarantine"] = reason
        if roles[host.role].endswith("[]"):
            groups.setdefault(keys[host.role], []).append(made)
        else:
            groups[keys[host.role]] = made
    rest = {key: value for key, value in data.items() if key != "hosts_from"}
    return ListedHosts({**rest, "hosts": {**hosts, **groups}}, given, listed)


def validated(content: Any, source: str) -> HostList:
    """The list. Raises ConfigError; its findings have paths in the list."""
    version = content.get("version") if isinstance(content, Mapping) else None
    if isinstance(version, int | float | str) and version != VERSION:
        text = f"is not supported (supported: {VERSION}), so no host was read and nothing changes"
        fix = f"write version {VERSION}, or use a busbar that reads the other one"
        raise ConfigError([Finding(("version",), text, fix, show(version), f"in {source}")])
    try:
        return HostList.model_validate(content)
    except ValidationError as error:
        found = [finding(each, HostList) for each in error.errors()]
    raise ConfigError(replace(each, origin=_origin(content, each.path, source)) for each in found)


def read_file(given: HostsFrom, project: Path) -> Any:
    """The content of `hosts_from.file`. Raises ConfigError."""
    return _content(resolve(project, str(given.file)), ("hosts_from", "file"), str(given.file))


def kept_in(project: Path, stack: str) -> Path:
    """The copy of the list that the last preview or update of a stack has used."""
    return project / ".busbar" / stack / FILE


def read_kept(given: HostsFrom, project: Path, stack: str) -> Any:
    """The content of the list for commands beside the engine: a file, or the copy of a stack's output.

    Raises ConfigError.
    """
    if given.file is not None:
        return read_file(given, project)
    path, where = kept_in(project, stack), ("hosts_from", "stack")
    content = _content(path, where, str(path)) if path.is_file() else None
    if isinstance(content, Mapping) and content.get("source") == given.source:
        return content
    why = f"is of {show(content.get('source'))}" if isinstance(content, Mapping) else "has no list"
    text = f"was not read yet: {path} {why}"
    raise ConfigError([Finding(where, text, f"`busbar preview {stack}` reads it", repr(given.stack))])


def _content(path: Path, where: tuple[str, str], name: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        text = f"cannot be read: {error.strerror}"
    except RecursionError:
        text = "is nested too deeply"
    except ValueError as error:
        text = f"is not JSON: {error}"
    raise ConfigError([Finding(where, text, found=repr(name))])


def _of_other_roles(hosts: Sequence[ListedHost], roles: Mapping[str, str], source: str) -> Iterator[Finding]:
    """Findings of hosts that have no place in this stack."""
    first: dict[str, int] = {}
    for index, host in enumerate(hosts):
        path, origin = ("hosts", index, "role"), f"{host.name} in {source}"
        if host.role not in roles:
            text = f"is not a role in this stack; expected one of: {', '.join(roles)}"
            yield Finding(path, text, "keep a list per cluster", repr(host.role), origin)
        elif not roles[host.role].endswith("[]") and first.setdefault(host.role, index) != index:
            text = f"is also the role of hosts[{first[host.role]}]; expected one host with it"
            yield Finding(path, text, "", repr(host.role), origin)


def _not_listed(hosts: Sequence[ListedHost], given: HostsFrom) -> Iterator[Finding]:
    """Findings of quarantines of hosts that are not in the list."""
    workers = [host.name for host in hosts if host.role == "worker"]
    for name in given.quarantine:
        if name not in workers:
            hint = did_you_mean(name, workers) or "; remove the line"
            yield Finding(("hosts_from", "quarantine", name), f"is not a worker in {given.source}{hint}")


def _origin(content: Any, path: KeyPath, source: str) -> str:
    """The host that a path below CONTENT is about, and where the list is."""
    for part in path:
        try:
            content = content[part]
        except (LookupError, TypeError):
            break
        name = content.get("name") if isinstance(content, Mapping) else None
        if isinstance(name, str) and name.isprintable():
            return f"{name} in {source}"
    return f"in {source}"
