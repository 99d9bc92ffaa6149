"""Reads YAML as the Pulumi engine does (gopkg.in/yaml.v3), with the place of each value in the text.

ruamel.yaml reads YAML 1.2. The engine reads a few plain values in another way, such as 0022, which is 18
there. These are refused: no reading of them could be right for everybody.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from busbar.finding import Finding, KeyPath, path_of

_TAG = "tag:yaml.org,2002:"
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]*[0-9]_*")
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([Tt ].*)?")
_NUMBER = re.compile(r"[-+]?(0[XBO][0-9a-fA-F]+|(\.[0-9]+|[0-9]+(\.[0-9]*)?)(e[-+]?[0-9]+)?)", re.IGNORECASE)
_INT_DIGITS = 17  # The engine makes a rounded float of an integer from 2^63 on.


class NotYaml(ValueError):
    """A text that is not valid YAML; the message says where (line and column, from 1) and what is wrong."""


def compose(text: str) -> Node | None:
    """The nodes of a document, with their places in `text`; None of an empty one. Raises NotYaml."""
    try:
        node: Node | None = YAML(typ="safe", pure=True).compose(text)
    except (YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise NotYaml(_where(error)) from None
    return node


def construct(node: Node | None) -> Any:
    """The value of a node of `compose`. Raises NotYaml, such as for a key that is there twice."""
    if node is None:
        return None
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    try:
        value = yaml.constructor.construct_document(node)
        json.dumps(value, default=str, skipkeys=True)  # fails where an alias is inside its own anchor
    except (YAMLError, ValueError, RecursionError) as error:
        raise NotYaml(_where(error)) from None
    return value


def value_of(node: Node | None, key: str) -> Node | None:
    """The value of a key of an object; None where there is none."""
    if not isinstance(node, MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)


def ambiguous(node: Node | None, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """The plain values below a node that readers change, or read differently: path, and text as written."""
    if isinstance(node, MappingNode):
        for key, value in node.value:
            yield from ambiguous(value, path if key.value == "<<" else (*path, str(key.value)))
    elif isinstance(node, SequenceNode):
        for index, value in enumerate(node.value):
            yield from ambiguous(value, (*path, index))
    elif isinstance(node, ScalarNode) and node.style is None and _is_ambiguous(node):
        yield path, node.value


def _is_ambiguous(node: ScalarNode) -> bool:
    text, tag = node.value, str(node.tag).removeprefix(_TAG)
    if tag == "int" and _LEADING_ZERO.fullmatch(text):
        return True  # 0022 is 18 for the engine, and all readers lose the zero of the name 01
    if tag == "int":
        return len(text) > _INT_DIGITS
    if tag == "float":  # .inf and .nan have no form in JSON
        return not any(digit in text for digit in "0123456789")
    is_number = tag == "str" and _NUMBER.fullmatch(text.replace("_", "")) and text[0] != "_"
    return tag in ("timestamp", "value", "merge") or bool(is_number or _DATE.fullmatch(text))


class _Constructor(SafeConstructor):
    """An integral number is an int, as in the JSON that the program gets."""

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError):
            text = f"{node.value[:80]!r} is not a {str(node.tag).rpartition(':')[2]}; a text needs quotes"
            raise ConstructorError(None, None, text, node.start_mark) from None

    def construct_yaml_float(self, node: ScalarNode) -> int | float:
        value = float(super().construct_yaml_float(node))
        return int(value) if value.is_integer() else value

    def check_mapping_key(self, node: Any, key_node: Node, mapping: Any, key: Any, value: Any) -> bool:
        if key in mapping:
            raise ConstructorError(None, None, f"duplicate key {key!r}", key_node.start_mark)
        return True


_Constructor.add_constructor(f"{_TAG}float", _Constructor.construct_yaml_float)


def _where(error: Exception) -> str:
    if not isinstance(error, YAMLError):
        return "it contains itself, is nested too deeply, or has a character that does not exist"
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    if problem == "found unhashable key":
        problem = "a key is not a text; a value that begins with {{ or [ needs quotes"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else str(problem)


# Findings that differ in the indexes of their paths only, from this number on, are printed as one.
_SAME_CAUSE = 3


def located(path: Path, findings: Iterable[Finding], file: str) -> list[str]:
    """Each finding as `<file>:<line> <path> (<host>): <text>`, those of one cause as one.

    A finding whose path is not in the file has the line of the innermost object that is there. A finding
    about the file itself has its name as its path. `file`: the name that is shown.
    """
    findings = [replace(each, path=(file,)) if each.path == (path.name,) else each for each in findings]
    try:
        document = compose(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, NotYaml):
        return [*map(str, findings)]
    groups: dict[Finding, list[tuple[int, str]]] = {}
    for each in findings:
        path_of_all = tuple("" if isinstance(part, int) else part for part in each.path)
        cause = replace(each, path=path_of_all, origin="")
        groups.setdefault(cause, []).append(_located(file, document, each))
    return [text for group in groups.values() for text in _as_one(file, group)]


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
