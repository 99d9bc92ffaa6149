"""What a measurement does while pods of others hold the GPUs that it needs (`validation.when_busy`).

The policy is an annotation of the job that its name does not depend on: a changed policy measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from busbar.config.validation import Validation
from busbar.kube.allocatable import count
from busbar.kube.client import Api, JsonObject
from busbar.kube.gpus import GpuNode, active_pods, held_by
from busbar.kube.nodes import NODES
from busbar.kube.objects import find
from busbar.manifests.mpijob import JOB_LABEL, POOL_LABEL

ANNOTATION = "busbar/when-busy"
RESULT_KEY = "result.json"
"""In the ConfigMap of a pool's last result."""
QUARANTINED_KEY = "quarantined"
"""There too: names of workers that were in quarantine then, with commas, if `when_busy` is not set."""
# Pods that are ending release their GPUs within their grace period, 30 s by default.
PATIENCE_SECONDS = 30.0


class Kept(Exception):
    """The GPUs are held: the former verdict stays. `printed`: that, as it was recorded."""

    def __init__(self, printed: str) -> None:
        super().__init__("the former verdict stays")
        self.printed = printed


@dataclass(frozen=True)
class WhenBusy:
    """How long the job waits for its GPUs, and the name of the ConfigMap whose result then stays, if any."""

    deadline_seconds: float
    former: str | None = None

    @classmethod
    def of(cls, validation: Validation, former: str, *, in_quarantine: bool = False) -> WhenBusy | None:
        """The configured policy; None for `fail`, the default. FORMER: the ConfigMap for `keep`.

        IN_QUARANTINE: whether a worker of the pool is: `keep` is the default then.
        """
        if validation.when_busy == "keep" or (in_quarantine and not is_set(validation)):
            return cls(PATIENCE_SECONDS, former)
        return cls(validation.busy_deadline_seconds) if validation.when_busy == "wait" else None

    @classmethod
    def read(cls, annotations: Mapping[str, str]) -> WhenBusy | None:
        """The policy of a job, from its annotations."""
        text = annotations.get(ANNOTATION)
        return cls(**json.loads(text)) if text else None

    @property
    def annotations(self) -> dict[str, str]:
        """What `read` reads."""
        return {ANNOTATION: json.dumps(asdict(self))}


def is_set(validation: Validation) -> bool:
    """Whether the configuration says what a measurement does while its GPUs are held."""
    return "when_busy" in validation.model_fields_set


def last_result(pool: str) -> str:
    """The name of the ConfigMap of a pool's last result."""
    return f"nccl-{pool}-last-result"


def after_quarantine(api: Api, job: JsonObject) -> WhenBusy | None:
    """`keep` for a job on a worker whose quarantine has ended since the last result. Raises ApiError."""
    metadata = job["metadata"]
    name = last_result((metadata.get("labels") or {}).get(POOL_LABEL, ""))
    found = find(api, f"/api/v1/namespaces/{metadata['namespace']}/configmaps/{name}") or {}
    held = ((found.get("data") or {}).get(QUARANTINED_KEY) or "").split(",")
    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    return WhenBusy(PATIENCE_SECONDS, name) if hostnames(worker) & set(held) else None


def holders(api: Api, job: JsonObject) -> list[str]:
    """Of each Node of an MPIJob that is not free: pods of others, or why it was drained. Raises ApiError."""
    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    limits = worker["containers"][0]["resources"]["limits"]
    needs = {name: count(limits, name) for name in limits if "/" in name}
    others = (pod for pod in active_pods(api) if not _is_of(pod, job))
    # The scheduler ends those of an idle measurement for the job.
    held = held_by(others, idle=False)
    nodes = (GpuNode.of(node, held) for node in api.list(NODES))
    chosen = hostnames(worker)
    busy = (
        f"{node.node.name}: drained: {node.node.drained}. Fix: `busbar uncordon` when its repair is done, "
        "or put it in quarantine"
        if node.node.drained
        else next(filter(None, (node.busy(name, units) for name, units in needs.items())), None)
        for node in nodes
        if node.hostname in chosen
    )
    return sorted(filter(None, busy))


def former_result(api: Api, namespace: str, name: str) -> str | None:
    """The recorded result of a pool, where that is a verdict with evidence. Raises ApiError."""
    found = find(api, f"/api/v1/namespaces/{namespace}/configmaps/{name}") or {}
    try:
        text: str = found["data"][RESULT_KEY]
        return text if json.loads(text)["verdict"] in ("pass", "fail") else None
    except (KeyError, TypeError, ValueError):
        return None  # no record, or not written by busbar


def _is_of(pod: JsonObject, job: JsonObject) -> bool:
    metadata = pod["metadata"]
    label = (metadata.get("labels") or {}).get(JOB_LABEL)
    return bool((metadata["namespace"], label) == (job["metadata"]["namespace"], job["metadata"]["name"]))


def hostnames(worker: JsonObject) -> set[str]:
    """The Nodes of a worker's spec: values of the label by which scheduling.pod_on selects them."""
    required = worker["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = required["nodeSelectorTerms"]
    [expression] = term["matchExpressions"]
    return set(expression["values"])
