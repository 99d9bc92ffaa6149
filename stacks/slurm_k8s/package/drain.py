"""The drain in Slurm before pods of a Node are evicted, and while it is in quarantine (busbar.kube.drain).

Slurm is asked itself: slurm-operator drains the node of a cordoned Node within seconds, but protects a pod
with a job from evictions only by a poll of 30 s, so a younger job would be killed. It leaves a drain with a
reason that is not its own as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from busbar.kube.client import ApiError
from busbar.kube.objects import find
from busbar.kube.wait import Pending
from stacks.slurm_k8s.package.rest import OF_OPERATOR, USER, ProxyApi, SlurmApi, SlurmNode, clusters
from stacks.slurm_k8s.package.values import API_VERSION, workers_of

OURS = "busbar: "


@dataclass(frozen=True)
class SlurmDrain:
    """The node of Slurm on a Node. `end_jobs`: whether its jobs are evicted with its pod."""

    slurm: SlurmApi
    on: str
    reason: str
    end_jobs: bool

    def begin(self) -> None:
        """Drain it with busbar's reason; a drain that a person has set stays."""
        node = self._node()
        is_done = node and "DRAIN" in node.states and node.reason == self.reason
        if node and not is_done and not _of_person(node):
            self.slurm.drain(node.name, self.reason)

    def released(self) -> bool | Pending:
        """True if Slurm starts no jobs there, and none runs. A node that is gone or down has none."""
        node = self._node()
        if node is None or node.is_down:
            return True
        if "DRAIN" not in node.states:
            return Pending(f"node {node.name} of Slurm is {'+'.join(node.states)}, not drained yet")
        if not self.end_jobs and (node.is_busy or node.name in self.slurm.suspended()):
            return Pending(f"remaining jobs of Slurm on {node.name}: squeue -w {node.name}")
        return True

    def end(self) -> None:
        """Undo `begin`, and a cordon's drain by the operator, which with OnDelete would stay."""
        self.slurm.forget_cordon(self.on)
        node = self._node()
        if node and "DRAIN" in node.states and not _of_person(node):
            self.slurm.undrain(node.name)

    def _node(self) -> SlurmNode | None:
        return self.slurm.nodes_by_host().get(self.on)


def _of_person(node: SlurmNode) -> bool:
    of_program = node.by == USER and node.reason.startswith((OURS, OF_OPERATOR))
    return "DRAIN" in node.states and not of_program


def hook(api: ProxyApi, node: str, reason: str, *, end_jobs: bool) -> SlurmDrain | None:
    """The hook for a Node; None without a pod of Slurm there. Raises ApiError."""
    found = clusters(api, fieldSelector=f"spec.nodeName={node}")
    return next((SlurmDrain(each, node, f"{OURS}{reason}", end_jobs) for each in found), None)


def node_states(api: ProxyApi) -> dict[str, str]:
    """Node -> why Slurm starts no jobs there, or that Slurm lacks it, or a job does not leave it.

    Raises ApiError.
    """
    found: dict[str, str] = {}
    wanted: dict[str, set[str]] = {}
    for nodeset in (find(api, f"/apis/{API_VERSION}/nodesets") or {}).get("items") or ():
        wanted.setdefault(nodeset["metadata"]["namespace"], set()).update(workers_of(nodeset))
    for slurm, pods in clusters(api).items():
        try:
            nodes, late = slurm.nodes().values(), slurm.overdue()
        except ApiError as error:
            found |= {pod["spec"].get("nodeName", ""): f"in Slurm: unknown: {error}" for pod in pods}
            continue
        lacking = wanted.get(slurm.namespace, set()) - {each.on for each in nodes}
        found |= dict.fromkeys(sorted(lacking), "no node of Slurm")
        problems = {each.on: each.problem or late.get(each.name) for each in nodes}
        found |= {on: f"in Slurm: {problem}" for on, problem in problems.items() if problem}
    return found
