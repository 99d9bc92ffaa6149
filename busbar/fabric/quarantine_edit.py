"""Writes `hosts.workers[].quarantine` into the text of a stack file; all else stays, comments too."""

from __future__ import annotations

import json

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from busbar.config.engine_yaml import compose, construct, value_of
from busbar.config.errors import ConfigError, Finding, did_you_mean
from busbar.config.schema import KEY, PROJECT

_KEY = "quarantine"
_Entry = tuple[Node, Node]


def edit(text: str, worker: str, reason: str | None) -> str:
    """The text of a stack file in which `worker` is in quarantine for `reason`, or with None is not.

    `text`: text of a valid file (`stackfile.read`); unchanged if nothing changes. Raises ConfigError if it
    has no such worker, or if the worker's keys cannot be changed alone, such as those of an anchor that
    others share.
    """
    document = compose(text)
    node = _worker(document, worker)
    written = next((entry for entry in node.value if entry[0].value == _KEY), None)
    if reason is None:
        edited = _removed(text, node, written) if written else text
    else:
        edited = _replaced(text, written, reason) if written else _added(text, node, reason)
    # `construct` comes last, because it merges the keys of anchors into the nodes.
    expected, got = construct(document), construct(compose(edited))
    for each in expected["config"][f"{PROJECT}:{KEY}"]["hosts"]["workers"]:
        if isinstance(each, dict) and each.get("name") == worker:
            each.pop(_KEY, None)
            each.update({_KEY: reason} if reason is not None else {})
    if got != expected:
        raise ConfigError(
            [Finding(("hosts", f"workers ({worker})", _KEY), "cannot be changed alone", "edit it by hand")]
        )
    return edited


def _worker(document: Node | None, name: str) -> MappingNode:
    node = document
    for key in ("config", f"{PROJECT}:{KEY}", "hosts", "workers"):
        node = value_of(node, key)
    workers = {
        value.value: each
        for each in (node.value if isinstance(node, SequenceNode) else [])
        if isinstance(each, MappingNode)
        for key, value in each.value
        if key.value == "name" and isinstance(value, ScalarNode)
    }
    if name not in workers:
        raise ConfigError(
            [Finding(("hosts", "workers"), f"no worker is named {name!r}{did_you_mean(name, workers)}")]
        )
    return workers[name]


def _added(text: str, node: MappingNode, reason: str) -> str:
    """Add the key after the name: in `{...}` on the same line, else in its own line."""
    key, value = next(entry for entry in node.value if entry[0].value == "name")
    end = value.end_mark.index
    if node.flow_style:
        return f"{text[:end]}, {_KEY}: {_quoted(reason)}{text[end:]}"
    line = text.find("\n", end) + 1
    if not line:
        text, line = f"{text}\n", len(text) + 1
    return f"{text[:line]}{' ' * key.start_mark.column}{_KEY}: {_quoted(reason)}\n{text[line:]}"


def _replaced(text: str, written: _Entry, reason: str) -> str:
    if written[1].value == reason:
        return text
    return text[: written[1].start_mark.index] + _quoted(reason) + text[_end(text, written) :]


def _removed(text: str, node: MappingNode, written: _Entry) -> str:
    at = node.value.index(written)
    start, end = written[0].start_mark.index, _end(text, written)
    if at == 0:  # `- quarantine: ...`: the next key takes its place
        end = node.value[1][0].start_mark.index
    elif node.flow_style:
        start = _end(text, node.value[at - 1])
    else:
        start, end = text.rfind("\n", 0, start) + 1, text.find("\n", end) + 1 or len(text)
    return text[:start] + text[end:]


def _quoted(reason: str) -> str:
    return json.dumps(reason, ensure_ascii=False)


def _end(text: str, entry: _Entry) -> int:
    """The end of a value, without the line ends that YAML adds to a text of several lines."""
    start, end = entry[1].start_mark.index, entry[1].end_mark.index
    return int(start + len(text[start:end].rstrip()))
