"""Nodes as busbar reads and changes them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial, reduce

from busbar.finding import STACK, Finding, Fix
from busbar.kube.client import Api, ApiError, JsonObject, RestApi
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, SystemClock, lasting, wait_until

NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
# The digest of the machine-id that a Node was made on (host/k3s-lib.sh); only busbar's Nodes have it.
MACHINE = "busbar/machine"
# Annotations with a Note. On a Node that an update drains:
CORDONED = "busbar/cordoned"
# On a Node in quarantine. The taint of the same key keeps jobs away.
QUARANTINE = "busbar/quarantine"
# On a Node that `busbar drain` has taken out.
DRAINED = "busbar/drained"
_NOTES = (CORDONED, QUARANTINE, DRAINED)
# Programs in managedFields for a cordon of ours: our user agent, none, "ancient-changes" after ten programs.
_OUR_MANAGERS = ("busbar", "", "ancient-changes")
# Labels of a Node that NVSentinel has cordoned or tainted (NVIDIA/NVSentinel, fault-quarantine).
_OWNER, _OWNERS_REASON = "k8saas.nvidia.com/cordon-by", "k8saas.nvidia.com/cordon-reason"
_SERVER = "node-role.kubernetes.io/etcd"
VOTER = "EtcdIsVoter"
# Conditions that are good signs: of Kubernetes, and of K3s on a server.
_GOOD = ("Ready", VOTER)
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
    def of(cls, taint: JsonObject) -> NodeTaint:
        """From the object of the API."""
        return cls(taint["key"], taint.get("value") or "", taint["effect"])

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
class Note:
    """The annotation that says why busbar has taken a Node out.

    `since` is a UTC time. `cordoned`: whether the Node is cordoned for this note. It is false for a Node that
    somebody else had cordoned before, which stays so.
    """

    why: str
    by: str = ""
    since: str = ""
    cordoned: bool = False

    @classmethod
    def parse(cls, text: str) -> Note:
        """The note of an annotation. A text of another shape, written by hand, counts as a reason."""
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found.get("why"):
            return cls(text)
        by, since = (str(found.get(key) or "") for key in ("by", "since"))
        return cls(str(found["why"]), by, since, found.get("cordoned") is True)

    @property
    def text(self) -> str:
        """The annotation."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def __str__(self) -> str:
        origin = [f"{key} {value}" for key, value in (("by", self.by), ("since", self.since)) if value]
        return self.why + (f" ({', '.join(origin)})" if origin else "")


@dataclass(frozen=True)
class Node:
    """What busbar looks at of a Node. `machine` is "" where busbar has not noted one.

    `notes`: those of busbar, by annotation.
    `conditions`: types of those that are true, without Ready: DiskPressure, or what a site's monitors set.
    `reported`: those of them that are bad signs, each with who has set it, and why.
    `allocatable`: resource -> units, as the API writes them. `kubelet`: its version.
    `owner`: who has cordoned or tainted it by labels of its own, and why. `cordon_manager`: by which program.
    """

    name: str
    machine: str
    is_server: bool
    ready: bool
    unschedulable: bool
    labels: Mapping[str, str]
    taints: tuple[NodeTaint, ...]
    notes: Mapping[str, Note] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()
    owner: str = ""
    cordon_manager: str = ""
    allocatable: Mapping[str, str] = field(default_factory=dict)
    kubelet: str = ""

    @classmethod
    def of(cls, node: JsonObject) -> Node:
        """From the object of the API."""
        metadata, spec = node["metadata"], node.get("spec") or {}
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        status = node.get("status") or {}
        conditions = status.get("conditions") or []
        true = {each.get("type", ""): each for each in conditions if each.get("status") == "True"}
        return cls(
            name=metadata["name"],
            machine=annotations.get(MACHINE) or "",
            is_server=labels.get(_SERVER) == "true",
            ready="Ready" in true,
            unschedulable=bool(spec.get("unschedulable")),
            labels=labels,
            taints=tuple(NodeTaint.of(each) for each in spec.get("taints") or []),
            notes={key: Note.parse(annotations[key]) for key in _NOTES if annotations.get(key)},
            conditions=tuple(each for each in true if each != "Ready"),
            reported=tuple(_report(each, metadata) for kind, each in true.items() if kind not in _GOOD),
            owner=labels.get(_OWNER, "") + (f" ({why})" if (why := labels.get(_OWNERS_REASON)) else ""),
            cordon_manager=_manager(metadata, "f:spec", field="f:unschedulable"),
            allocatable=status.get("allocatable") or {},
            kubelet=(status.get("nodeInfo") or {}).get("kubeletVersion") or "",
        )

    @property
    def quarantine(self) -> str:
        """The reason of its quarantine; "" where it has none."""
        note = self.notes.get(QUARANTINE)
        return note.why if note else ""

    @property
    def drained(self) -> str:
        """The reason, author and time of its `busbar drain`; "" where there is none."""
        return str(self.notes.get(DRAINED, ""))

    @property
    def cordons(self) -> set[str]:
        """The notes for which it is cordoned; none where somebody else has cordoned it, before or since."""
        is_ours = self.unschedulable and self.cordon_manager in _OUR_MANAGERS
        return {key for key, note in self.notes.items() if is_ours and note.cordoned}

    @property
    def cordoned_by_others(self) -> bool:
        """True if somebody else has cordoned it."""
        return self.unschedulable and not self.cordons

    @property
    def cordoned_by(self) -> str:
        """The program or person that has cordoned it; "" where that is not known."""
        return self.owner or self.cordon_manager

    @property
    def out(self) -> str:
        """The reason why no new pods start there: a drain by busbar, or a cordon; "" where they start."""
        if self.drained:
            return f"drained: {self.drained}"
        by = f" by {self.cordoned_by}" if self.cordoned_by else ""
        return f"cordoned{by}" if self.unschedulable else ""


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


