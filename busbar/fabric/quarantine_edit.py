"""Writes quarantines into the text of a stack file; all else stays, comments too.

They are `hosts.workers[].quarantine` (of Slurm `hosts.compute[]`), or `hosts_from.quarantine` where the
hosts are in a list elsewhere.
"""

from __future__ import annotations

import json
from typing import Any

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from busbar.config.engine_yaml import compose, construct, value_of
from busbar.config.findings import ConfigError, Finding, did_you_mean
from busbar.config.stackfile import KEY, PROJECT

_KEY, _LIST = "quarantine", "hosts_from"
_Entry = tuple[Node, Node]


def edit(
    text: str, worker: str, reason: str | None, *, section: str = f"{PROJECT}:{KEY}", role: str = "workers"
) -> str:
    """The text of a stack file in which `worker` is in quarantine for `reason`, or with None is not.

    `text`: text of a valid file (`stackfile.read`); unchanged if nothing changes. `section`: its cluster;
    `role`: the list of its workers. Raises ConfigError if it
    has no such worker, or if the worker's keys cannot be changed alone, such as those of an anchor that
    others share.
    """
    document = compose(text)
    cluster = value_of(value_of(document, "config"), section)
    given = value_of(cluster, _LIST)
    value = None if reason is None else _quoted(reason)
    if isinstance(given, MappingNode):
        node, key, value = _beside_list(given, worker, value)
        after = node.value[0]
    else:
        node, key = _worker(cluster, role, worker), _KEY
        after = next(entry for entry in node.value if entry[0].value == "name")
    written = next((entry for entry in node.value if entry[0].value == key), None)
    if value is None:
        edited = _removed(text, node, written) if written else text
    elif written:
        edited = text if written[1].value == reason else _replaced(text, written, value)
    else:
        edited = _added(text, node, after, f"{key if key == _KEY else _quoted(key)}: {value}")
    # `construct` comes last, because it merges the keys of anchors into the nodes.
    expected, got = construct(document), construct(compose(edited))
    _set(expected["config"][section], role, worker, reason)
    if got != expected:
        raise ConfigError(
            [Finding(("hosts", f"{role} ({worker})", _KEY), "cannot be changed alone", "edit it by hand")]
        )
    return edited


def _beside_list(given: MappingNode, worker: str, value: str | None) -> tuple[MappingNode, str, str | None]:
    """The object that changes, its key and the new value: of one quarantine, or of all if it is alone."""
    present = value_of(given, _KEY)
    names = {key.value for key, _ in present.value} if isinstance(present, MappingNode) else set()
    if isinstance(present, MappingNode) and (names - {worker} or (names and value is not None)):
        return present, worker, value
    if value is None and worker not in names:
        return given, worker, None
    return given, _KEY, None if value is None else f"{{{_quoted(worker)}: {value}}}"


def _set(cluster: dict[str, Any], role: str, worker: str, reason: str | None) -> None:
    """Change the quarantine in a configuration."""
    new = {} if reason is None else {_KEY: reason}
    if _LIST not in cluster:
        for each in cluster["hosts"][role]:
            if isinstance(each, dict) and each.get("name") == worker:
                each.pop(_KEY, None)
                each.update(new)
        return
    others = {name: why for name, why in (cluster[_LIST].pop(_KEY, None) or {}).items() if name != worker}
    if quarantines := {**others, **({worker: reason} if new else {})}:
        cluster[_LIST][_KEY] = quarantines


def _worker(cluster: Node | None, role: str, name: str) -> MappingNode:
    node = value_of(value_of(cluster, "hosts"), role)
    workers = {
        value.value: each
        for each in (node.value if isinstance(node, SequenceNode) else [])
        if isinstance(each, MappingNode)
        for key, value in each.value
        if key.value == "name" and isinstance(value, ScalarNode)
    }
    if name not in workers:
        raise ConfigError(
            [Finding(("hosts", role), f"no worker is named {name!r}{did_you_mean(name, workers)}")]
        )
    return workers[name]


def _added(text: str, node: MappingNode, after: _Entry, line: str) -> str:
    """Add the key after another one: in `{...}` on the same line, else in its own line."""
    end = _end(text, after)
    if node.flow_style:
        return f"{text[:end]}, {line}{text[end:]}"
    below = text.find("\n", end) + 1
    if not below:
        text, below = f"{text}\n", len(text) + 1
    return f"{text[:below]}{' ' * after[0].start_mark.column}{line}\n{text[below:]}"


def _replaced(text: str, written: _Entry, value: str) -> str:
    return text[: written[1].start_mark.index] + value + text[_end(text, written) :]


def _removed(text: str, node: MappingNode, written: _Entry) -> str:
    at = node.value.index(written)
    start, end = written[0].start_mark.index, _end(text, written)
    line = text.rfind("\n", 0, start) + 1
    if at == 0 and text[line:start].strip():  # `- quarantine: ...`: the next key takes its place
        end = node.value[1][0].start_mark.index
    elif node.flow_style:
        start = _end(text, node.value[at - 1])
    else:
        start, end = line, text.find("\n", end) + 1 or len(text)
    return text[:start] + text[end:]


def _quoted(reason: str) -> str:
    return json.dumps(reason, ensure_ascii=False)


def _end(text: str, entry: _Entry) -> int:
    """The end of a value, without the line ends that YAML adds to a text of several lines."""
    start, end = entry[1].start_mark.index, entry[1].end_mark.index
    return int(start + len(text[start:end].rstrip()))
