"""Reads a stack file, `Pulumi.<stack>.yaml`, without the Pulumi engine: its secrets, its JSON Schema, and the
lists of hosts that something else writes (`hosts_from`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError
from ruamel.yaml.nodes import Node

from busbar.config import engine_yaml
from busbar.config.cluster import Cluster, HostConfig, HostsFrom, Topology, has_list
from busbar.config.files import resolve
from busbar.config.findings import ConfigError, did_you_mean, finding, section, show, unknown_keys
from busbar.config.types import DnsLabel, HostKey, NonEmpty
from busbar.exits import Misuse
from busbar.finding import STACK, Finding, Fix, KeyPath
from busbar.models import ConfigModel

PROJECT = "busbar"
KEY = "cluster"

SECRETS = {
    "sshPrivateKey": "Private key for all hosts, if neither ssh.key_file nor ssh.agent is used.",
    "sshPrivateKeyPassword": "Passphrase of the private key, if it has one.",
    "registryCredentials": 'Logins for registries as JSON: {"HOST": {"username": .., "password": ..}}.',
    "s3AccessKey": "Access key for the bucket of k3s.snapshots.s3.",
    "s3SecretKey": "Secret key for the bucket of k3s.snapshots.s3.",
}
"""The secrets of a stack: top-level keys `busbar:<key>`, declared in Pulumi.yaml, with descriptions."""

_SECRET = {
    "type": "object",
    "required": ["secure"],
    "additionalProperties": False,
    "properties": {"secure": {"type": "string", "description": "Ciphertext, written by Pulumi."}},
}
# A bound after one of our validators is rendered under pydantic's own name.
_KEYWORDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def stack_schema() -> dict[str, Any]:
    """The schema of `Pulumi.<stack>.yaml`: `busbar:cluster` and the secrets."""
    return project_schema(PROJECT, KEY, Cluster, SECRETS)


def project_schema(
    project: str, key: str, model: type[BaseModel], secrets: Mapping[str, str]
) -> dict[str, Any]:
    """The schema of a stack file of `project`: `<project>:<key>` is a `model`; `secrets` are optional."""
    root = tidy(model.model_json_schema(ref_template="#/$defs/{model}"))
    definitions = {**root.pop("$defs", {}), model.__name__: root}
    keys: dict[str, Any] = {f"{project}:{key}": {"$ref": f"#/$defs/{model.__name__}"}}
    for name, description in secrets.items():
        definitions["Secret"] = _SECRET
        how = f"Set it with `pulumi config set --secret {project}:{name} --stack STACK`."
        keys[f"{project}:{name}"] = {"$ref": "#/$defs/Secret", "description": f"{description} {how}"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A stack of {project}: Pulumi.<stack>.yaml",
        "type": "object",
        "required": ["config"],
        "properties": {
            "config": {
                "description": "Configuration of the stack.",
                "type": "object",
                "required": [f"{project}:{key}"],
                "properties": keys,
                "patternProperties": {f"^(?!{project}:)": {"description": "Configuration of a provider."}},
                "additionalProperties": False,
            },
            "secretsprovider": {"type": "string", "description": "Location of Pulumi's secrets key."},
            "encryptedkey": {"type": "string", "description": "Written by Pulumi."},
            "encryptionsalt": {"type": "string", "description": "Written by Pulumi (passphrase)."},
            "environment": {"description": "Pulumi ESC environments to import."},
        },
        "additionalProperties": False,
        "$defs": dict(sorted(definitions.items())),
    }


def tidy(node: Any, *, is_mapping_of_fields: bool = False) -> Any:
    """Remove titles, `default: null` and line breaks, and name bounds as JSON Schema does."""
    if isinstance(node, list):
        return [tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    made: dict[str, Any] = {}
    for key, value in node.items():
        if not is_mapping_of_fields:
            if key == "title" or (key == "default" and value is None):
                continue
            key = _KEYWORDS.get(key, key)
            if key == "description":
                value = " ".join(value.split())
        if key == "default":
            made[key] = value
        else:
            fields = key in {"properties", "$defs"} and not is_mapping_of_fields
            made[key] = tidy(value, is_mapping_of_fields=fields)
    return made


_FIX = (
    "remove it. busbar makes the cluster's tokens itself, and logs in with a key, never with a password. Its "
    "own secrets are top-level keys, which `pulumi config set --secret busbar:KEY --stack STACK` sets: "
    f"{', '.join(SECRETS)}. Any other one belongs in a Kubernetes Secret"
)
# A whole key, in snake case.
_SECRET_KEY = re.compile(
    r"(ssh_)?private_key|((ssh_)?private_)?key_password|passphrase|password|passwd|((agent|server)_)?token"
    r"|((etcd_)?s3_)?(access|secret)_key|registry_credentials|(.*_)?api_key"
)
# NGC's personal keys, and tokens of GitHub and Hugging Face, under whatever key.
_SECRET_TEXT = re.compile(r"nvapi-[\w-]{20,}|gh[opsu]_\w{30,}|github_pat_\w{30,}|hf_[A-Za-z0-9]{30,}")
_SECRET_VARIABLE = re.compile(r"(^|_)(password|passwd|token|secret|secret_key|access_key|api_key)$")


def secrets_in(data: Any, path: KeyPath = ()) -> Iterator[Finding]:
    """Yield one for every secret in `data`; it never holds the value."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            here = (*path, str(key))
            # Nested secrets reach the program in plain text.
            is_secret = _is_secret(here) or (isinstance(value, Mapping) and set(value) == {"secure"})
            if not is_secret:
                yield from secrets_in(value, here)
            elif value is not None and value != "":
                yield Finding(here, "is a secret inside busbar:cluster", _FIX)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from secrets_in(value, (*path, index))
    elif isinstance(data, str) and ("PRIVATE KEY-----" in data or _SECRET_TEXT.search(data)):
        yield Finding(path, "is a secret inside busbar:cluster", _FIX)


