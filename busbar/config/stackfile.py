"""Reads a stack file, `Pulumi.<stack>.yaml`, without the Pulumi engine, for every command with a STACK."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ruamel.yaml.nodes import Node

from busbar.config import engine_yaml, hosts_from
from busbar.config.cluster import Cluster
from busbar.config.errors import ConfigError, Finding, show, unknown_keys
from busbar.config.hosts import has_list
from busbar.config.schema import KEY, PROJECT, SECRETS
from busbar.config.secrets import plain_text
from busbar.exits import Misuse

C = TypeVar("C")
EXAMPLE = "Pulumi.h100.example.yaml"
PROJECT_FILES = ("Pulumi.yaml", "Pulumi.yml")
_AMBIGUOUS = ("is another value in YAML 1.2 than for the engine", "quote it")
_LEADING_ZERO = (
    "is a number with a leading zero, which readers drop or take for octal",
    "leave the zero out, or quote it where it is a text",
)


class NoStackFileError(Misuse, FileNotFoundError):
    """The stack file does not exist; the message lists the stack files of the folder."""


@dataclass(frozen=True)
class StackFile:
    """A stack file as written: the object of its project, and the names of the secrets that are set.

    `namespace`: the prefix of its keys, the name of its project.
    """

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
        """The configuration, validated by LOAD, with the hosts of `hosts_from`. Raises ConfigError.

        `roles`: as busbar.config.hosts_from.ROLES, which it is by default.
        """
        more = {"secret_keys": self.secret_keys, "root": self.project}
        if not has_list(self.data):
            return load(self.data, **more)
        found = hosts_from.read_list(
            self.data,
            roles or hosts_from.ROLES,
            lambda given: hosts_from.read_kept(given, self.project, self.stack),
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

    A path starts at `cwd`; the file of a name is beside Pulumi.yaml (`project_folder`), or in `cwd` where
    there is none. Raises NoStackFileError.
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
        raise NoStackFileError(
            f"{path} does not exist, nor another stack file there. Fix: --project FOLDER, or make a site: "
            "busbar init DIR"
        )
    # The folder of a capability has none.
    example = f" ({EXAMPLE} is a commented example)" if (path.parent / EXAMPLE).is_file() else ""
    raise NoStackFileError(
        f"{path} does not exist; stack files there: {present}. Fix: name one of these, or write it{example}"
    )


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
    node, config = _config(path, _document(path))
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
    """The keys of a stack file of any project, `<project>:<name>`; none where an environment adds to them.

    Raises ConfigError.
    """
    document = _document(path)
    return set() if engine_yaml.value_of(document, "environment") else set(_config(path, document)[1])


def kept_hosts(path: Path) -> Path | None:
    """The copy of the list of hosts, if the hosts of a stack file are those of another stack."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if "hosts_from" not in text:
        return None
    try:
        config = _config(path, _document(path))[1]
    except ConfigError:
        return None
    given = [value["hosts_from"] for value in config.values() if has_list(value)]
    has_stack = any(isinstance(each, Mapping) and each.get("stack") for each in given)
    return hosts_from.kept_in(path.parent, stack_of(path)) if has_stack else None


def project_name(folder: Path | None) -> str | None:
    """The name in the Pulumi.yaml of a folder; None where it cannot be read."""
    for file in (folder / name for name in PROJECT_FILES if folder):
        try:
            return str(engine_yaml.construct(engine_yaml.compose(file.read_text(encoding="utf-8")))["name"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def _config(path: Path, document: Node | None) -> tuple[Node, dict[str, Any]]:
    """The object `config` of a stack file of any project, as written: `<project>:<key>` -> value.

    Raises ConfigError if there is no such object, or a key is there twice.
    """
    node = engine_yaml.value_of(document, "config")
    try:
        config = engine_yaml.construct(node)
    except engine_yaml.NotYaml as error:
        raise ConfigError([Finding((path.name,), f"is not valid YAML: {error}")]) from None
    if node is None or not isinstance(config, Mapping):
        raise ConfigError([Finding((path.name,), "`config:` is missing or not an object", f"see {EXAMPLE}")])
    return node, {str(key): value for key, value in config.items()}


def _document(path: Path) -> Node | None:
    """The stack file. Raises ConfigError if it is not YAML."""
    try:
        return engine_yaml.compose(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([Finding((path.name,), f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise ConfigError([Finding((path.name,), "is not a UTF-8 text")]) from None
    except engine_yaml.NotYaml as error:
        raise ConfigError([Finding((path.name,), f"is not valid YAML: {error}")]) from None
