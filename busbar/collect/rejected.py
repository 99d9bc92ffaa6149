"""Pods that a kubelet has rejected while it started, and when they can start again.

A kubelet admits pods before its device plugins have registered again. It rejects a pod that needs their
devices for good: its phase is Failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from busbar.exits import NoVerdict
from busbar.kube import rollout
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.gpus import GpuNode, requests
from busbar.kube.nodes import NODES
from busbar.kube.pods import issues_of
from busbar.kube.wait import Deadline, Pending, ProgressCallback, wait_until
from busbar.text import listed

POLL_SECONDS = 1.5
# Time for all of a rollout's restarts of an agent, with the back-off of a toolkit that ends itself.
DEVICES_SECONDS = 180.0
# Plugins register 0.5 s after the start of a kubelet, and it admits pods 0.8 s later.
STABLE_SECONDS = 5.0
# After a rollout of the GPU Operator's toolkit agents restart for up to half a minute.
UNSEEN_SECONDS = 30.0
_NAMED = 3


class Rejected(NoVerdict):
    """Kubelets that were starting have rejected pods of the job, also after it was started once more."""


def was_rejected(pod: JsonObject) -> bool:
    """Return whether a kubelet had no devices for the pod yet."""
    return (pod.get("status") or {}).get("reason") == "UnexpectedAdmissionError"


def is_bound_only(pod: JsonObject) -> bool:
    """Return whether the pod has a node whose kubelet has not admitted it."""
    status = pod.get("status") or {}
    is_bound = bool((pod.get("spec") or {}).get("nodeName"))
    return is_bound and status.get("phase") == "Pending" and not status.get("startTime")


def why(pods: Sequence[JsonObject]) -> str:
    """Name the kubelets that have rejected these pods, with their reasons."""
    nodes = sorted({pod["spec"]["nodeName"] for pod in pods})
    issues = [str(issue) for pod in pods for issue in issues_of(pod) if issue.permanent]
    text = f"the kubelet on {listed(nodes, _NAMED)} has just started, and has rejected pods of the job"
    return f"{text}: {listed(issues, _NAMED)}"


def await_devices(
    api: Api, pods: Iterable[JsonObject], deadline: Deadline, progress: ProgressCallback
) -> None:
    """Return when the nodes of the pods offer what these need, and no agent is about to restart there.

    Where the pods of the toolkit may not be read, the devices must have been there for as long as it may
    restart agents. Raises TimedOut within DEADLINE, and ApiError.
    """
    deadline = Deadline(deadline.clock, min(DEVICES_SECONDS, deadline.left))
    needs = {spec["nodeName"]: requests(spec) for pod in pods if (spec := pod["spec"]).get("nodeName")}
    good_since: float | None = None

    def there() -> bool | Pending:
        nonlocal good_since
        since, good_since = good_since, None
        nodes = {name: node for node in api.list(NODES) if (name := node["metadata"]["name"]) in needs}
        lacking = [*_lacking(needs, nodes)]
        try:
            toolkits = api.list("/api/v1/pods", labelSelector=rollout.TOOLKIT_LABEL)
            lacking += rollout.restarts(api, toolkits, nodes)
            stable = STABLE_SECONDS
        except ApiError as error:
            if error.status != 403:
                raise
            stable = UNSEEN_SECONDS
        if lacking:
            return Pending(f"waiting for devices: {listed(lacking, _NAMED)}")
        good_since = deadline.elapsed if since is None else since
        return deadline.elapsed - good_since >= stable or Pending("all devices are there")

    wait_until(there, deadline, poll_seconds=POLL_SECONDS, progress=progress)


def _lacking(needs: Mapping[str, Mapping[str, int]], nodes: Mapping[str, JsonObject]) -> Iterable[str]:
    for name, needed in needs.items():
        node = GpuNode.of(nodes[name], {}) if name in nodes else None
        if node is None or not node.node.ready:
            yield f"{name} is not Ready"
        else:
            yield from filter(None, (node.lacks(resource, units) for resource, units in needed.items()))