def _is_secret(path: KeyPath) -> bool:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(path[-1])).replace("-", "_").lower()
    if path[:2] == ("k3s", "registries") and name in {"auth", "username", "identity_token"}:
        return True
    if path[:2] == ("k3s", "rotate"):
        return False  # numbers of rotations
    if path[:2] == ("validation", "env") and path[2:]:
        return bool(_SECRET_VARIABLE.search(name))
    return bool(_SECRET_KEY.fullmatch(name))


def plain_text(key: str, project: str = "busbar") -> Finding:
    """The finding for a secret key of the stack whose value is not encrypted."""
    fix = f"replace the secret everywhere, then `pulumi config set --secret {project}:{key} --stack {STACK}`"
    return Finding((f"{project}:{key}",), "is stored in plain text", fix)


_LOGIN_KEYS = {"username", "password", "auth", "identity_token"}
_LOGIN_FORM = 'expected {"registry.example.com": {"username": "...", "password": "..."}}'


def registry_credentials(text: str) -> dict[str, dict[str, str]]:
    """Registry -> its `auth` in registries.yaml. Raises ConfigError, which shows nothing of the text."""
    key = "busbar:registryCredentials"
    try:
        content: Any = json.loads(text)
    except ValueError as error:
        position = getattr(error, "pos", None)
        raise ConfigError([Finding((key,), f"is not JSON (character {position}): {_LOGIN_FORM}")]) from None
    if not isinstance(content, dict) or not content:
        raise ConfigError([Finding((key,), f"is not an object of registries: {_LOGIN_FORM}")])
    problems = [
        Finding((key,), f"{registry!r} has no login: {_LOGIN_FORM}")
        for registry, login in content.items()
        if not (isinstance(login, dict) and login and login.keys() <= _LOGIN_KEYS)
        or not all(isinstance(each, str) for each in login.values())
    ]
    if problems:
        raise ConfigError(problems)
    return content


