"""What a rolled-out operator leaves in the cluster, as the API serves it."""

from collections.abc import Iterable
from itertools import count
from typing import Any

from busbar.kube.client import JsonObject
from tests.support.kube_cluster import pod

TOOLKIT = "nvidia-container-toolkit-daemonset"
GPU_PLUGIN = "nvidia-device-plugin-daemonset"
HCA_PLUGIN = "sriovdp"
NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def gpu_operator(nodes: Iterable[str]) -> dict[str, Any]:
    """The objects of the GPU Operator by path: its pod leads, toolkit and device plugin run on NODES."""
    return operator("gpu-operator", "53822513.nvidia.com", (TOOLKIT, GPU_PLUGIN), nodes)


def network_operator(nodes: Iterable[str]) -> dict[str, Any]:
    """The same of the Network Operator."""
    return operator("nvidia-network-operator", "12620820.mellanox.com", (HCA_PLUGIN,), nodes)


def operator(namespace: str, lease: str, apps: Iterable[str], nodes: Iterable[str]) -> dict[str, Any]:
    base, names = f"/apis/apps/v1/namespaces/{namespace}", [*nodes]
    pods = [operand(app, node) for app in apps for node in names]
    return {
        f"{base}/deployments/operator": deployment(),
        f"{base}/replicasets/operator-2": replica_set(2),
        f"{base}/replicasets/operator-1": replica_set(1),
        f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{lease}": held_by("operator-2-x"),
        f"{base}/daemonsets": [daemon_set(app) for app in apps],
        f"{base}/controllerrevisions": [revision(app, number) for app in apps for number in (1, 2)],
        f"/api/v1/namespaces/{namespace}/pods": pods,
        f"/api/v1/namespaces/{namespace}/pods/operator-2-x": operator_pod(2),
        NODE_LEASES: [renewed(node, "01:00") for node in names],
    }


def deployment(generation: int = 2, **status: int) -> JsonObject:
    counts = {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1, **status}
    annotations = {"deployment.kubernetes.io/revision": "2"}
    metadata = {"name": "operator", "generation": generation, "annotations": annotations}
    return {"metadata": metadata, "spec": {"replicas": 1}, "status": counts}


def replica_set(number: int) -> JsonObject:
    annotations = {"deployment.kubernetes.io/revision": str(number)}
    owner = [{"name": "operator", "uid": "d", "controller": True}]
    name = f"operator-{number}"
    return {"metadata": {"name": name, "annotations": annotations, "ownerReferences": owner}}


def operator_pod(number: int) -> JsonObject:
    made: JsonObject = pod(f"operator-{number}-x")
    made["metadata"]["ownerReferences"] = [{"name": f"operator-{number}", "uid": "r", "controller": True}]
    return {**made, "spec": {"nodeName": "server-1"}}


class _Renewed(dict[str, Any]):
    """The spec of a lease that is renewed between any two looks."""

    def __init__(self, holder: str) -> None:
        super().__init__(holderIdentity=holder)
        self._seconds = count()

    def get(self, key: str, default: Any = None) -> Any:
        if key == "renewTime":
            return f"2026-01-01T00:{next(self._seconds):02}.000000Z"
        return super().get(key, default)


def held_by(pod: str) -> JsonObject:
    return {"spec": _Renewed(f"{pod}_7ca2")}


def daemon_set(app: str, generation: int = 4, observed: int = 4) -> JsonObject:
    metadata = {"name": app, "uid": app, "generation": generation, "labels": {"app": app}}
    return {"metadata": metadata, "status": {"observedGeneration": observed}}


def revision(app: str, number: int) -> JsonObject:
    owner = [{"uid": app, "controller": True}]
    labels = {"controller-revision-hash": f"hash-{number}"}
    return {"metadata": {"labels": labels, "ownerReferences": owner}, "revision": number}


def operand(app: str, node: str, number: int = 2, *, ready: bool = True) -> JsonObject:
    """The pod of a DaemonSet, whose container started at 00:10."""
    name = "nvidia-container-toolkit-ctr" if app == TOOLKIT else "plugin"
    running = {"name": name, "state": {"running": {"startedAt": "2026-01-01T00:00:10Z"}}}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    made: JsonObject = pod(f"{app}-{node}", containerStatuses=[running], conditions=conditions)
    made["metadata"]["labels"] = {"controller-revision-hash": f"hash-{number}"}
    made["metadata"]["ownerReferences"] = [{"uid": app, "controller": True}]
    return {**made, "spec": {"nodeName": node}}


def renewed(node: str, at: str) -> JsonObject:
    """The lease of a kubelet; at: minutes and seconds."""
    spec = {"renewTime": f"2026-01-01T00:{at}.000000Z", "leaseDurationSeconds": 40}
    return {"metadata": {"name": node}, "spec": spec}
