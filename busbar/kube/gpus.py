"""Nodes with GPUs, which pods hold their devices, and how these are ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from busbar.exits import Failed
from busbar.kube.client import Api, JsonObject
from busbar.kube.nodes import Node
from busbar.kube.objects import NAMESPACES, OWNER, delete, find, quantity
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.text import listed

# NVIDIA-H100-80GB-HBM3, from NVIDIA's GPU feature discovery; H100, on CoreWeave (coreweave/nccl-tests).
PRODUCT_LABELS = ("nvidia.com/gpu.product", "gpu.nvidia.com/model")
HOSTNAME_LABEL = "kubernetes.io/hostname"
# Set by Kubernetes itself on a node that is not fit for pods.
_CONDITION_TAINT = "node.kubernetes.io/"
_ACTIVE = "status.phase!=Succeeded,status.phase!=Failed"
IDLE_LABEL = "busbar/idle"
"""Of pods of a measurement that end for any other pod."""
MEASURED_BY = "busbar/measured-by"
"""An annotation of pods that hold GPUs for jobs of their own: the command that measures these GPUs."""

Held = Mapping[str, Mapping[str, Mapping[str, int]]]
"""By Node and extended resource: pod (NAMESPACE/NAME) -> units."""


@dataclass(frozen=True)
class GpuNode:
    """A Node. `offered`: its allocatable extended resources. `held`: by resource, pod -> units."""

    node: Node
    offered: Mapping[str, int]
    held: Mapping[str, Mapping[str, int]]

    @classmethod
    def of(cls, node: JsonObject, held: Held) -> GpuNode:
        """From the API's object, and what the pods hold."""
        known = Node.of(node)
        # Kubernetes' own resources have no domain: cpu, memory, hugepages-2Mi.
        offered = {name: count(known.allocatable, name) for name in known.allocatable if "/" in name}
        return cls(known, offered, held.get(known.name, {}))

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
        taints = (str(taint) for taint in self.node.taints if taint.key.startswith(_CONDITION_TAINT))
        return self.node.out or next(taints, None)

    def lacks(self, resource: str, units: int) -> str | None:
        """What the Node offers where that is less than a pod needs; None where it is enough."""
        offered = self.offered.get(resource, 0)
        lacking = f"{self.node.name}: {offered} {resource} allocatable, {units} requested"
        return lacking if offered < units else None

    def busy(self, resource: str, units: int) -> str | None:
        """Which pods hold what a new pod needs; None where it is free, or where the Node never had it."""
        held = self.held.get(resource, {})
        free = self.offered.get(resource, 0) - sum(held.values())
        if free >= units or self.offered.get(resource, 0) < units:
            return None
        pods = listed([f"{pod} ({count})" for pod, count in sorted(held.items())])
        return f"{self.node.name}: {free} of {units} {resource} are free, held by {pods}"


def count(resources: Mapping[str, Any] | None, name: str) -> int:
    """Units of an extended resource in `allocatable`, `capacity` or the requests of a container."""
    # A whole number, which the API may print as 1k; bytes, as some plugins count, as 64Gi.
    return int(quantity((resources or {}).get(name, "0")))


def active_pods(api: Api) -> list[JsonObject]:
    """The pods of all namespaces that hold their devices. Raises ApiError."""
    return api.list("/api/v1/pods", fieldSelector=_ACTIVE)


def held_by(pods: Iterable[JsonObject], *, idle: bool = True) -> Held:
    """What the pods hold; without `idle` those with IDLE_LABEL hold nothing."""
    found: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for pod in pods:
        if not idle and IDLE_LABEL in (pod["metadata"].get("labels") or {}):
            continue
        spec, name = pod["spec"], f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        if command := (pod["metadata"].get("annotations") or {}).get(MEASURED_BY):
            name += f" [measure with `{command}`]"
        for resource, units in requests(spec).items():
            found[spec.get("nodeName", "")][resource][name] = units
    return found


def requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """The extended resources of a pod's containers."""
    asked = [(each.get("resources") or {}).get("requests") or {} for each in spec["containers"]]
    names = {name for each in asked for name in each if "/" in name}
    return {name: sum(count(each, name) for each in asked) for name in names}


END_SECONDS = 180
"""How long pods may take to end; their grace period is 30 s by default."""


class Workload(NamedTuple):
    """The object that made pods which hold GPUs or HCAs, such as an MPIJob, or one such pod."""

    kind: str
    namespace: str
    name: str
    path: str
    uid: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def workloads(api: Api) -> list[Workload]:
    """All that hold devices; a pod that gives its devices to jobs of its own is none. Raises ApiError."""
    found: dict[str, Workload] = {}
    for pod in active_pods(api):
        made, namespace = pod["metadata"], pod["metadata"]["namespace"]
        marks = {*(made.get("labels") or {}), *(made.get("annotations") or {})}
        if not requests(pod["spec"]) or {IDLE_LABEL, MEASURED_BY} & marks:
            continue
        kind, path = "Pod", f"/api/v1/namespaces/{namespace}/pods/{made['name']}"
        while owner := next(
            (each for each in made.get("ownerReferences") or () if each.get("controller")), None
        ):
            version = owner["apiVersion"]
            base = f"/{'apis' if '/' in version else 'api'}/{version}/namespaces/{namespace}"
            above = f"{base}/{owner['kind'].lower()}s/{owner['name']}"
            if (item := find(api, above)) is None:
                break
            kind, path, made = owner["kind"], above, item["metadata"]
        found[path] = Workload(kind, namespace, made["name"], path, made["uid"])
    return [found[path] for path in sorted(found)]


def end(api: Api, look: Callable[[], Iterable[Workload]], clock: Clock, progress: ProgressCallback) -> None:
    """Delete the workloads that `look` finds, and wait for the end of their pods. Raises Failed, ApiError."""

    def ended() -> bool | Pending:
        left = [*look()]
        for each in left:
            delete(api, each.path, each.uid)
        return Pending(f"ending: {listed([*map(str, left)])}") if left else True

    try:
        wait_until(ended, Deadline(clock, END_SECONDS), poll_seconds=2, progress=progress)
    except TimedOut as timeout:
        raise Failed(f"{timeout}; nothing was removed", "kubectl get pods -A; then retry") from timeout


def owners(api: Api) -> dict[str, str]:
    """Namespace -> PROJECT/STACK of the stack that has made it. Raises ApiError."""
    spaces = {
        each["metadata"]["name"]: each["metadata"].get("annotations") or {} for each in api.list(NAMESPACES)
    }
    return {name: marks[OWNER].rpartition("/")[0] for name, marks in spaces.items() if OWNER in marks}
