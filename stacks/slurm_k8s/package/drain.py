"""The drain in Slurm that `busbar drain` makes before the first eviction (busbar.kube.drain.DrainHook).

slurm-operator drains the node of a cordoned Node within seconds, but protects a pod with a job from evictions
only by a poll of 30 s: a job that is younger would be killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from busbar.kube.objects import find
from busbar.kube.wait import Pending
from stacks.slurm_k8s.package.rest import POD_LABELS, ProxyApi, SlurmApi
from stacks.slurm_k8s.package.values import JWT_KEY

# The operator takes the reason of a cordon from it.
REASON = "nodeset.slinky.slurm.net/node-cordon-reason"
_BUSY = {"ALLOCATED", "MIXED", "COMPLETING"}


@dataclass(frozen=True)
class SlurmDrain:
    """The node of Slurm on a Node. `end_jobs`: whether its jobs are evicted with its pod."""

    slurm: SlurmApi
    on: str
    reason: str
    end_jobs: bool

    @property
    def annotations(self) -> Mapping[str, str]:
        """The reason, which is set with the cordon."""
        return {REASON: self.reason}

    def released(self) -> bool | Pending:
        """Whether Slurm starts no jobs there, and none runs. A node that is gone or down has none."""
        node = next((each for each in self.slurm.nodes().values() if each.on == self.on), None)
        if node is None or "DOWN" in node.states:
            return True
        if "DRAIN" not in node.states:
            return Pending(f"node {node.name} of Slurm is {'+'.join(node.states)}, not drained yet")
        if _BUSY & {*node.states} and not self.end_jobs:
            return Pending(f"remaining jobs of Slurm on {node.name}: squeue -w {node.name}")
        return True


def hook(api: ProxyApi, node: str, reason: str, *, end_jobs: bool) -> SlurmDrain | None:
    """The hook for a Node; None without a pod of Slurm there. Raises ApiError."""
    pods = api.list("/api/v1/pods", fieldSelector=f"spec.nodeName={node}", labelSelector=POD_LABELS)
    for pod in pods:
        namespace = pod["metadata"]["namespace"]
        # Without busbar's key it is another Slurm, which cannot be asked.
        if find(api, f"/api/v1/namespaces/{namespace}/secrets/{JWT_KEY}"):
            return SlurmDrain(SlurmApi(api, namespace), node, f"busbar: {reason}", end_jobs)
    return None
