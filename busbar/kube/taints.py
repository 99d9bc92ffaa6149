"""Sets labels and taints of Nodes that have joined; K3s sets them only when a Node registers.

Those that were configured and are not any more are removed, those of anybody else stay. What was configured
is in a ConfigMap: lines "NODE KEY=VALUE... KEY=VALUE:EFFECT...".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial

from pydantic import Field

from busbar.kube import nodes
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.drain import Hooks, leaving, no_hooks, reason_of, tell
from busbar.kube.nodes import NODES, QUARANTINE, Node, NodeTaint
from busbar.kube.objects import create_or_merge, find
from busbar.kube.wait import Clock, Deadline, ProgressCallback, wait_until
from busbar.models import StrictModel

RECORD = "busbar-taints"
_CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"
_KEY = "taints"
SECONDS = 300.0
# Reason and text of an Event.
_ENDED = ("BusbarQuarantineEnded", "no quarantine any more")


class TaintsSpec(StrictModel):
    """The JSON that `busbar set-taints` reads on stdin."""

    taints: dict[str, list[str]] = Field(
        description="The taints of every worker, KEY=VALUE:EFFECT, by its name."
    )
    labels: dict[str, list[str]] = Field(default={}, description="Their labels, KEY=VALUE.")
    quarantine: dict[str, str] = Field(default={}, description="Why workers are in quarantine, by name.")
    cordon: list[str] = Field(default=[], description="Those of them whose Nodes are cordoned too.")


def apply(
    api: Api, spec: TaintsSpec, clock: Clock, progress: ProgressCallback, hooks: Hooks = no_hooks
) -> list[str]:
    """Set labels and taints, and note why Nodes are in quarantine; the names of those that were changed.

    Schedulers with jobs on a Node in quarantine are told the reason: what runs there goes on. What was
    configured is noted last, so that the next run finishes an interrupted one. Raises as `leaving`; TimedOut.
    """
    deadline = Deadline(clock, SECONDS)

    def may_pass(error: ApiError) -> bool:
        return error.transient or error.conflict  # somebody else may change an object at the same time

    write = partial(wait_until, deadline=deadline, poll_seconds=1, retry_on=may_pass)
    # K3s writes names of Nodes in lower case.
    wanted = {name.lower(): [*spec.labels.get(name, ()), *texts] for name, texts in spec.taints.items()}
    reasons = {name.lower(): reason for name, reason in spec.quarantine.items()}
    cordoned = {name.lower() for name in spec.cordon}
    record = wait_until(partial(_read_record, api), deadline, poll_seconds=1, progress=progress)
    noted = (line.split() for line in record.splitlines() if line.strip())
    before = {name: texts for name, *texts in noted}
    if before.keys() - wanted.keys():
        # Refused here, nothing is measured without these workers, and none of them is drained.
        write(partial(leaving, api, wanted))
    found = wait_until(lambda: nodes.read(api), deadline, poll_seconds=1, progress=progress)
    changed = []
    for node in found:
        if node.name not in wanted:
            continue
        reason, cordon = reasons.get(node.name, ""), node.name in cordoned
        marks = wanted[node.name], before.get(node.name, [])
        is_changed = bool(_changes(node, *marks)) and write(partial(_set, api, node.name, *marks, progress))
        if not _is_noted(node, reason, cordon=cordon):
            is_changed = True
            write(partial(_note, api, node, reason, hooks, cordon=cordon))
            what = ("BusbarQuarantine", reason) if reason else _ENDED
            nodes.record_event(api, node.name, *what, progress, is_bad=bool(reason))
        if is_changed:
            changed.append(node.name)
    now = "".join(f"{' '.join([name, *texts])}\n" for name, texts in wanted.items())
    if now != record:
        made = {"metadata": {"name": RECORD}, "data": {_KEY: now}}
        write(partial(create_or_merge, api, _CONFIG_MAPS, made))
    return changed


def _set(api: Api, name: str, wanted: Sequence[str], old: Sequence[str], progress: ProgressCallback) -> bool:
    """Set labels and taints of a Node, unless it is gone or has them."""
    path = f"{NODES}/{name}"
    found = find(api, path)
    changes = _changes(Node.of(found), wanted, old) if found else {}
    if not found or not changes:
        return False
    progress(f"labels and taints of {name}: {' '.join(wanted) or 'none'}")
    metadata = {"resourceVersion": found["metadata"]["resourceVersion"], "labels": changes["labels"]}
    # Taints that the Node has stay as they are, with the time at which they came.
    has = {NodeTaint.of(each): each for each in (found.get("spec") or {}).get("taints") or []}
    objects = [has.get(each) or asdict(each) for each in changes["taints"]]
    api.merge(path, {"metadata": metadata, "spec": {"taints": objects}})
    return True


def _changes(node: Node, wanted: Sequence[str], before: Sequence[str]) -> JsonObject:
    """The labels that change, None for one that goes, and all taints; empty where the Node has all."""
    labels = {**dict.fromkeys(_labels(before)), **_labels(wanted)}
    labels = {key: value for key, value in labels.items() if node.labels.get(key) != value}
    ours = {taint.identity for taint in _taints([*wanted, *before])}
    taints = [*(taint for taint in node.taints if taint.identity not in ours), *_taints(wanted)]
    has_all = not labels and set(taints) == set(node.taints)
    return {} if has_all else {"labels": labels, "taints": taints}


def _labels(texts: Sequence[str]) -> dict[str, str | None]:
    pairs = (text.partition("=") for text in texts if ":" not in text)
    return {key: value for key, _, value in pairs}


def _taints(texts: Sequence[str]) -> list[NodeTaint]:
    return [NodeTaint.parse(text) for text in texts if ":" in text]


def _note(api: Api, node: Node, reason: str, hooks: Hooks, *, cordon: bool) -> None:
    tell(hooks, node.name, reason_of(reason, node.drained))
    if reason:
        now = datetime.now(UTC)
        nodes.take_out(api, node.name, QUARANTINE, reason, "the configuration", now, cordon=cordon)
    else:
        nodes.put_back(api, node.name, QUARANTINE)


def _is_noted(node: Node, reason: str, *, cordon: bool) -> bool:
    note = node.notes.get(QUARANTINE)
    if not (note and reason):
        return not (note or reason)
    is_held = QUARANTINE in node.cordons or node.cordoned_by_others
    return note.why == reason and (is_held if cordon else not note.cordoned)


def _read_record(api: Api) -> str:
    found = find(api, f"{_CONFIG_MAPS}/{RECORD}") or {}
    return str((found.get("data") or {}).get(_KEY) or "")
