"""busbar's series: the expected devices of a cluster and its measured results, in Prometheus' text format.

A node_exporter with only its textfile collector serves them from the ConfigMap `busbar-metrics`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from busbar.collect.result import KEY as VERDICT_KEY
from busbar.collect.result import Results
from busbar.kube.client import Api, ApiError
from busbar.kube.nodes import NODES, Node
from busbar.kube.objects import create_or_merge
from busbar.models import StrictModel, number
from busbar.outputs import ClusterOutputs, PoolLaunch, PoolResult
from stacks.watch.package.config import Watch

CONFIG_MAP = "busbar-metrics"
FILE = "busbar.prom"
# The request of the last writing, for the next one. The textfile collector reads other files only.
SPEC = "spec.json"
_OURS = "app.kubernetes.io/managed-by=busbar"
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_DEVICE = re.compile(r"[^A-Za-z0-9]")


class SeriesSpec(StrictModel):
    """The request of the step `write`: the values from which the series are made."""

    namespace: str
    pools: dict[str, PoolLaunch]
    results: dict[str, PoolResult]
    max_age_hours: int | None = Field(default=None)
    hung_power_fraction: float

    @classmethod
    def of(cls, cluster: ClusterOutputs, watch: Watch) -> SeriesSpec:
        """The request for the outputs of the cluster's stack."""
        empty = cls(
            namespace=watch.namespace,
            pools={},
            results={},
            max_age_hours=watch.max_age_hours,
            hung_power_fraction=watch.hung_power_fraction,
        )
        return empty.with_outputs(cluster)

    def with_outputs(self, cluster: ClusterOutputs) -> SeriesSpec:
        """The same request for other outputs."""
        # The path of the verdict on this machine has the name of the cluster's stack, so it is left out.
        results = {
            pool: result.model_copy(update={"verdict_file": None}) for pool, result in cluster.nccl.items()
        }
        return self.model_copy(update={"pools": cluster.pools, "results": results})


@dataclass(frozen=True)
class Sample:
    """One sample of a series."""

    name: str
    labels: Mapping[str, str]
    value: float

    def __str__(self) -> str:
        labels = ",".join(f'{key}="{value.translate(_ESCAPED)}"' for key, value in self.labels.items())
        return f"{self.name}{{{labels}}} {self.value:.10g}" if labels else f"{self.name} {self.value:.10g}"


def follow(api: Api, outputs: Mapping[str, Any] | None) -> None:
    """Write the series anew where there are any, with OUTPUTS in place of those of the last writing.

    Raises ApiError.
    """
    query = {"fieldSelector": f"metadata.name={CONFIG_MAP}", "labelSelector": _OURS}
    for each in api.list("/api/v1/configmaps", **query):
        spec = SeriesSpec.model_validate_json(each["data"][SPEC])
        if outputs:
            spec = spec.with_outputs(ClusterOutputs.from_dict(outputs))
        write_now(api, spec)


def write_now(api: Api, spec: SeriesSpec, *_: object) -> dict[str, Any]:
    """The step `write`, which the engine runs."""
    return write(api, spec, datetime.now(UTC))


def write(api: Api, spec: SeriesSpec, now: datetime) -> dict[str, Any]:
    """Write the ConfigMap from the request, and from Nodes, measurements and floors in the cluster.

    Returns {"series", "quarantined"}. Raises ApiError.
    """
    nodes = [Node.of(each) for each in api.list(NODES)]
    out: dict[str, Sample | None] = {
        node.name: Sample(f"busbar_node_{state}", {"node": node.name, "reason": reason}, 1)
        for node in nodes
        for state, reason in (("drained", node.drained), ("quarantined", node.quarantine))
        if reason
    }
    workers = {name for launch in spec.pools.values() for name in launch.workers}
    out |= dict.fromkeys(workers - {node.name for node in nodes})
    results = _newest(api, spec, out)
    floors = {pool: floor for pool, result in results.items() if (floor := _floor(api, result))}
    samples = list(render(spec.model_copy(update={"results": results}), out, floors, now))
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP, "labels": dict([_OURS.split("=")])},
        "data": {
            FILE: "".join(f"{each}\n" for each in samples),
            SPEC: spec.model_dump_json(exclude_none=True),
        },
    }
    create_or_merge(api, f"/api/v1/namespaces/{spec.namespace}/configmaps", body)
    return {"series": len(samples), "quarantined": sorted(node.name for node in nodes if node.quarantine)}


def _newest(api: Api, spec: SeriesSpec, out: Collection[str]) -> dict[str, PoolResult]:
    """The last measurement of each pool; `busbar measure` stores its own in the cluster only.

    One on nodes that are out of service now says nothing about the pool, and a pass on a part of the others
    does not say that the pool passes.
    """
    found = dict(spec.results)
    namespaces = {each.config_map.partition("/")[0] for each in found.values() if each.config_map}
    for namespace in sorted(namespaces):
        for stored in reversed(Results(api, namespace).all()):
            pool, nodes = stored["record"]["pool"], stored["record"]["nodes"]
            result = PoolResult.model_validate(stored)
            if (
                pool in found.keys() & spec.pools.keys()
                and not {*nodes} & {*out}
                and (result.not_passed or {*spec.pools[pool].workers} <= {*nodes, *out})
                and str(found[pool].measured_at or "") < str(result.measured_at)
            ):
                found[pool] = result
    return found


def render(
    spec: SeriesSpec, out: Mapping[str, Sample | None], floors: Mapping[str, float], now: datetime
) -> Iterator[Sample]:
    """All samples. `out`: Nodes out of service, with what says so of those that are left in the cluster;
    `floors`: lowest busbw that passes, in GB/s, by pool.

    A Node out of service is expected to have no devices, so that rules that compare do not fire for it.
    """
    yield Sample("busbar_metrics_written_timestamp_seconds", {}, now.timestamp())
    if spec.max_age_hours:
        yield Sample("busbar_nccl_max_age_seconds", {}, spec.max_age_hours * 3600)
    yield Sample("busbar_gpu_hung_power_fraction", {}, spec.hung_power_fraction)
    yield from filter(None, out.values())
    for pool, launch in sorted(spec.pools.items()):
        for node in launch.workers:
            yield from _rails(node, pool, launch)
            if node not in out:
                yield from _expected(node, pool, launch)
    for pool, result in sorted(spec.results.items()):
        yield from _measured(pool, result, floors.get(pool))
    for pool in sorted(spec.pools.keys() - spec.results.keys()):
        yield Sample("busbar_nccl_passed", {"pool": pool}, 0)


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
