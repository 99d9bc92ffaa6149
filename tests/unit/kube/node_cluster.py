"""A cluster of Nodes and pods in memory, which takes patches, deletions and evictions."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

from busbar.kube.client import ApiError, JsonObject
from busbar.kube.drain import Hooks
from busbar.kube.nodes import CORDONED, LEASES, MACHINE, NODES, Node, NodeTaint, Note
from busbar.kube.wait import Pending
from tests.support.kube_cluster import Clock, Cluster, not_found

CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"
BUDGET = "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget b needs 2"


def node(
    name: str,
    machine: str = "",
    *taints: str,
    ready: bool = True,
    server: bool = False,
    cordoned: bool = False,
) -> JsonObject:
    """A Node as the API serves it."""
    annotations = {MACHINE: machine} if machine else {}
    if cordoned:
        annotations[CORDONED] = Note("restart of K3s", cordoned=True).text
    parsed = [vars(NodeTaint.parse(text)) for text in taints]
    return {
        "metadata": {
            "name": name,
            "resourceVersion": "1",
            "annotations": annotations,
            "labels": {"node-role.kubernetes.io/etcd": "true"} if server else {},
        },
        "spec": {"taints": parsed, **({"unschedulable": True} if cordoned else {})},
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}]},
    }


def pod(
    name: str, on: str, owner: str = "ReplicaSet", phase: str = "Running", *, gpus: str = "0", label: str = ""
) -> JsonObject:
    """A pod in the namespace default; `owner` is the kind of its controller, "" without one."""
    owners = [{"kind": owner}] if owner else []
    containers = [{"resources": {"requests": {"nvidia.com/gpu": gpus} if gpus != "0" else {}}}]
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "ownerReferences": owners,
            "labels": {label: "true"},
        },
        "spec": {"nodeName": on, "containers": containers},
        "status": {"phase": phase},
    }


def volume(claim: str, *hosts: str) -> JsonObject:
    """A volume as K3s's local-path makes it, on the disk of these hosts."""
    rule = {"key": "kubernetes.io/hostname", "operator": "In", "values": [*hosts]}
    terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}} if hosts else {}
    return {"spec": {"claimRef": {"namespace": "site", "name": claim}, "nodeAffinity": terms}}


class Nodes(Cluster):
    """`log`: what was changed. `refused`: pods that a budget keeps. `kept`: Nodes that cannot be deleted.

    `died`: when a machine did, by its Node; the kubelets of all others renew their leases every 10 s.
    """

    def __init__(self, *nodes: JsonObject, pods: tuple[JsonObject, ...] = ()) -> None:
        super().__init__({f"{NODES}/{each['metadata']['name']}": each for each in nodes})
        self.pods = list(pods)
        self.log: list[str] = []
        self.refused: set[str] = set()
        self.kept: set[str] = set()
        self.died: dict[str, float] = {}
        self.clock = Clock()

    def taints(self, name: str) -> set[str]:
        """The taints of a Node, as texts."""
        return {str(NodeTaint(**each)) for each in self.objects[f"{NODES}/{name}"]["spec"]["taints"]}

    def seen(self, name: str = "w-1") -> Node:
        """The Node as busbar reads it."""
        return Node.of(self.objects[f"{NODES}/{name}"])

    def list(self, path: str, **query: str) -> list[JsonObject]:
        self._fail()
        if path == "/api/v1/pods":
            _, named, name = query["fieldSelector"].partition("spec.nodeName=")
            return [each for each in self.pods if not named or each["spec"]["nodeName"] == name]
        if path == LEASES:
            return [self._lease(at.rpartition("/")[2]) for at in self.objects if at.startswith(NODES)]
        return [deepcopy(each) for at, each in self.objects.items() if at.rpartition("/")[0] == path]

    def _lease(self, node: str) -> JsonObject:
        last = min(self.clock.time, self.died.get(node, self.clock.time)) // 10 * 10
        renewed = datetime.fromtimestamp(1_800_000_000 + last, UTC)
        spec = {"leaseDurationSeconds": 40, "renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        return {"metadata": {"name": node}, "spec": spec}

    def get(self, path: str, **query: str) -> JsonObject:
        return deepcopy(super().get(path, **query))

    def create(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        if not path.endswith("/eviction"):
            return super().create(path, body)
        self._fail()
        name = body["metadata"]["name"]
        if name in self.refused:
            raise ApiError(f"POST {path}", 429, BUDGET)
        self.log.append(f"{name} evicted")
        self.pods = [each for each in self.pods if each["metadata"]["name"] != name]
        return {}

    def merge(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        self._fail()
        found = self.objects.get(path)
        if found is None:
            raise not_found(path)
        version = (body.get("metadata") or {}).get("resourceVersion")
        if version not in (None, found["metadata"].get("resourceVersion")):
            raise ApiError(f"PATCH {path}", 409, "the object has been modified")
        name = path.rpartition("/")[2]
        if "unschedulable" in (body.get("spec") or {}):
            self.log.append(f"{name} {'cordoned' if body['spec']['unschedulable'] else 'uncordoned'}")
        elif path.startswith(NODES):
            self.log.append(f"{name} tainted")
        _merge(found, body)
        return found

    def delete(self, path: str, **preconditions: str) -> JsonObject:
        self._fail()
        name = path.rpartition("/")[2]
        if name in self.kept:
            raise ApiError(f"DELETE {path}", 403, "not allowed")
        if path not in self.objects:
            raise not_found(path)
        del self.objects[path]
        self.log.append(f"{name} deleted")
        return {}


class Scheduler:
    """Has jobs on a Node until the clock says so; `cluster.log` has what it was told."""

    def __init__(self, cluster: Nodes, node: str, reason: str, until: float = 0) -> None:
        self.cluster, self.node, self.reason, self.until = cluster, node, reason, until

    def begin(self) -> None:
        self.cluster.log.append(f"{self.node} drained by the scheduler: {self.reason}")

    def released(self) -> bool | Pending:
        assert any(text.startswith(f"{self.node} drained by") for text in self.cluster.log)
        return True if self.cluster.clock.now() >= self.until else Pending("jobs of the scheduler")

    def end(self) -> None:
        self.cluster.log.append(f"{self.node} back in the scheduler")


def asking(cluster: Nodes, until: float = 0) -> Hooks:
    """A scheduler that has jobs on every Node."""
    return lambda node, reason: [Scheduler(cluster, node, reason, until)]


class Contended(Nodes):
    """Somebody else cordons `w-1` just after it was read for the first time."""

    was_read = False

    def get(self, path: str, **query: str) -> JsonObject:
        found = super().get(path, **query)
        if path == f"{NODES}/w-1" and not self.was_read:
            self.was_read = True
            self.objects[path]["metadata"]["resourceVersion"] = "2"
            self.objects[path]["spec"]["unschedulable"] = True
        return found


def _merge(into: dict[str, Any], patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, Mapping):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value