T = TypeVar("T")
VERSION = 1
FILE = "hosts.json"
# The variable with the sha256 of the list that a person has seen the preview of.
LISTED = "BUSBAR_LISTED_HOSTS"
# Role -> its key below `hosts` of a K3s cluster; `[]` is a list.
ROLES: Mapping[str, str] = {
    "load_balancer": "load_balancers[]",
    "server": "servers[]",
    "worker": "workers[]",
    "nfs_server": "nfs_server",
}
# The keys of a host in a list that a stack file does not have.
OF_LIST = {"role", "provider_id"}


class ListedHost(HostConfig):
    """A host that is reachable over SSH."""

    role: Literal["load_balancer", "server", "worker", "nfs_server", "controller", "login"]
    """What it becomes; in Slurm: controller, login, and worker for compute hosts."""
    host_key: HostKey | None = None  # type: ignore[assignment]
    """Its ed25519 host key. No cluster is made without it: `busbar hosts keys`."""
    pool: DnsLabel | None = None
    """Pool of a worker; optional with a single pool."""
    topology: Topology | None = None
    """Where a worker is in the fabric."""
    provider_id: NonEmpty | None = None
    """Its id at the provider. For other programs."""


class HostList(ConfigModel):
    """Hosts, in the order in which a stack file would list them. It has no secret."""

    version: Literal[1]
    """Version of this contract."""
    source: NonEmpty | None = None
    """Where the list was read, in a kept copy."""
    hosts: Annotated[list[ListedHost], Field(min_length=1)]
    """The hosts of one cluster."""

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


def with_listed_hosts(
    data: Mapping[str, Any], roles: Mapping[str, str], read: Callable[[HostsFrom], Any]
) -> ListedHosts:
    """The configuration DATA with the hosts of its `hosts_from`, which READ returns. Raises ConfigError."""
    given = section(HostsFrom, "hosts_from", data["hosts_from"])
    hosts = data.get("hosts") or {}
    keys = {role: key.removesuffix("[]") for role, key in roles.items()}
    both = [("hosts", key) for key in keys.values() if not isinstance(hosts, Mapping) or key in hosts]
    if both:
        raise ConfigError(Finding(path, "given together with hosts_from", "remove one") for path in both)
    listed = host_list(read(given), given.source)
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


def host_list(content: Any, source: str) -> HostList:
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
    """The list for commands beside the engine: a file, or the kept copy of an output. Raises ConfigError."""
    if given.file is not None:
        return read_file(given, project)
    path, where = kept_in(project, stack), ("hosts_from", "stack")
    content = _content(path, where, str(path)) if path.is_file() else None
    if isinstance(content, Mapping) and content.get("source") == given.source:
        return content
    why = f"is of {show(content.get('source'))}" if isinstance(content, Mapping) else "has no list"
    text = f"was not read yet: {path} {why}"
    fix = Fix(command=("preview", stack), when=", which reads it")
    raise ConfigError([Finding(where, text, fix, repr(given.stack))])


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


C = TypeVar("C")
EXAMPLE = "Pulumi.h100.example.yaml"
PROJECT_FILES = ("Pulumi.yaml", "Pulumi.yml")
_AMBIGUOUS = ("is another value in YAML 1.2 than for the engine", "quote it")
_LEADING_ZERO = (
    "is a number with a leading zero, which readers drop or take for octal",
    "leave the zero out, or quote it where it is a text",
)


NO_PROJECT = Fix("name its folder by --project, or make a site", ("init", "DIR"))


class NoStackFileError(Misuse, FileNotFoundError):
    """The stack file does not exist; the message lists the stack files of the folder."""


