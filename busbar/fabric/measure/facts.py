"""The facts about a cluster that a measurement needs, read from its API."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.gpus import GpuNode, active_pods, held_by
from busbar.kube.nodes import NODES
from busbar.kube.objects import find
from busbar.manifests.mpijob import API_VERSION

# One name or several, which are not a selector by its grammar.
_NAMES = re.compile(r"[a-z0-9.,-]+")


@dataclass(frozen=True)
class Facts:
    """A cluster. `runtime_classes` and the devices held by pods are None without permission to read them.

    `nodes`: those of the request, else all. `serves_mpijobs`: in the version of the job. `stopped_operators`:
    why nobody would run the job; empty also without permission to read Deployments.
    """

    nodes: tuple[GpuNode, ...]
    runtime_classes: frozenset[str] | None
    serves_mpijobs: bool
    pods_known: bool = True
    stopped_operators: tuple[str, ...] = ()


def is_selector(nodes: str) -> bool:
    """Whether `nodes` is a label selector and not a list of names."""
    return not _NAMES.fullmatch(nodes)


def read_facts(api: Api, nodes: str | None, *, idle: bool = False) -> Facts:
    """The facts of a cluster, of the Nodes that `nodes` selects or of all. Raises ApiError.

    `idle`: for a measurement that ends no pod, so those of another idle one hold their GPUs.
    """
    query = {"labelSelector": nodes} if nodes and is_selector(nodes) else {}
    found = api.list(NODES, **query)
    pods = _if_allowed(lambda: active_pods(api))
    classes = _if_allowed(lambda: api.list("/apis/node.k8s.io/v1/runtimeclasses"))
    held = held_by(pods or [], idle=idle)
    return Facts(
        nodes=tuple(GpuNode.of(node, held) for node in found),
        runtime_classes=None if classes is None else frozenset(each["metadata"]["name"] for each in classes),
        serves_mpijobs=_serves_mpijobs(api),
        pods_known=pods is not None,
        stopped_operators=_stopped_operators(api),
    )


def _if_allowed(read: Callable[[], list[JsonObject]]) -> list[JsonObject] | None:
    try:
        return read()
    except ApiError as error:
        if error.status != 403:
            raise
        return None


def _stopped_operators(api: Api) -> tuple[str, ...]:
    """The Deployments of the MPI Operator, if none of them has a pod that is available."""
    listed = _if_allowed(lambda: api.list("/apis/apps/v1/deployments")) or []
    found = [each for each in listed if _is_operator(each)]
    if any((each.get("status") or {}).get("availableReplicas") for each in found):
        return ()
    return tuple(
        f"Deployment {name} in {namespace} has no available pod, so no MPIJob runs. "
        f"Fix: kubectl -n {namespace} rollout status deployment {name}; where it is scaled to 0: "
        f"kubectl -n {namespace} scale deployment {name} --replicas 1"
        for name, namespace in ((each["metadata"]["name"], each["metadata"]["namespace"]) for each in found)
    )


def _is_operator(deployment: JsonObject) -> bool:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return any("mpi-operator" in str(each.get("image")) for each in containers)


def _serves_mpijobs(api: Api) -> bool:
    kinds = (find(api, f"/apis/{API_VERSION}") or {}).get("resources") or []
    return any(each["name"] == "mpijobs" for each in kinds)
