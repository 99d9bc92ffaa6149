"""Adds line numbers and host names to the findings of a stack file, and merges those of one cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from busbar.config.engine_yaml import NotYaml, compose, value_of
from busbar.config.errors import Finding, path_of

# Findings that differ in the indexes of their paths only, from this number on, are printed as one.
_SAME_CAUSE = 3


def located(path: Path, findings: Iterable[Finding]) -> list[str]:
    """Each finding as `<file>:<line> <path> (<host>): <text>`, those of one cause as one.

    A finding whose path is not in the file has the line of the innermost object that is there.
    """
    try:
        document = compose(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, NotYaml):
        return [*map(str, findings)]
    groups: dict[Finding, list[tuple[int, str]]] = {}
    for each in findings:
        path_of_all = tuple("" if isinstance(part, int) else part for part in each.path)
        cause = replace(each, path=path_of_all, origin="")
        groups.setdefault(cause, []).append(_located(path.name, document, each))
    return [text for group in groups.values() for text in _as_one(path.name, group)]


def _as_one(file: str, group: list[tuple[int, str]]) -> list[str]:
    texts = [f"{file}:{line} {text}" if line else text for line, text in group]
    if len(group) < _SAME_CAUSE:
        return texts
    lines = ", ".join(str(line) for line, _ in group[1:] if line)
    return [f"{texts[0]} ({len(group) - 1} more like it{f': lines {lines}' if lines else ''})"]


def _located(file: str, document: Node | None, finding: Finding) -> tuple[int, str]:
    """The line of a finding (from 1; 0: the whole file), and its text with the names of hosts."""
    config = value_of(document, "config")
    if not isinstance(config, MappingNode) or finding.path[0] == file or finding.origin:
        return 0, str(finding)
    objects = [value for _, value in config.value if isinstance(value, MappingNode)]
    # A path without any step is the whole object: a top-level key is missing, or several keys do not fit.
    steps = max(([*_steps(root, finding)] for root in (config, *objects)), key=len)
    place = ""
    for at, part in enumerate(finding.path):
        place += path_of((part,)) if isinstance(part, int) or not place else f".{part}"
        if isinstance(part, int) and at < len(steps) and (name := value_of(steps[at][1], "name")):
            place += f" ({name.value})"
    whole = [key for key, value in config.value if value in objects[-1:]]
    keys = [key for key, _ in reversed(steps)] or whole
    return keys[0].start_mark.line + 1 if keys else 0, finding.at(place)


def _steps(node: Node, finding: Finding) -> Iterator[tuple[Node, Node]]:
    """The key and value of each part of the path that is below `node`; a list item is both."""
    for part in finding.path:
        if isinstance(part, int):
            items = node.value if isinstance(node, SequenceNode) else []
            found = [(each, each) for each in items[part : part + 1]]
        else:
            items = node.value if isinstance(node, MappingNode) else []
            found = [(key, value) for key, value in items if key.value == part]
        if not found:
            return
        yield found[0]
        node = found[0][1]
