"""A cluster that has passed, as stacks/slurm_k8s reads it, configurations, and slurmrestd in memory."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from busbar.kube.client import JsonObject
from busbar.outputs import ClusterOutputs
from stacks.slurm_k8s.package.config import CONFIG, Slurm
from stacks.slurm_k8s.package.pools import Pool, pools_of
from stacks.slurm_k8s.package.values import JWT_KEY, RELEASE, charts
from tests.support.kube_cluster import Cluster
from tests.support.measured import outputs
from tests.support.shared import PROJECT

CLUSTER = "organization/busbar/site"
REST = "/api/v1/namespaces/slurm/services/slurm-restapi:6820/proxy/slurm/v0.0.44"
PODS = "/api/v1/namespaces/slurm/pods"
NODES = "/api/v1/nodes"
NODESETS = "/apis/slinky.slurm.net/v1beta1/namespaces/slurm/nodesets"
REVISIONS = "/apis/apps/v1/namespaces/slurm/controllerrevisions"
RESTD = "/apis/apps/v1/namespaces/slurm/deployments/slurm-restapi"
KEY = b"k" * 64
FOLDER = PROJECT / "stacks" / "slurm_k8s" / "helm_values"


def cluster(verdict: dict[str, Any] | None = None, **sections: Any) -> ClusterOutputs:
    return ClusterOutputs.from_dict(outputs(verdict, **sections))


def configured(**values: Any) -> dict[str, Any]:
    return {"cluster": CLUSTER, **values}


def slurm(**values: Any) -> Slurm:
    return CONFIG.load(configured(**values))


def pools(given: Slurm | None = None, **sections: Any) -> dict[str, Pool]:
    """The pools of a configuration on the site."""
    return pools_of(cluster(**sections), given or slurm())


def values_of(given: Slurm, release: str = RELEASE, of: Mapping[str, Pool] | None = None) -> JsonObject:
    """The Helm values of a release; `of`: the pools, by default those of the site."""
    operator, chart = charts(given, pools(given) if of is None else of)[release]
    return operator.values(FOLDER, chart)


def node(
    name: str, *states: str, reason: str = "", by: str = "slurm", gres: str = "gpu:h100:8(S:0-1)"
) -> JsonObject:
    """A node as slurmrestd prints it, with the comment of the operator."""
    comment = json.dumps({"namespace": "slurm", "podName": f"slurm-worker-{name}"}, separators=(",", ":"))
    return {
        "name": name, "state": list(states or ["IDLE"]), "reason": reason, "gres": gres, "comment": comment,
        "reason_set_by_user": by,
    }  # fmt: skip


def pod(host: str, on: str) -> JsonObject:
    metadata = {"name": f"slurm-worker-{host}", "namespace": "slurm"}
    return {"metadata": metadata, "spec": {"hostname": host, "nodeName": on, "containers": []}}


class SlurmCluster(Cluster):
    """A cluster in memory with slurmrestd; `job` is the state of every job that is submitted."""

    def __init__(self, *nodes: JsonObject, job: Any = None, objects: Mapping[str, Any] | None = None) -> None:
        key = {"data": {"jwt.key": base64.b64encode(KEY).decode()}}
        found = {
            f"{REST}/nodes/": {"nodes": [*nodes]},
            f"{REST}/jobs/": {"jobs": []},
            f"{REST}/partitions/": {"partitions": []},
            f"{REST}/reservations/": {"reservations": []},
            f"/api/v1/namespaces/slurm/secrets/{JWT_KEY}": key,
            PODS: [pod(each["name"], f"gpu-{number}") for number, each in enumerate(nodes, 1)],
            "/api/v1/namespaces/slurm/events": [],
            f"{NODESETS}/slurm-worker-h100": {"metadata": {"annotations": {}}},
            f"{REST}/job/7": {"jobs": [job or {"job_state": ["COMPLETED"]}]},
        }
        super().__init__({**found, **(objects or {})})
        self.headers: Mapping[str, str] = {}
        self.submitted: list[JsonObject] = []
        self.updates: list[tuple[str, JsonObject]] = []

    def sending(self, headers: Mapping[str, str]) -> SlurmCluster:
        self.headers = headers
        return self

    def create(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        if path.startswith(f"{REST}/node/"):
            self.updates.append((path.rpartition("/")[2], dict(body)))
            return {}
        if path != f"{REST}/job/submit":
            return super().create(path, body)
        self.submitted.append(dict(body))
        return {"job_id": 7}
