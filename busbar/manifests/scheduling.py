"""Resource names, tolerations and node affinity: what makes a pod run on a GPU worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from busbar.config.cluster import CONTROL_PLANE, Pool, Taint
from busbar.manifests import shell

Toleration = dict[str, str]

# The GPU Operator's device plugin registers it; also the key of the taint that GPU nodes commonly carry.
GPU_RESOURCE = "nvidia.com/gpu"
GPU_TOLERATION: Toleration = {"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}
CONTROL_PLANE_TOLERATION: Toleration = {
    "key": CONTROL_PLANE, "operator": "Equal", "value": "", "effect": "NoSchedule"
}  # fmt: skip
HOSTNAME = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

HCA_CHECK = shell.text("hca-check")
NODE_ENV = {"name": "BUSBAR_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
# Below pods without a class, which have 0.
IDLE_PRIORITY = -1000


def priority_class(name: str) -> dict[str, Any]:
    """The PriorityClass of pods that end for any other pod, and never end another."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "busbar"}},
        "value": IDLE_PRIORITY,
        "preemptionPolicy": "Never",
        "globalDefault": False,
        "description": "A measurement of idle nodes by busbar.",
    }


def taints_of(pools: Iterable[Pool]) -> list[Taint]:
    """The taints of all pools."""
    return [taint for pool in pools for taint in pool.taints]


def read_taints(taints: Iterable[Mapping[str, str]]) -> list[Taint]:
    """Taints from plain values: key, value and effect. Raises ValueError."""
    return [Taint.model_validate(taint) for taint in taints]


def worker_tolerations(taints: Iterable[Taint]) -> list[Toleration]:
    """The GPU toleration, then one per distinct taint in a fixed order."""
    return [dict(GPU_TOLERATION), *exact_tolerations(taints)]


def exact_tolerations(taints: Iterable[Taint]) -> list[Toleration]:
    """One per distinct taint in a fixed order."""
    distinct = sorted({(taint.key, taint.value, taint.effect) for taint in taints})
    return [{"key": k, "operator": "Equal", "value": v, "effect": e} for k, v, e in distinct]


def pod_on(nodes: Iterable[str], taints: Iterable[Taint], container: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a pod with one container, on one of `nodes` in spite of the taints of their pool."""
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": sorted(nodes)}]}
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "tolerations": worker_tolerations(taints),
        "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}},
        "containers": [{"imagePullPolicy": "IfNotPresent", **container}],
    }
