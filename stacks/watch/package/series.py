"""busbar's series: the expected devices of a cluster and its measured results, in Prometheus' text format.

A node_exporter with only its textfile collector serves them from the ConfigMap `busbar-metrics`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import Field

from busbar.collect.result import KEY as VERDICT_KEY
from busbar.kube.client import Api, ApiError
from busbar.kube.nodes import NODES, Node
from busbar.kube.objects import create_or_merge
from busbar.models import StrictModel, number
from busbar.outputs import ClusterOutputs, PoolLaunch, PoolResult
from stacks.watch.package.config import Watch

CONFIG_MAP = "busbar-metrics"
FILE = "busbar.prom"
_DEVICE = re.compile(r"[^A-Za-z0-9]")


class SeriesSpec(StrictModel):
    """Stdin of `busbar watch write`: the values from which the series are made."""

    namespace: str
    pools: dict[str, PoolLaunch]
    results: dict[str, PoolResult]
    max_age_hours: int | None = Field(default=None)

    @classmethod
    def of(cls, cluster: ClusterOutputs, watch: Watch) -> SeriesSpec:
        """The request for the outputs of the cluster's stack."""
        return cls(
            namespace=watch.namespace,
            pools=cluster.pools,
            # The path of the verdict on this machine has the name of the cluster's stack, so it is left out.
            results={
                pool: result.model_copy(update={"verdict_file": None})
                for pool, result in cluster.nccl.items()
            },
            max_age_hours=watch.max_age_hours,
        )


@dataclass(frozen=True)
class Sample:
    """One sample of a series."""

    name: str
    labels: Mapping[str, str]
    value: float

    def __str__(self) -> str:
        labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in self.labels.items())
        return f"{self.name}{{{labels}}} {self.value:.10g}" if labels else f"{self.name} {self.value:.10g}"


def write(api: Api, spec: SeriesSpec, now: datetime) -> dict[str, Any]:
    """Write the ConfigMap from the request, and from quarantines and floors stored in the cluster.

    Returns {"series", "quarantined"}. Raises ApiError.
    """
    nodes = [Node.of(each) for each in api.list(NODES)]
    quarantined = {node.name: node.quarantine for node in nodes if node.quarantine}
    floors = {pool: floor for pool, result in spec.results.items() if (floor := _floor(api, result))}
    samples = list(render(spec, quarantined, floors, now))
    _apply(api, spec.namespace, "\n".join(map(str, samples)) + "\n")
    return {"series": len(samples), "quarantined": sorted(quarantined)}


def render(
    spec: SeriesSpec, quarantined: Mapping[str, str], floors: Mapping[str, float], now: datetime
) -> Iterator[Sample]:
    """All samples. `quarantined`: reasons by Node; `floors`: lowest busbw that passes, in GB/s, by pool.

    A Node in quarantine is expected to have no devices, so that rules that compare do not fire for it.
    """
    yield Sample("busbar_metrics_written_timestamp_seconds", {}, now.timestamp())
    if spec.max_age_hours:
        yield Sample("busbar_nccl_max_age_seconds", {}, spec.max_age_hours * 3600)
    for node, reason in sorted(quarantined.items()):
        yield Sample("busbar_node_quarantined", {"node": node, "reason": reason}, 1)
    for pool, launch in sorted(spec.pools.items()):
        for node in launch.workers:
            yield from _rails(node, pool, launch)
            if node not in quarantined:
                yield from _expected(node, pool, launch)
    for pool, result in sorted(spec.results.items()):
        yield from _measured(pool, result, floors.get(pool))


def without_names(cluster: ClusterOutputs) -> list[str]:
    """The workers whose rails are not named in the outputs, so that all their ports count as rails."""
    pools = cluster.pools.values()
    return [node for launch in pools for node in launch.workers if node not in (launch.rail_hcas or {})]


def _rails(node: str, pool: str, launch: PoolLaunch) -> Iterator[Sample]:
    for hca in (launch.rail_hcas or {}).get(node, ()):
        device, _, port = hca.partition(":")
        # The last two are labels of node_exporter's series.
        labels = {"node": node, "pool": pool, "device": device, "port": port or "1"}
        yield Sample("busbar_node_rail_info", labels, 1)


def _expected(node: str, pool: str, launch: PoolLaunch) -> Iterator[Sample]:
    labels = {"node": node, "pool": pool}
    yield Sample("busbar_node_gpus_expected", labels, launch.gpus)
    yield Sample("busbar_node_rails_expected", {**labels, "link_layer": launch.link_layer}, launch.rails)
    yield Sample("busbar_node_rail_rate_bytes_per_second", labels, launch.rate_gbps * 1e9 / 8)
    for name, count in {"nvidia.com/gpu": str(launch.gpus), **launch.resources}.items():
        # Huge pages and the like are quantities, not devices.
        if "/" in name and count.isdigit():
            # This is the spelling of resource names in kube-state-metrics.
            resource = {**labels, "resource": _DEVICE.sub("_", name)}
            yield Sample("busbar_node_devices_expected", resource, int(count))


def _measured(pool: str, result: PoolResult, floor: float | None) -> Iterator[Sample]:
    labels = {"pool": pool}
    yield Sample("busbar_nccl_passed", labels, int(not result.not_passed))
    values = {
        "busbw_gbps": result.busbw_gbps,
        "expected_gbps": result.expected_gbps,
        "floor_gbps": floor,
        "last_run_timestamp_seconds": result.measured_at.timestamp() if result.measured_at else None,
    }
    for name, value in values.items():
        if value is not None:
            yield Sample(f"busbar_nccl_{name}", labels, value)
    for collective, curve in result.curve.items():
        for size, busbw in curve:
            point = {**labels, "collective": collective, "bytes": str(size)}
            yield Sample("busbar_nccl_curve_gbps", point, busbw)


def _floor(api: Api, result: PoolResult) -> float | None:
    """The floor in the verdict that is stored in the cluster; None if it is gone, or has none."""
    if result.config_map is None:
        return None
    namespace, _, name = result.config_map.partition("/")
    try:
        stored = api.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
    except ApiError as error:
        if error.not_found:
            return None
        raise
    try:
        return number(json.loads(stored["data"][VERDICT_KEY]).get("floor_gbps"))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _apply(api: Api, namespace: str, text: str) -> None:
    collection = f"/api/v1/namespaces/{namespace}/configmaps"
    metadata = {"name": CONFIG_MAP, "labels": {"app.kubernetes.io/managed-by": "busbar"}}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {FILE: text}}
    create_or_merge(api, collection, body)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
