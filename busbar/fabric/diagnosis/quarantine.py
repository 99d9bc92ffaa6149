"""From what a diagnosis has found to quarantines in the stack file, and back."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from ruamel.yaml.nodes import MappingNode, Node

from busbar.config.cluster import AnyCluster
from busbar.config.engine_yaml import NotYaml, compose, construct, value_of
from busbar.config.findings import ConfigError, did_you_mean
from busbar.config.stackfile import KEY, PROJECT
from busbar.exits import Failed
from busbar.fabric.diagnosis.findings import Findings
from busbar.fabric.diagnosis.stages import State
from busbar.fabric.localise.rounds import PARTNERS
from busbar.finding import Finding
from busbar.hosts.inventory import Inventory

# How the reason of a quarantine by this command begins.
OURS = "busbar diagnose "
# Healthy nodes that the nodes of a release may meet: more than three, since one of them may be slow too.
CANDIDATES = 8


def reasons(found: Findings, cluster: AnyCluster) -> dict[str, str]:
    """Node -> the reason of its quarantine. Nodes that are in quarantine have none, nor those of which it is
    only known that some of them are slow. Raises Failed for more nodes than may be put there at once."""
    held, pool = cluster.quarantine, found.pool
    texts: dict[str, list[str]] = {}
    for row in found.rows:
        if len(row.nodes) == 1 and row.nodes[0] not in held:
            texts.setdefault(row.nodes[0], []).append(row.summary)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    named = {node: f"{OURS}{date}: {', '.join(slow)}"[:200] for node, slow in texts.items()}
    workers = cluster.workers_of(pool)
    left = sum(worker.name not in held for worker in workers) - 1
    hardware = cluster.pools[pool]
    limit = min(hardware.quarantined_at_once(len(workers)), left)
    if len(named) > limit:
        key = limit < left and "quarantine_limit" in type(hardware).model_fields
        fix = f"raise pools.{pool}.quarantine_limit, or " if key else ""
        raise Failed(
            f"{len(named)} nodes are named ({', '.join(named)}), and at most {limit} of the {len(workers)} "
            f"workers of pool {pool} may be put in quarantine at once. No changes made. Fix: look for "
            f"what they share first; {fix}edit the file by hand"
        )
    return named


def to_release(inventory: Inventory, pool: str, nodes: Sequence[str] | None) -> list[str]:
    """The workers in quarantine that a release is about: of `nodes`, else those put there by a diagnosis."""
    held = [host.name for host in inventory.workers_of(pool) if host.name in inventory.quarantine]
    if nodes is not None:
        return [name for name in held if name in nodes]
    return [name for name in held if inventory.quarantine[name].startswith(OURS)]


def with_partners(inventory: Inventory, pool: str, released: Sequence[str]) -> list[str]:
    """These nodes, and workers that are not in quarantine to judge them, of their own rail groups first."""
    places = {each.name: each.topology.rail_group for each in inventory.cluster.hosts.workers}
    own = {places[name] for name in released}
    others = sorted(
        (host.name for host in inventory.usable_of(pool)), key=lambda name: places[name] not in own
    )
    return [*released, *others[: CANDIDATES + len(released)]]


def why_not(state: State, found: Findings, node: str) -> str:
    """Why the quarantine of a node goes on; "" where it may end: good with three healthy partners."""
    if node in state.absent:
        return f"it was not measured: {state.absent[node]}"
    if rows := [row.summary for row in found.rows if node in row.nodes]:
        return f"it is slow: {', '.join(rows)}"
    runs = (group for group, busbw, _ in state.results if busbw and node in group.nodes)
    partners = {n for group in runs if group.stage == "B" for n in group.nodes} & {*found.healthy} - {node}
    if len(partners) < PARTNERS:
        return f"it ran with {len(partners)} healthy partners, {PARTNERS} are needed"
    return "" if node in found.healthy else "too few of its runs were good"


def edit(
    text: str, worker: str, reason: str | None, *, section: str = f"{PROJECT}:{KEY}", role: str = "workers"
) -> str:
    """The text of a stack file in which `worker` is in quarantine for `reason`, or with None is not.

    It is a key of the worker, or of `hosts_from.quarantine`; every other byte of `text` stays.
    `section`: its cluster; `role`: the list of its workers. Raises ConfigError if there is no such worker, or
    its key cannot be changed alone, such as that of a shared anchor, and NotYaml.
    """
    node: Any = value_of(value_of(compose(text), "config"), section)
    wanted = construct(compose(text)) or {}
    cluster = (wanted.get("config") or {}).get(section) or {}
    key, value = "quarantine", cast("str | dict[str, str] | None", reason)
    if parent := cluster.get("hosts_from"):
        node, held = value_of(node, "hosts_from"), parent.get(key) or {}
        if held and (reason is not None or held.keys() != {worker}):
            node, parent, key = value_of(node, key), held, worker
        elif reason is not None:
            value = {worker: reason}
    else:
        workers = cluster.get("hosts", {}).get(role, [])
        names = [str(each.get("name")) if isinstance(each, dict) else "" for each in workers]
        if worker not in names:
            found = f"no worker is named {worker!r}{did_you_mean(worker, names)}"
            raise ConfigError([Finding(("hosts", role), found)])
        at = names.index(worker)
        node = value_of(value_of(node, "hosts"), role)
        node, parent = node.value[at], workers[at]
    if parent.get(key) == value:
        return text
    parent[key] = value
    if value is None:
        del parent[key]
    edited = _with(text, node, key, value)
    with suppress(NotYaml):
        if construct(compose(edited)) == wanted:
            return edited
    where = ("hosts", f"{role} ({worker})", "quarantine")
    raise ConfigError([Finding(where, "cannot be changed alone", "edit it by hand")])


def _with(text: str, node: MappingNode, key: str, value: str | dict[str, str] | None) -> str:
    """The text in which a key of an object has this value, or with None is not there."""
    written, entries = json.dumps(value, ensure_ascii=False), node.value
    at = next((at for at, (name, _) in enumerate(entries) if name.value == key), None)
    if at is None:
        first = next(entry for entry in entries if entry[0].value != "<<")
        end = _end(text, first[1])
        added = f"{key if key == 'quarantine' else json.dumps(key)}: {written}"
        if node.flow_style:
            return f"{text[:end]}, {added}{text[end:]}"
        end += len(text[end:].partition("\n")[0])
        return f"{text[:end]}\n{' ' * first[0].start_mark.column}{added}{text[end:] or chr(10)}"
    start, end = entries[at][0].start_mark.index, _end(text, entries[at][1])
    if value is not None:
        return text[: entries[at][1].start_mark.index] + written + text[end:]
    if node.flow_style and at:
        start = _end(text, entries[at - 1][1])
    elif node.flow_style:
        end = entries[1][0].start_mark.index
    elif not text[(line := text.rfind("\n", 0, start) + 1) : start].strip():
        start, end = line, text.find("\n", end) + 1 or len(text)
    return text[:start] + text[end:]


def _end(text: str, value: Node) -> int:
    """The end of a value, without the line ends that YAML adds to a text of several lines."""
    start = value.start_mark.index
    return int(start + len(text[start : value.end_mark.index].rstrip()))
