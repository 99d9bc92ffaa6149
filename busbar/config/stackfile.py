"""A stack file, `Pulumi.<stack>.yaml`, read without the Pulumi engine, for `busbar check-config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from busbar.config.errors import ConfigError, did_you_mean
from busbar.config.schema import SECRETS


class NoStackFileError(FileNotFoundError):
    """There is no such stack file; the message names those that there are."""


@dataclass(frozen=True)
class StackFile:
    """The keys of one stack that are busbar's."""

    path: Path
    cluster: Any
    secret_keys: frozenset[str]


def find(stack_or_file: str, folder: Path) -> Path:
    """The file of a stack name, or the file itself. Raises NoStackFileError."""
    named = folder / Path(stack_or_file).expanduser()
    if named.suffix in {".yaml", ".yml"}:
        path = named
    else:
        # `organization/busbar/dev` names the same file as `dev`.
        path = folder / f"Pulumi.{stack_or_file.rpartition('/')[2]}.yaml"
    if path.is_file():
        return path
    there = sorted(p.name for p in folder.glob("Pulumi.*.yaml"))
    raise NoStackFileError(f"there is no {path}; in this folder: {', '.join(there) or 'no stack file'}")


def read(path: Path) -> StackFile:
    """Read a stack file. Raises ConfigError where it is no YAML, or its keys are not those of a stack."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)
    except UnicodeDecodeError:
        raise ConfigError([f"{path.name}: is not a text in UTF-8"]) from None
    except yaml.YAMLError as error:
        raise ConfigError([f"{path.name}: is not valid YAML: {_where(error)}"]) from None
    config = document.get("config") if isinstance(document, Mapping) else None
    if not isinstance(config, Mapping):
        raise ConfigError([f"{path.name}: has no `config:` with keys; Pulumi.h100.example.yaml shows one"])
    problems: list[str] = []
    set_secrets: set[str] = set()
    for key, value in config.items():
        name = str(key).removeprefix("busbar:")
        if not str(key).startswith("busbar:") or name == "cluster":
            continue
        if name not in SECRETS:
            hint = did_you_mean(name, [*SECRETS, "cluster"]) or f"; there are: cluster, {', '.join(SECRETS)}"
            problems.append(f"{key}: unknown key{hint}")
        elif isinstance(value, Mapping) and set(value) == {"secure"}:
            set_secrets.add(name)
        elif value:
            problems.append(
                f"{key}: lies here in plain text: change it wherever it is used, then "
                f"`pulumi config set --secret {key}`"
            )
    if "busbar:cluster" not in config:
        problems.append("busbar:cluster: missing: the object that describes the cluster")
    if problems:
        raise ConfigError(problems)
    return StackFile(path, config["busbar:cluster"], frozenset(set_secrets))


def _where(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "it cannot be read"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else str(problem)


class _StrictLoader(yaml.SafeLoader):
    """As Pulumi reads YAML: a key that stands twice is an error, where PyYAML would take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands here a second time", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)