@dataclass(frozen=True)
class StackFile:
    """A stack file as written: its object, and the secrets that are set. `namespace`: of its keys."""

    path: Path
    data: Any
    secret_keys: frozenset[str]
    namespace: str = PROJECT

    @property
    def stack(self) -> str:
        """Name of the stack: `prod` for Pulumi.prod.yaml."""
        return stack_of(self.path)

    @property
    def project(self) -> Path:
        """The project folder, from which relative paths of the configuration start."""
        return self.path.parent

    def cluster(self) -> Cluster:
        """The validated `busbar:cluster`, with the files that it names, as `up` does. Raises ConfigError."""
        from busbar.config.project import load

        return self.load(load)

    def load(self, load: Callable[..., C], roles: Mapping[str, str] | None = None) -> C:
        """The configuration by LOAD, with hosts of `hosts_from` (`roles`: as ROLES). Raises ConfigError."""
        more = {"secret_keys": self.secret_keys, "root": self.project}
        if not has_list(self.data):
            return load(self.data, **more)
        found = with_listed_hosts(
            self.data, roles or ROLES, lambda given: read_kept(given, self.project, self.stack)
        )
        return found.load(load, **more)

    def with_hosts(self, roles: Mapping[str, str] | None = None) -> Any:
        """The object with the hosts of `hosts_from` below `hosts`, else as written. Raises ConfigError."""
        return self.load(lambda data, **_: data, roles)


def project_folder(given: Path | None, cwd: Path) -> Path | None:
    """The folder of Pulumi.yaml: `given`, else the nearest one, from `cwd` upward; None without one."""
    folders = (cwd, *cwd.parents) if given is None else (cwd / given.expanduser(),)
    found = (folder for folder in folders if any((folder / name).is_file() for name in PROJECT_FILES))
    return next((folder.resolve() for folder in found), None)


def stack_of(path: Path) -> str:
    """Name of the stack of a stack file: `prod` for Pulumi.prod.yaml."""
    return path.stem.removeprefix("Pulumi.")


def stacks(folder: Path) -> list[str]:
    """The names of the stacks that have a file in a folder."""
    return sorted(file.name.split(".", 1)[1].removesuffix(".yaml") for file in folder.glob("Pulumi.*.yaml"))


def find(stack: str, project: Path | None, cwd: Path) -> Path:
    """The file of `stack`, which is the path of a stack file, or the name of a stack.

    A path starts at `cwd`; the file of a name is beside Pulumi.yaml, else in `cwd`. Raises NoStackFileError.
    """
    if stack.endswith((".yaml", ".yml")):
        path = cwd / Path(stack).expanduser()
    else:
        folder = project_folder(project, cwd) or cwd / (project or "")
        # `organization/busbar/dev` names the same file as `dev`.
        path = folder / f"Pulumi.{stack.rpartition('/')[2]}.yaml"
    if path.is_file():
        return path
    present = ", ".join(f"Pulumi.{name}.yaml" for name in stacks(path.parent))
    if not present:
        raise NoStackFileError(f"{path} does not exist, nor another stack file there", NO_PROJECT)
    # The folder of a capability has none.
    example = f" ({EXAMPLE} is a commented example)" if (path.parent / EXAMPLE).is_file() else ""
    fix = f"name one of these, or write it{example}"
    raise NoStackFileError(f"{path} does not exist; stack files there: {present}", fix)


