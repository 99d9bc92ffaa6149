"""Nodes as busbar reads and changes them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.wait import Deadline, Pending, ProgressCallback, wait_until

NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
# The digest of the machine-id that a Node was made on (host/k3s-lib.sh); only busbar's Nodes have it.
MACHINE = "busbar/machine"
# On a Node that busbar has cordoned (host/k3s-drain.sh). One that somebody else had cordoned stays so.
CORDONED = "busbar/cordoned"
# On a Node in quarantine: JSON with `reason` and `since` (UTC). The taint of the same key keeps jobs away.
QUARANTINE = "busbar/quarantine"
# On a Node that `busbar drain` has taken out: JSON with `reason`, `by` and `since` (UTC).
DRAINED = "busbar/drained"
# In the JSON of both: whether the cordon came with it. One that somebody else had cordoned stays so.
_CORDONED = "cordoned"
# Labels of a Node that NVSentinel has cordoned or tainted (NVIDIA/NVSentinel, fault-quarantine).
_OWNER, _OWNERS_REASON = "k8saas.nvidia.com/cordon-by", "k8saas.nvidia.com/cordon-reason"
_SERVER = "node-role.kubernetes.io/etcd"
# Conditions that are good signs: of Kubernetes, and of K3s on a server.
_GOOD = ("Ready", "EtcdIsVoter")
# NVSentinel's conditions have the name of a check as their type, and this after it as their reason
# (platform-connectors/pkg/connectors/kubernetes/process_node_events.go).
_OF_NVSENTINEL = "IsNotHealthy"
_MAX_MESSAGE = 160
# The API server refuses longer ones (kubernetes/kubernetes pkg/apis/core/validation/events.go).
_MAX_EVENT = 1024
SILENT = "Node {} is silent: its pods cannot be drained, and start again elsewhere"


@dataclass(frozen=True)
class NodeTaint:
    """A taint. Key and effect identify it."""

    key: str
    value: str
    effect: str

    @classmethod
    def parse(cls, text: str) -> NodeTaint:
        """From KEY=VALUE:EFFECT, as K3s and kubectl write it."""
        pair, _, effect = text.rpartition(":")
        key, _, value = pair.partition("=")
        return cls(key, value, effect)

    @property
    def identity(self) -> tuple[str, str]:
        """What two taints of one Node cannot share."""
        return self.key, self.effect

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}"


@dataclass(frozen=True)
class Node:
    """What busbar looks at of a Node. `machine` is "" where busbar has not noted one.

    `conditions`: types of those that are true, without Ready: DiskPressure, or what a site's monitors set.
    `reported`: those of them that are bad signs, each with who has set it, and why.
    `quarantine`: its reason, "" without one; `drained`: why, by whom and since when, by `busbar drain`.
    `cordons`: which of busbar's annotations the cordon goes with; none where it is somebody else's.
    `allocatable`: resource -> units, as the API writes them.
    `owner`: who has cordoned or tainted it by labels of its own, and why. `cordoned_by`: that, else the
    program that the API has recorded.
    """

    name: str
    machine: str
    is_server: bool
    ready: bool
    unschedulable: bool
    cordoned_by_busbar: bool
    labels: Mapping[str, str]
    taints: tuple[NodeTaint, ...]
    conditions: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()
    quarantine: str = ""
    drained: str = ""
    cordons: frozenset[str] = frozenset()
    owner: str = ""
    cordoned_by: str = ""
    allocatable: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, node: JsonObject) -> Node:
        """From the object of the API."""
        metadata, spec = node["metadata"], node.get("spec") or {}
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        conditions = (node.get("status") or {}).get("conditions") or []
        true = {each.get("type", ""): each for each in conditions if each.get("status") == "True"}
        notes = {key: _note(annotations.get(key)) for key in (QUARANTINE, DRAINED)}
        drained, owner = notes[DRAINED], _owner(labels)
        return cls(
            name=metadata["name"],
            machine=annotations.get(MACHINE) or "",
            is_server=labels.get(_SERVER) == "true",
            ready="Ready" in true,
            unschedulable=bool(spec.get("unschedulable")),
            cordoned_by_busbar=CORDONED in annotations,
            labels=labels,
            taints=tuple(
                NodeTaint(each["key"], each.get("value") or "", each["effect"])
                for each in spec.get("taints") or []
            ),
            conditions=tuple(each for each in true if each != "Ready"),
            reported=tuple(_report(each, metadata) for kind, each in true.items() if kind not in _GOOD),
            quarantine=str(notes[QUARANTINE].get("reason") or ""),
            drained=f"{drained.get('reason')}{_by_and_since(drained)}" if drained else "",
            cordons=frozenset(
                [key for key, note in notes.items() if note.get(_CORDONED)]
                + [CORDONED] * (CORDONED in annotations)
            ),
            owner=owner,
            cordoned_by=owner or _manager(metadata, "f:spec", field="f:unschedulable"),
            allocatable=(node.get("status") or {}).get("allocatable") or {},
        )

    @property
    def cordoned_by_others(self) -> bool:
        """Whether it is cordoned, and no note of busbar says that busbar did it."""
        return self.unschedulable and not self.cordons


def _owner(labels: Mapping[str, str]) -> str:
    reason = labels.get(_OWNERS_REASON)
    return labels.get(_OWNER, "") + (f" ({reason})" if reason else "")


def _report(condition: JsonObject, metadata: JsonObject) -> str:
    """Such as `GpuNvlinkWatch of NVSentinel (ErrorCode:...)`."""
    kind, reason = condition["type"], condition.get("reason") or ""
    field = f"k:{json.dumps({'type': kind}, separators=(',', ':'))}"
    by = _manager(metadata, "f:status", "f:conditions", field=field)
    by = "NVSentinel" if reason == f"{kind}{_OF_NVSENTINEL}" else by
    why = " ".join((condition.get("message") or reason).split()).rstrip(";")
    why = f"{why[:_MAX_MESSAGE]}..." if len(why) > _MAX_MESSAGE else why
    return f"{kind}{f' of {by}' if by else ''}{f' ({why})' if why else ''}"


def _manager(metadata: JsonObject, *path: str, field: str) -> str:
    """The program that has set a field, as the API has recorded it."""

    def fields(entry: JsonObject) -> JsonObject:
        return reduce(lambda found, key: found.get(key) or {}, path, entry.get("fieldsV1") or {})

    entries = metadata.get("managedFields") or []
    return next((str(each.get("manager")) for each in entries if field in fields(each)), "")


def _note(text: str | None) -> JsonObject:
    """The JSON of an annotation; a text that somebody else has written counts as a reason."""
    try:
        found = json.loads(text or "{}")
        return found if isinstance(found, dict) else {"reason": str(text)}
    except ValueError:
        return {"reason": text}


def _by_and_since(note: JsonObject) -> str:
    found = [f"{word} {note[key]}" for key, word in (("by", "by"), ("since", "since")) if note.get(key)]
    return f" ({', '.join(found)})" if found else ""


def has_quarantine(node: JsonObject, reason: str | None, *, cordon: bool) -> bool:
    """Whether a Node, as the API serves it, is as after `quarantine`."""
    note = _note((node["metadata"].get("annotations") or {}).get(QUARANTINE))
    if not reason:
        return not note
    is_cordoned = bool((node.get("spec") or {}).get("unschedulable"))
    return note.get("reason") == reason and (_CORDONED in note) is cordon and (is_cordoned or not cordon)


def quarantine(api: Api, name: str, reason: str | None, now: datetime, *, cordon: bool) -> None:
    """Note why a Node is in quarantine, or with None that it is not, and cordon it, or end that cordon.

    Raises ApiError: 409 after a change. A cordon of somebody else stays, and so does one for another reason.
    """
    found = api.get(f"{NODES}/{name}")
    node = Node.of(found)
    held = {_CORDONED: not node.cordoned_by_others} if cordon else {}
    changes = {QUARANTINE: _noted(now, reason=reason, **held) if reason else None}
    if cordon:
        _hold(api, found, {**changes, CORDONED: None}, True)
    elif node.cordons == {QUARANTINE}:
        _hold(api, found, changes, None)
    else:
        _hold(api, found, changes, node.unschedulable or None)


def _noted(now: datetime, **note: Any) -> str:
    return json.dumps({**note, "since": now.astimezone(UTC).isoformat(timespec="seconds")})


def read(api: Api) -> list[Node]:
    """All Nodes of the cluster. Raises ApiError."""
    return [Node.of(each) for each in api.list(NODES)]


def silent(api: Api) -> set[str]:
    """The Nodes whose kubelets have not renewed their lease in its time, 40 s, by the newest of all leases.

    A Node counts as Ready for 50 s (--node-monitor-grace-period of kube-controller-manager). Raises ApiError.
    """
    renewed = renewals(api)
    newest = max((at for at, _ in renewed.values()), default=None)
    return {name for name, (at, valid) in renewed.items() if newest and newest - at >= valid}


def renewals(api: Api) -> dict[str, tuple[datetime, timedelta]]:
    """When each kubelet has renewed its lease, by its own clock, and for how long; it does so every 10 s.

    Raises ApiError.
    """
    return {
        lease["metadata"]["name"]: (
            datetime.fromisoformat(spec["renewTime"]),
            timedelta(seconds=spec["leaseDurationSeconds"]),
        )
        for lease in api.list(LEASES)
        if (spec := lease.get("spec") or {}).get("renewTime")
    }


def cordon(api: Api, name: str) -> None:
    """Keep new pods away, with busbar's mark. Raises ApiError."""
    _patch(api, name, "true", True)