def take_out(api: Api, name: str, key: str, why: str, by: str, now: datetime, *, cordon: bool = True) -> bool:
    """Note on a Node why it is out, and cordon it until `put_back`; a second call replaces the note.

    Without `cordon` a cordon for the same note ends. Returns whether new pods can start there. Raises
    ApiError: 409 if the Node changed meanwhile.
    """
    found = api.get(f"{NODES}/{name}")
    is_free = not Node.of(found).cordoned_by_others
    since = now.astimezone(UTC).isoformat(timespec="seconds")
    return _note(api, found, key, Note(why, by, since, cordoned=cordon and is_free))


def put_back(api: Api, name: str, key: str) -> bool:
    """Remove a note of `take_out`; whether new pods can start there now. Raises ApiError as `take_out`.

    The cordon ends with the last note that holds it. One that somebody else has set stays.
    """
    return _note(api, api.get(f"{NODES}/{name}"), key, None)


def _note(api: Api, found: JsonObject, key: str, note: Note | None) -> bool:
    node, metadata = Node.of(found), found["metadata"]
    # An update that was interrupted holds no cordon that another note has held with it.
    ended = {key, CORDONED} if key in node.cordons else {key}
    holds = bool(note and note.cordoned)
    stays = holds or node.cordoned_by_others or bool(node.cordons - ended)
    changed = {
        "resourceVersion": metadata["resourceVersion"],
        "annotations": {key: note.text if note else None},
    }
    # Both at once, so that an interrupted run leaves no cordon without its note.
    api.merge(f"{NODES}/{node.name}", {"metadata": changed, "spec": {"unschedulable": stays or None}})
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


def delete(api: Api, name: str, deadline: Deadline) -> None:
    """Delete a Node and its password, so that the name can be used again (k3s-io/k3s#10408).

    K3s leaves the Secret to the garbage collector: until then it lets nobody join. Raises ApiError, TimedOut.
    """

    def gone(path: str) -> bool | Pending:
        try:
            found = api.delete(path)
        except ApiError as error:
            if error.not_found:
                return True
            raise
        # Where nothing keeps the object, the answer is a Status.
        is_kept = (found.get("metadata") or {}).get("deletionTimestamp")
        return Pending(f"{path} is being deleted") if is_kept else True

    password = f"/api/v1/namespaces/kube-system/secrets/{name}.node-password.k3s"
    for path in (f"{NODES}/{name}", password):
        wait_until(partial(gone, path), deadline, poll_seconds=0.5)


def without_node(*hosts: str) -> Finding:
    """Hosts whose Node somebody has deleted. With the Node of a server etcd has lost a member."""
    names = ",".join(hosts)
    return Finding(
        (names,), "no Node in the cluster", Fix(command=("up", STACK, "--converge", names)), kind="drift"
    )


def ask_servers(kubeconfig: str, servers: Iterable[str]) -> list[Finding]:
    """Run `server_problems` for the cluster of a kubeconfig. Raises ValueError where that is unusable."""
    return server_problems(RestApi(kubeconfig), servers, SystemClock())


def server_problems(api: Api, servers: Iterable[str], clock: Clock) -> list[Finding]:
    """Which servers are not Ready and voters in etcd, and why; empty where all are. Raises as `lasting`."""
    expected = tuple(servers)

    def look() -> list[Finding]:
        found = {node.name: node for node in read(api)}
        asked = (_problem(api, name, found.get(name.lower())) for name in expected)
        return [each for each in asked if each]

    return lasting(look, clock)


def _problem(api: Api, name: str, node: Node | None) -> Finding | None:
    if node is None:
        return without_node(name)
    what = _why_not_serving(api, node)
    fix = Fix(
        f"journalctl -u k3s -n 50 --no-pager on {name} says why; where K3s is gone",
        ("up", STACK, "--converge", name),
        "; where the machine is gone: busbar docs operations Failures",
    )
    return Finding((name,), what, fix) if what else None


def _why_not_serving(api: Api, node: Node) -> str:
    """Why the server does not serve; empty where it does."""
    if not node.ready:
        return "the Node is not Ready"
    if VOTER not in node.conditions:
        return f"the Node's condition {VOTER} is not True"
    # Both conditions may be old. The API server of a server asks the etcd of its own host only, and a member
    # without a vote refuses that (as server_answers in host/k3s-etcd.sh). Another API server passes this on.
    try:
        answer = b"".join(api.stream(f"{NODES}/https:{node.name}:6443/proxy/readyz"))
    except ApiError as error:
        if error.status is None:
            raise
        return f"its API server, or the etcd that it asks there, is not ready: {error}"
    return "" if answer == b"ok" else f"/readyz of its API server returned {answer[:80]!r}, expected ok"
