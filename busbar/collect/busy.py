"""The policy for a measurement whose GPUs are held by pods of others (`validation.when_busy`).

The policy is an annotation of the job that its name does not depend on: a changed policy measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from busbar.config.cluster import Validation
from busbar.finding import STACK, Fix, with_fix
from busbar.kube.client import Api, JsonObject
from busbar.kube.gpus import GpuNode, active_pods, count, held_by
from busbar.kube.nodes import NODES
from busbar.manifests.mpijob import JOB_LABEL, nodes_of

ANNOTATION = "busbar/when-busy"
# Pods that are ending release their GPUs within their grace period, 30 s by default.
PATIENCE_SECONDS = 30.0


class Kept(Exception):
    """The former verdict stays: `found`, with its record. With `kept` it is on another job."""

    def __init__(self, found: JsonObject) -> None:
        super().__init__("the former verdict stays")
        self.found = found


@dataclass(frozen=True)
class WhenBusy:
    """How long the job waits for its GPUs. `keep`: whether the former verdict then stays."""

    deadline_seconds: float
    keep: bool = False

    @classmethod
    def of(cls, validation: Validation, *, in_quarantine: bool = False) -> WhenBusy | None:
        """The configured policy; None for `fail`, which is `keep` while a worker is in quarantine."""
        if validation.when_busy == "keep" or (in_quarantine and validation.when_busy == "fail"):
            return cls(PATIENCE_SECONDS, keep=True)
        return cls(validation.busy_deadline_seconds) if validation.when_busy == "wait" else None

    @classmethod
    def read(cls, annotations: Mapping[str, str]) -> WhenBusy | None:
        """Read the policy of a job from its annotations."""
        text = annotations.get(ANNOTATION)
        return cls(**json.loads(text)) if text else None

    @property
    def annotations(self) -> dict[str, str]:
        """A job with this policy has these annotations."""
        return {ANNOTATION: json.dumps(asdict(self))}


def holders(api: Api, job: JsonObject) -> list[str]:
    """List the Nodes of an MPIJob that are held or drained, each with the reason. Raises ApiError."""
    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    limits = worker["containers"][0]["resources"]["limits"]
    needs = {name: count(limits, name) for name in limits if "/" in name}
    others = (pod for pod in active_pods(api) if not _is_of(pod, job))
    # The scheduler ends those of an idle measurement for the job.
    held = held_by(others, idle=False)
    nodes = (GpuNode.of(node, held) for node in api.list(NODES))
    chosen = nodes_of(job)
    busy = (
        with_fix(
            f"{node.node.name}: drained: {node.node.drained}",
            Fix("put it in quarantine, or when its repair is done", ("uncordon", STACK, node.node.name)),
        )
        if node.node.drained
        else next(filter(None, (node.busy(name, units) for name, units in needs.items())), None)
        for node in nodes
        if node.hostname in chosen
    )
    return sorted(filter(None, busy))


def _is_of(pod: JsonObject, job: JsonObject) -> bool:
    metadata = pod["metadata"]
    label = (metadata.get("labels") or {}).get(JOB_LABEL)
    return bool((metadata["namespace"], label) == (job["metadata"]["namespace"], job["metadata"]["name"]))
