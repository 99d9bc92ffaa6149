"""kube-prometheus-stack: the two releases, and the values that follow from the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from busbar.manifests.operators import Operator, Values, load, merge
from stacks.watch.package.config import Stack

CRDS = Operator(config_key="stack", release="prometheus-operator-crds", namespace="prometheus-operator-crds")
STACK = Operator(config_key="stack", release="kube-prometheus-stack", namespace="kube-prometheus-stack")
GRAFANA_SECRET = "busbar-grafana-admin"


def values(folder: Path, stack: Stack, memory_gib: int) -> Values:
    """`folder`/kube-prometheus-stack.yaml, then values derived from `stack`, then its own `values`."""
    derived = {"prometheus": {"prometheusSpec": _prometheus(stack, memory_gib)}}
    return merge(merge(load(folder, STACK.release), derived), stack.values)


def _prometheus(stack: Stack, memory_gib: int) -> dict[str, Any]:
    claim: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": stack.storage}},
    }
    if stack.storage_class:
        claim["storageClassName"] = stack.storage_class
    return {
        "retention": f"{stack.retention_days}d",
        "resources": {"requests": {"memory": f"{memory_gib}Gi"}},
        "storageSpec": {"volumeClaimTemplate": {"spec": claim}},
    }
