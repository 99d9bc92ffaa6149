"""Helm values: ours from helm_values/, what follows from the cluster, and the stack's own on top."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from busbar.config.operators import GpuOperator, MpiOperator, NetworkOperator
from busbar.config.pools import Pool, Taint
from busbar.manifests.mpijob import tolerate
from busbar.manifests.nccljob import GPU_RESOURCE

Values = dict[str, Any]

# What the chart tolerates of its own accord: a list in values replaces the chart's.
_GPU_TOLERATION = {"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}
_CONTROL_PLANE_TOLERATION = {
    "key": "node-role.kubernetes.io/control-plane",
    "operator": "Equal",
    "value": "",
    "effect": "NoSchedule",
}


def load(folder: Path, name: str) -> Values:
    """The mapping in `folder`/`name`.yaml. Raises ValueError when it is none, and OSError."""
    values = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f"{folder / name}.yaml: a mapping of Helm values is expected")
    return values


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Values:
    """`over` laid over `base` as Helm does it: mappings are merged, all else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both_mappings = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(below, value) if both_mappings else value  # type: ignore[arg-type]
    return merged


def gpu_operator(folder: Path, config: GpuOperator, pools: Iterable[Pool]) -> Values:
    """Values of the GPU Operator: its operands and NFD's worker must reach tainted workers too."""
    ours = load(folder, "gpu-operator")
    if taints := tolerations(pools):
        ours = merge(
            ours,
            {
                "daemonsets": {"tolerations": [_GPU_TOLERATION, *taints]},
                "node-feature-discovery": {
                    "worker": {"tolerations": [_CONTROL_PLANE_TOLERATION, _GPU_TOLERATION, *taints]}
                },
            },
        )
    return merge(ours, config.values)


def network_operator(folder: Path, config: NetworkOperator) -> Values:
    """Values of the Network Operator; its DaemonSets take their tolerations from the NicClusterPolicy."""
    return merge(load(folder, "network-operator"), config.values)


def mpi_operator(folder: Path, config: MpiOperator) -> Values:
    """Values of charts/mpi-operator."""
    return merge(merge(load(folder, "mpi-operator"), {"image": config.image}), config.values)


def tolerations(pools: Iterable[Pool]) -> list[dict[str, str]]:
    """One toleration for each taint of any pool, each once, in a fixed order."""
    taints: dict[tuple[str, str, str], Taint] = {
        (taint.key, taint.value, taint.effect): taint for pool in pools for taint in pool.taints
    }
    return [tolerate(*key) for key in sorted(taints)]
