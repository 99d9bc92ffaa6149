"""What a measurement has to know of a cluster, as its API says it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from busbar.kube.allocatable import count
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.nodes import NODES, Node
from busbar.manifests.mpijob import API_VERSION

# NVIDIA-H100-80GB-HBM3, from NVIDIA's GPU feature discovery; H100, on CoreWeave (coreweave/nccl-tests).
PRODUCT_LABELS = ("nvidia.com/gpu.product", "gpu.nvidia.com/model")
HOSTNAME_LABEL = "kubernetes.io/hostname"
# Not part of a selector's grammar: a name, or several.
_NAMES = re.compile(r"[a-z0-9.,-]+")
# Set by Kubernetes itself on a node that is not fit for pods.
_CONDITION_TAINT = "node.kubernetes.io/"


@dataclass(frozen=True)
class GpuNode:
    """A Node. `offered`: its allocatable extended resources. `held`: by resource, pod -> units."""

    node: Node
    offered: Mapping[str, int]
    held: Mapping[str, Mapping[str, int]]

    @property
    def hostname(self) -> str:
        """The label that a job's affinity selects; some clouds give it another value than the Node's name."""
        return self.node.labels.get(HOSTNAME_LABEL, self.node.name)

    @property
    def product(self) -> str:
        """Name of the GPUs with dashes; "" where no label tells it."""
        found = (self.node.labels.get(label, "") for label in PRODUCT_LABELS)
        return next(filter(None, found), "").replace("_", "-")

    @property
    def unfit(self) -> str | None:
        """Why no new pod can start there; None where one can."""
        if not self.node.ready:
            return "not Ready"
        if self.node.unschedulable:
            return "cordoned"
        return next(
            (str(taint) for taint in self.node.taints if taint.key.startswith(_CONDITION_TAINT)), None
        )

    def free(self, resource: str) -> int:
        """Units that no pod holds."""
        return self.offered.get(resource, 0) - sum(self.held.get(resource, {}).values())


@dataclass(frozen=True)
class Facts:
    """A cluster. What the credentials may not read is None: `runtime_classes`, and what pods hold.

    `nodes`: those of the request, else all. `serves_mpijobs`: in the version that the job has.
    """

    nodes: tuple[GpuNode, ...]
    runtime_classes: frozenset[str] | None
    serves_mpijobs: bool
    pods_known: bool = True


def is_selector(nodes: str) -> bool:
    """Whether `nodes` is a label selector and not a list of names."""
    return not _NAMES.fullmatch(nodes)


def read_facts(api: Api, nodes: str | None) -> Facts:
    """The facts of a cluster, of the Nodes that `nodes` selects or of all. Raises ApiError."""
    query = {"labelSelector": nodes} if nodes and is_selector(nodes) else {}
    found = api.list(NODES, **query)
    active = "status.phase!=Succeeded,status.phase!=Failed"
    pods = _if_allowed(api, "/api/v1/pods", fieldSelector=active)
    classes = _if_allowed(api, "/apis/node.k8s.io/v1/runtimeclasses")
    held = _held(pods or [])
    return Facts(
        nodes=tuple(_gpu_node(node, held) for node in found),
        runtime_classes=None if classes is None else frozenset(each["metadata"]["name"] for each in classes),
        serves_mpijobs=_serves_mpijobs(api),
        pods_known=pods is not None,
    )


def _if_allowed(api: Api, path: str, **query: str) -> list[JsonObject] | None:
    try:
        return api.list(path, **query)
    except ApiError as error:
        if error.status != 403:
            raise
        return None


def _gpu_node(node: JsonObject, held: Mapping[str, Mapping[str, Mapping[str, int]]]) -> GpuNode:
    offered = (node.get("status") or {}).get("allocatable") or {}
    return GpuNode(
        node=Node.of(node),
        # Kubernetes' own resources have no domain: cpu, memory, hugepages-2Mi.
        offered={name: count(offered, name) for name in offered if "/" in name},
        held=held.get(node["metadata"]["name"], {}),
    )


def _held(pods: Iterable[JsonObject]) -> dict[str, dict[str, dict[str, int]]]:
    """By Node and extended resource: pod -> units."""
    found: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for pod in pods:
        spec, name = pod["spec"], f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        for resource, units in _requests(spec).items():
            found[spec.get("nodeName", "")][resource][name] = units
    return found


def _requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """The extended resources of a pod's containers."""
    asked = [(each.get("resources") or {}).get("requests") or {} for each in spec["containers"]]
    names = {name for each in asked for name in each if "/" in name}
    return {name: sum(count(each, name) for each in asked) for name in names}


def _serves_mpijobs(api: Api) -> bool:
    try:
        kinds = api.get(f"/apis/{API_VERSION}").get("resources") or []
    except ApiError as error:
        if not error.not_found:
            raise
        return False
    return any(each["name"] == "mpijobs" for each in kinds)