def uncordon(api: Api, name: str) -> None:
    """Undo `cordon`. Raises ApiError."""
    _patch(api, name, None, None)


def take_out(api: Api, name: str, reason: str, by: str, now: datetime) -> bool:
    """Cordon a Node until `put_back`, with a note of why and by whom. Raises ApiError: 409 after a change.

    An update that was interrupted has no claim to the cordon any more: the next one leaves it. A second call
    replaces the note. Always true.
    """
    found = api.get(f"{NODES}/{name}")
    noted = _noted(now, reason=reason, by=by, cordoned=not Node.of(found).cordoned_by_others)
    _hold(api, found, {DRAINED: noted, CORDONED: None}, True)
    return True


def put_back(api: Api, name: str) -> bool:
    """Undo `take_out`; whether new pods can start there again. Raises ApiError: 409 after a change.

    A cordon stays that somebody else had set before.
    """
    found = api.get(f"{NODES}/{name}")
    node = Node.of(found)
    stays = node.unschedulable and node.cordons != {DRAINED}
    _hold(api, found, {DRAINED: None}, True if stays else None)
    return not stays


def record_event(
    api: Api, name: str, reason: str, text: str, progress: ProgressCallback, *, is_bad: bool
) -> bool:
    """Record an Event on a Node, for people and other tools; whether it is there. A failure is a message."""
    now = datetime.now(UTC)
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{time.time_ns():x}", "namespace": "default"},
        # The kubelet names Nodes so too (kubernetes/kubernetes pkg/kubelet/kubelet.go, nodeRef).
        "involvedObject": {"kind": "Node", "apiVersion": "v1", "name": name, "uid": name},
        "type": "Warning" if is_bad else "Normal",
        "reason": reason,
        "message": text[:_MAX_EVENT],
        "source": {"component": "busbar"},
        "firstTimestamp": now.isoformat(timespec="seconds"),
        "lastTimestamp": now.isoformat(timespec="seconds"),
        "count": 1,
    }
    try:
        api.create("/api/v1/namespaces/default/events", body)
    except ApiError as error:
        progress(f"warning: Node {name} has no Event {reason}: {error}")
        return False
    return True


