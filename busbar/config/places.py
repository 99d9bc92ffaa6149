"""Where the findings of a stack file are: line numbers, names of hosts, and one line for one cause."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from busbar.config.stackfile import SafeLoader

# Findings with the same words below other indexes, from this number on, are printed as one.
_SAME_CAUSE = 3
_INDEX = re.compile(r"\[(\d+)\]")


def located(path: Path, findings: Iterable[str]) -> list[str]:
    """Each finding as `<file>:<line> <path> (<host>): <text>`, those of one cause as one.

    A finding whose path is not in the file has the line of the innermost object that is there.
    """
    try:
        document = yaml.compose(path.read_text(encoding="utf-8"), SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return list(findings)
    groups: dict[str, list[str]] = {}
    for finding in findings:
        groups.setdefault(_INDEX.sub("[]", finding), []).append(_located(path, document, finding))
    return [text for group in groups.values() for text in _as_one(group)]


def _as_one(group: list[str]) -> list[str]:
    if len(group) < _SAME_CAUSE:
        return group
    lines = ", ".join(text.partition(" ")[0].rpartition(":")[2] for text in group[1:])
    return [f"{group[0]} ({len(group) - 1} more like it: lines {lines})"]


def _located(path: Path, document: yaml.Node | None, finding: str) -> str:
    config = _value(document, "config")
    if not isinstance(config, yaml.MappingNode) or finding.startswith(path.name):
        return finding
    roots = [config, *(value for _, value in config.value)]
    line, names = max((_descend(root, finding) for root in roots), key=lambda found: found[0])
    if not line:
        # The object as a whole: a key is missing at its top, or several keys do not fit together.
        objects = [key for key, value in config.value if isinstance(value, yaml.MappingNode)]
        line = objects[-1].start_mark.line + 1 if objects else 0
    if not line:
        return finding
    for end, name in reversed(names):
        finding = f"{finding[:end]} ({name}){finding[end:]}"
    return f"{path.name}:{line} {finding}"


def _descend(node: yaml.Node, finding: str) -> tuple[int, list[tuple[int, str]]]:
    """The line (from 1; 0: not below `node`) of a finding, and where in it which host is named."""
    line, at, names = 0, 0, []
    while (step := _step(node, finding, at)) is not None:
        key, node, end = step
        line = key.start_mark.line + 1
        if finding[at] == "[" and (name := _value(node, "name")) is not None:
            names.append((end, str(name.value)))
        at = end + finding[end:].startswith(".")
    return line, names


def _step(node: yaml.Node, finding: str, at: int) -> tuple[yaml.Node, yaml.Node, int] | None:
    """The key and value that the path names next, and where their name ends; keys may have dots in them."""
    if isinstance(node, yaml.SequenceNode):
        index = _INDEX.match(finding, at)
        if index is None or int(index[1]) >= len(node.value):
            return None
        item = node.value[int(index[1])]
        return item, item, index.end()
    if not isinstance(node, yaml.MappingNode):
        return None
    fitting = [(k, v, at + len(k.value)) for k, v in node.value if _is_key(k.value, finding, at)]
    return max(fitting, key=lambda found: found[2], default=None)


def _is_key(key: Any, finding: str, at: int) -> bool:
    return (
        isinstance(key, str)
        and finding.startswith(key, at)
        and finding[at + len(key) :][:1] in (".", "[", ":")
    )


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)
