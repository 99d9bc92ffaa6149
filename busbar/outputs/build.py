"""Building the stack outputs, and the gate that decides by them whether an update may succeed.

`build_outputs` writes the contract and `ClusterOutputs` reads it. The kubeconfig is the one output that is
not built here: it is a secret of the engine, and the program exports it as such under `kubeconfig`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from busbar.capability import Gate
from busbar.config.cluster import Cluster
from busbar.hosts.inventory import Host, Inventory
from busbar.hosts.nfs import export_of
from busbar.outputs.contract import CONTRACT_VERSION, Node, PoolLaunch, PoolResult, launches, pack_details
from busbar.text import listed

FOLLOW_UP = "[follow-up]"
"""Marks an error that only reports that another one occurred; `busbar up` shows the other one alone."""
GATE_FAILED = "[gate]"
"""Marks the error of an update that failed by its outputs; `busbar up` shows the reasons in the outputs."""
CLUSTER_GATE = Gate(
    "contract_version", "nccl_passed", "nccl_reasons", "NCCL validation failed", "validation.run",
    "busbar.outputs.summary",
)  # fmt: skip


def build_outputs(
    cluster: Cluster,
    *,
    cluster_id: str | None = None,
    versions: Mapping[str, str | None],
    facts: Mapping[str, Mapping[str, Any]],
    results: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """All outputs but the kubeconfig.

    `cluster_id`: the install id of its hosts. `versions`: what was found running, by component (k3s,
    gpu_operator, ...). `facts`: what preflight found on each host, by name, with `gpus` and `rails`.
    `results`: the PoolResult of each pool as JSON values (busbar.outputs.contract.read_result).

    A pool without a result counts as not passed. A number that was not measured is None (Pulumi drops
    it); a version that was not found is left out of `versions`.
    """
    inventory = Inventory.of(cluster)
    export = export_of(inventory)
    measured = {pool: PoolResult.model_validate(result) for pool, result in results.items()}
    why = "no verdict: nothing was measured"
    missing = why if cluster.validation.enabled else "not measured: validation.enabled is false"
    unmeasured = PoolResult(verdict="unknown", reasons=(missing,))
    pools = {pool: measured.get(pool, unmeasured) for pool in cluster.pools}
    workers = {pool: [worker.name for worker in inventory.usable_of(pool)] for pool in pools}
    too_few = {
        pool: _too_few(workers[pool], result, cluster.validation.min_nodes_fraction)
        for pool, result in pools.items()
    }
    return {
        **_measured(cluster.name, pools, {name: v for name, v in versions.items() if name != "k3s"}, too_few),
        "cluster_id": cluster_id,
        "api_endpoint": inventory.api_endpoint,
        "k3s_version": versions.get("k3s"),
        "nfs_server": {"address": export.host.address, "export": export.folder} if export else None,
        "details": pack_details(
            [_node(host, facts.get(host.name, {})) for host in inventory.hosts],
            measured,
            _on_measured(launches(inventory, facts), measured),
        ),
    }


def build_measured(
    name: str, results: Mapping[str, Mapping[str, Any]], too_few: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Any]:
    """The outputs of a stack that only measured the cluster `name`, which busbar did not make.

    Hosts, endpoint and kubeconfig are left out. `results`: as for `build_outputs`. `too_few`: by pool, why.
    """
    measured = {pool: PoolResult.model_validate(result) for pool, result in results.items()}
    return {**_measured(name, measured, {}, too_few or {}), "details": pack_details([], measured, {})}


def _measured(
    name: str,
    pools: Mapping[str, PoolResult],
    versions: Mapping[str, str | None],
    too_few: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """The outputs about the measurement of all pools.

    Fails closed: a pool with anything but a plain pass makes `nccl_passed` false, and `nccl_reasons` says
    why. The headline numbers are those of the worst pool: the one with the lowest fraction among those that
    did not pass, else among all. `too_few`: pool -> why not enough of it was measured.
    """
    reasons = {pool: [*result.not_passed, *too_few.get(pool, ())] for pool, result in pools.items()}
    headline = pools[_worst(pools, reasons)]
    found = {
        **versions,
        "nccl": _common(result.nccl_version for result in pools.values()),
        "nccl_plugin": _common(result.plugin for result in pools.values()),
    }
    return {
        "contract_version": CONTRACT_VERSION,
        "cluster_name": name,
        "versions": {name: version for name, version in found.items() if version is not None},
        "nccl_busbw_gbps": headline.busbw_gbps,
        "nccl_expected_gbps": headline.expected_gbps,
        "nccl_fraction": headline.fraction,
        "nccl_passed": not any(reasons.values()),
        "nccl_reasons": [
            f"pool {pool}: {reason}" if len(pools) > 1 else reason
            for pool in reasons
            for reason in reasons[pool]
        ],
    }


def _too_few(workers: Sequence[str], result: PoolResult, fraction: float) -> list[str]:
    """Why not enough of a pool was measured; empty where enough was, or where nothing was measured at all."""
    if result.nodes_measured is None:
        return []
    missing = [worker for worker in workers if worker not in result.nodes_measured]
    count = len(workers) - len(missing)
    if not missing or count / len(workers) >= fraction:
        return []
    return [
        f"{count} of {len(workers)} workers are measured, validation.min_nodes_fraction is {fraction:g}; not "
        f"measured: {listed(missing)}. Fix: raise validation.run when the GPUs of the pool are free"
    ]


def _on_measured(pools: Mapping[str, PoolLaunch], results: Mapping[str, PoolResult]) -> dict[str, PoolLaunch]:
    """The pools without the workers that were never measured."""
    found = {}
    for name, pool in pools.items():
        known = results[name].nodes_measured if name in results else None
        workers = tuple(worker for worker in pool.workers if known is None or worker in known)
        if workers:
            found[name] = pool.model_copy(update={"workers": workers})
    return found


def _worst(pools: Mapping[str, PoolResult], reasons: Mapping[str, Sequence[str]]) -> str:
    def rank(pool: str) -> tuple[bool, float]:
        fraction = pools[pool].fraction
        return not reasons[pool], -math.inf if fraction is None else fraction

    return min(pools, key=rank)


def _node(host: Host, facts: Mapping[str, Any]) -> Node:
    counts = {key: _count(facts.get(key)) for key in ("gpus", "rails")}
    return Node.model_validate({"name": host.name, "role": host.role, "address": host.address, **counts})


def _count(found: Any) -> int:
    """The number of devices in a fact, which is a number or a list of the devices."""
    if isinstance(found, Sequence) and not isinstance(found, str):
        return len(found)
    return int(found or 0)


def _common(found: Iterable[str | None]) -> str | None:
    """The value that the pools agree on, or all values: `2.28.3, 2.27.6`."""
    return ", ".join(dict.fromkeys(value for value in found if value)) or None