def _hold(api: Api, node: JsonObject, annotations: Mapping[str, str | None], unschedulable: Any) -> None:
    metadata = node["metadata"]
    changed = {"resourceVersion": metadata["resourceVersion"], "annotations": dict(annotations)}
    api.merge(f"{NODES}/{metadata['name']}", {"metadata": changed, "spec": {"unschedulable": unschedulable}})


def _patch(api: Api, name: str, mark: Any, unschedulable: Any) -> None:
    # Both at once, so that an interrupted run leaves no cordon without its mark.
    metadata = {"annotations": {CORDONED: mark}}
    api.merge(f"{NODES}/{name}", {"metadata": metadata, "spec": {"unschedulable": unschedulable}})


def delete(api: Api, name: str, deadline: Deadline) -> None:
    """Delete a Node and its password, so that the name can be used again (k3s-io/k3s#10408).

    K3s leaves the Secret to the garbage collector; a machine that joins before that is refused. Raises
    ApiError, and TimedOut.
    """
    for path in (
        f"{NODES}/{name}",
        f"/api/v1/namespaces/kube-system/secrets/{name}.node-password.k3s",
    ):
        _delete(api, path, deadline)


def _delete(api: Api, path: str, deadline: Deadline) -> None:
    def gone() -> bool | Pending:
        try:
            found = api.delete(path)
        except ApiError as error:
            if error.not_found:
                return True
            raise
        # Where nothing keeps the object, the answer is a Status.
        is_kept = (found.get("metadata") or {}).get("deletionTimestamp")
        return Pending(f"{path} is being deleted") if is_kept else True

    wait_until(gone, deadline, poll_seconds=0.5)
