"""A cluster that busbar did not make: its objects have labels, uids and owners; its operator runs jobs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from busbar.kube.client import ApiError, JsonObject
from tests.support.kube_cluster import Cluster, container, pod
from tests.unit.collect import launcher_log

GPU, HCA = "nvidia.com/gpu", "nvidia.com/hostdev"
MPIJOBS = "/apis/kubeflow.org/v2beta1"
H100 = "NVIDIA-H100-80GB-HBM3"
SETTINGS = {
    "transport": "socket",
    "min_bytes": launcher_log.SIZES[0],
    "max_bytes": launcher_log.SIZES[-1],
    "expected_busbw_gbps": 2.0,
}
"""Of a measurement whose log is launcher_log: one GPU on each of two Nodes."""


def gpu_node(
    name: str,
    gpus: int = 8,
    hcas: Mapping[str, int] | None = None,
    *,
    product: str = H100,
    taints: tuple[str, ...] = (),
    labels: Mapping[str, str] | None = None,
    ready: bool = True,
    cordoned: bool = False,
) -> JsonObject:
    """A Node as the API shows it; a taint is KEY=VALUE:EFFECT."""
    offered = {GPU: gpus, **({HCA: 8} if hcas is None else hcas)}
    parsed = [text.replace(":", "=").split("=") for text in taints]
    return {
        "metadata": {
            "name": name,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": product, **(labels or {})},
        },
        "spec": {
            "unschedulable": cordoned,
            "taints": [{"key": key, "value": value, "effect": effect} for key, value, effect in parsed],
        },
        "status": {
            "allocatable": {"cpu": "64", "memory": "1Ti", **{k: str(v) for k, v in offered.items()}},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def holder(node: str, name: str, units: int, resource: str = GPU) -> JsonObject:
    """A running pod of somebody else."""
    requests = {"cpu": "1", resource: str(units)}
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid of {name}"},
        "spec": {"nodeName": node, "containers": [{"name": "train", "resources": {"requests": requests}}]},
    }


class Foreign(Cluster):
    """Lists what was created, by label; deletes what is inside a namespace, and a job's pods, with it."""

    def __init__(self, *nodes: JsonObject, operator: bool = True) -> None:
        super().__init__()
        self._uids = 0
        self.refuse: Callable[[str, Mapping[str, Any]], ApiError | None] = lambda path, body: None
        self.runs: Callable[[JsonObject], None] = self.run_job
        self.deletes = True
        for each in nodes:
            self.objects[f"/api/v1/nodes/{each['metadata']['name']}"] = each
        self.objects["/apis/node.k8s.io/v1/runtimeclasses/nvidia"] = {"metadata": {"name": "nvidia"}}
        if operator:
            self.serve("v2beta1", "mpijobs")

    def serve(self, version: str, *kinds: str) -> None:
        self.objects[f"/apis/kubeflow.org/{version}"] = {"resources": [{"name": kind} for kind in kinds]}

    def add(self, path: str, body: JsonObject) -> None:
        """Something of somebody else."""
        self.objects[path] = {**body, "metadata": {"uid": f"uid of {path}", **body["metadata"]}}

    def hold(self, pod: JsonObject) -> None:
        self.objects[f"/api/v1/namespaces/ml/pods/{pod['metadata']['name']}"] = pod

    def list(self, path: str, **query: str) -> list[JsonObject]:
        self._fail()
        base, _, plural = path.rpartition("/")
        inside = [
            each
            for where, each in list(self.objects.items())
            if where.startswith(f"{base}/") and where.split("/")[-2] == plural and "metadata" in each
        ]
        return [each for each in inside if _matches(each, query.get("labelSelector", ""))]

    def create(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        if body["kind"] == "SelfSubjectAccessReview":
            return {"status": {"allowed": True}}
        if refusal := self.refuse(path, body):
            raise refusal
        if path.endswith("?dryRun=All"):
            return dict(body)
        super().create(path, copy.deepcopy(dict(body)))
        made: JsonObject = self.objects[f"{path}/{body['metadata']['name']}"]
        self._uids += 1
        made["metadata"]["uid"] = f"uid-{self._uids}"
        made["metadata"]["creationTimestamp"] = f"2026-11-24T06:{self._uids // 60:02}:{self._uids % 60:02}Z"
        inside = path.partition("/namespaces/")[2].partition("/")[0]
        if inside:
            made["metadata"]["namespace"] = inside
        if made["kind"] == "MPIJob":
            self.runs(made)
        return made

    def delete(self, path: str, **preconditions: str) -> JsonObject:
        if not self.deletes:
            raise ApiError(f"DELETE {path}", 403, "forbidden")
        found = self.get(path)
        if preconditions.get("uid") != found["metadata"]["uid"]:
            raise ApiError(f"DELETE {path}", 409, "the uid is another one")
        super().delete(path, **preconditions)
        del self.objects[path]
        name, uid = path.rpartition("/")[2], found["metadata"]["uid"]
        for where, each in list(self.objects.items()):
            owners = [owner["uid"] for owner in each.get("metadata", {}).get("ownerReferences", [])]
            is_inside = path.startswith("/api/v1/namespaces/") and f"/namespaces/{name}/" in where
            if uid in owners or (path.count("/") == 4 and is_inside):
                del self.objects[where]
        return {}

    def run_job(self, job: JsonObject, log: str | None = None) -> None:
        """What the operator and the kubelets do with a job: it succeeds, with this log."""
        metadata = job["metadata"]
        name, base = metadata["name"], f"/api/v1/namespaces/{metadata['namespace']}"
        job["status"] = {"conditions": [{"type": "Succeeded", "status": "True", "reason": "Succeeded"}]}
        state = [container({"terminated": {"exitCode": 0}})]
        launcher = pod(f"{name}-launcher-x", "launcher", phase="Succeeded", containerStatuses=state)
        template = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]
        launcher["metadata"]["labels"] |= {
            **template["metadata"]["labels"],
            "training.kubeflow.org/job-name": name,
        }
        launcher["metadata"]["ownerReferences"] = [{"uid": metadata["uid"]}]
        self.objects[f"{base}/pods/{name}-launcher-x"] = launcher
        text = (log or launcher_log.text()).replace("nccl-worker", f"{name}-worker")
        self.logs.append(lambda query: iter([launcher_log.stamped(text)]))

    @property
    def left(self) -> Sequence[str]:
        """The paths of all objects that have the label of a run, or are in its namespace."""
        return [
            path
            for path, each in self.objects.items()
            if "busbar/nccl-run" in each.get("metadata", {}).get("labels", {}) or "/busbar-run-" in path
        ]


def preempt(cluster: Cluster, job: JsonObject) -> None:
    """The scheduler ends the first worker of the job, and one of another run. Events stay for an hour."""
    namespace = job["metadata"]["namespace"]
    for number, name in enumerate((job["metadata"]["name"], "nccl-run-0")):
        cluster.objects[f"/api/v1/namespaces/{namespace}/events/e{number}"] = {
            "metadata": {"name": f"e{number}", "namespace": namespace},
            "reason": "Preempted",
            "message": "Preempted by pod 7f2 on node gpu-1",
            "involvedObject": {"kind": "Pod", "name": f"{name}-worker-0"},
        }


def _matches(each: JsonObject, selector: str) -> bool:
    labels = each["metadata"].get("labels", {})
    pairs = [term.partition("=") for term in selector.split(",") if term]
    return all(labels.get(key) == value if is_pair else key in labels for key, is_pair, value in pairs)