def read(
    path: Path,
    project: str = PROJECT,
    key: str = KEY,
    secrets: Collection[str] = SECRETS,
    what: str = "the cluster",
) -> StackFile:
    """Read a stack file. Raises ConfigError if it is not YAML, or its keys are not those of a stack.

    These are the object `<project>:<key>`, which describes `what`, and some of `secrets`.
    """
    node, config = _config(path, *_document(path))
    problems = list(unknown_keys(config, project, [key, *secrets]))
    set_secrets: set[str] = set()
    for name in secrets:
        value = config.get(f"{project}:{name}")
        if isinstance(value, Mapping) and set(value) == {"secure"}:
            set_secrets.add(name)
        elif value:
            problems.append(plain_text(name, project))
    if f"{project}:{key}" not in config:
        others = [name.partition(":")[0] for name in config]
        other = next((name for name in others if name != project and f"{name}-".startswith("busbar-")), None)
        text, fix = f"missing: the object that describes {what}", f"see {EXAMPLE}"
        if other:
            text, fix = (
                f"missing: this is a stack file of the project {other}",
                "keep it in that project's folder",
            )
        problems.append(Finding((f"{project}:{key}",), text, fix))
    problems += (
        Finding(where, *(_LEADING_ZERO if text[:1] == "0" else _AMBIGUOUS), show(text))
        for where, text in engine_yaml.ambiguous(engine_yaml.value_of(node, f"{project}:{key}"))
    )
    if problems:
        raise ConfigError(problems)
    return StackFile(path, config[f"{project}:{key}"], frozenset(set_secrets), project)


def keys(path: Path) -> set[str]:
    """The keys `<project>:<name>` of a file; none where an environment adds to them. Raises ConfigError."""
    node, content = _document(path)
    has_environment = isinstance(content, Mapping) and "environment" in content
    return set() if has_environment else set(_config(path, node, content)[1])


def written(path: Path, name: str) -> Any:
    """The object `<project>:<key>` of a stack file, unchecked; None without one. Raises ConfigError."""
    return _config(path, *_document(path))[1].get(name)


def sections(path: Path) -> list[Mapping[str, Any]]:
    """The objects in the configuration of a stack file of any project; none where it cannot be read."""
    try:
        config = _config(path, *_document(path))[1]
    except ConfigError:
        return []
    return [each for each in config.values() if isinstance(each, Mapping)]


def quarantined(path: Path) -> set[str]:
    """The names of hosts that a valid stack file of any project lists with a quarantine."""
    found = sections(path)
    lists = [hosts for each in found for hosts in (each.get("hosts") or {}).values()]
    hosts = [host for each in lists if isinstance(each, list) for host in each]
    given = [each.get("hosts_from") for each in found]
    listed = {name for each in given if isinstance(each, Mapping) for name in each.get("quarantine") or ()}
    return {host["name"] for host in hosts if host.get("quarantine")} | listed


def kept_hosts(path: Path) -> Path | None:
    """The copy of the list of hosts, if the hosts of a stack file are those of another stack."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if "hosts_from" not in text:
        return None
    given = [each["hosts_from"] for each in sections(path) if has_list(each)]
    has_stack = any(isinstance(each, Mapping) and each.get("stack") for each in given)
    return kept_in(path.parent, stack_of(path)) if has_stack else None


def project_name(folder: Path | None) -> str | None:
    """The name in the Pulumi.yaml of a folder; None where it cannot be read."""
    for file in (folder / name for name in PROJECT_FILES if folder):
        try:
            return str(engine_yaml.construct(engine_yaml.compose(file.read_text(encoding="utf-8")))["name"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def _config(path: Path, node: Node | None, content: Any) -> tuple[Node | None, dict[str, Any]]:
    """The object `config` of a document: its node, and `<project>:<key>` -> value. Raises ConfigError."""
    config = content.get("config") if isinstance(content, Mapping) else None
    if not isinstance(config, Mapping):
        raise ConfigError([Finding((path.name,), "`config:` is missing or not an object", f"see {EXAMPLE}")])
    return engine_yaml.value_of(node, "config"), {str(key): value for key, value in config.items()}


def _document(path: Path) -> tuple[Node | None, Any]:
    """The nodes and the content of a stack file. Raises ConfigError if it is not YAML."""
    try:
        node = engine_yaml.compose(path.read_text(encoding="utf-8"))
        return node, engine_yaml.construct(node)
    except OSError as error:
        raise ConfigError([Finding((path.name,), f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise ConfigError([Finding((path.name,), "is not a UTF-8 text")]) from None
    except engine_yaml.NotYaml as error:
        raise ConfigError([Finding((path.name,), f"is not valid YAML: {error}")]) from None
