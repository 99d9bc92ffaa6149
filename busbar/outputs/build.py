"""Building the stack outputs, and the gate that decides by them whether an update may succeed.

`build_outputs` writes the contract and `ClusterOutputs` reads it. The kubeconfig is the one output that is
not built here: it is a secret of the engine, and the program exports it as such under `kubeconfig`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from busbar.config.cluster import Cluster
from busbar.hosts.host import Host
from busbar.hosts.inventory import Inventory
from busbar.hosts.nfs import export_of
from busbar.outputs.contract import CONTRACT_VERSION
from busbar.outputs.launch import format_pools
from busbar.outputs.node import Node, format_nodes
from busbar.outputs.pool import FIELDS, VERDICT_SCHEMA
from busbar.outputs.values import number


def build_outputs(
    cluster: Cluster,
    *,
    versions: Mapping[str, str | None],
    facts: Mapping[str, Mapping[str, Any]],
    results: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """All outputs but the kubeconfig.

    `versions`: what was found running, by component (k3s, gpu_operator, ...). `facts`: what preflight found
    on each host, by name, with `gpus` and `rails`. `results`: what `busbar nccl collect` printed for each
    pool (busbar.outputs.pool.summarize).

    Fails closed: a pool without a result, or with one that is anything but a plain pass, makes
    `nccl_passed` false, and `nccl_reasons` says why. The headline numbers are those of the worst pool: of
    those that did not pass, else of all, the one with the lowest fraction. A number that was not measured is
    None (Pulumi drops it); a version that was not found is left out of `versions`.
    """
    inventory = Inventory.of(cluster)
    export = export_of(inventory)
    reasons = {pool: _reasons(results.get(pool), cluster.validation.enabled) for pool in cluster.pools}
    headline = results.get(_worst(results, reasons)) or {}
    several = len(cluster.pools) > 1
    found = {
        **{name: version for name, version in versions.items() if name != "k3s"},
        "nccl": _common(results, "nccl_version"),
        "nccl_plugin": _common(results, "plugin"),
    }
    return {
        "contract_version": CONTRACT_VERSION,
        "cluster_name": cluster.name,
        "api_endpoint": inventory.api_endpoint,
        "k3s_version": versions.get("k3s"),
        "nodes": format_nodes(_node(host, facts.get(host.name, {})) for host in inventory.hosts),
        "versions": {name: version for name, version in found.items() if version is not None},
        "nccl_busbw_gbps": number(headline.get("busbw_gbps")),
        "nccl_expected_gbps": number(headline.get("expected_gbps")),
        "nccl_fraction": number(headline.get("fraction")),
        "nccl_passed": not any(reasons.values()),
        "nccl_reasons": [
            f"pool {pool}: {reason}" if several else reason for pool in reasons for reason in reasons[pool]
        ],
        "nccl": {
            pool: {key: result[key] for key in FIELDS if key in result} for pool, result in results.items()
        },
        "pools": format_pools(inventory, facts),
        "nfs_server": {"address": export.host.address, "export": export.folder} if export else None,
    }


def gate(outputs: Mapping[str, Any], *, enforce: bool) -> str | None:
    """Why `pulumi up` has to fail, as a text for the terminal; None where it may succeed.

    Without `enforce` it may always succeed: `nccl_passed` in the outputs still tells consumers.
    """
    if not enforce or outputs.get("nccl_passed") is True:
        return None
    reasons = outputs.get("nccl_reasons") or ["there is no result"]
    listed = "\n".join(f"  - {reason}" for reason in reasons)
    return (
        f"NCCL validation failed for cluster {outputs.get('cluster_name')}:\n{listed}\n"
        "The outputs are kept: `pulumi stack output nccl`. Fix: repair what the reasons name, then measure "
        "again by raising validation.run. To accept the cluster as it is: validation.enforce: false."
    )


def _reasons(result: Mapping[str, Any] | None, enabled: bool) -> list[str]:
    """Why a pool did not pass; empty only for a result that is a pass in every respect."""
    if result is None:
        return [
            "no verdict: nothing was measured" if enabled else "not measured: validation.enabled is false"
        ]
    reasons = [str(reason) for reason in result.get("reasons") or []]
    if result.get("schema") != VERDICT_SCHEMA:
        found = f"unsupported verdict schema {result.get('schema')!r} (supported: {VERDICT_SCHEMA})"
        return [*reasons, found]
    if result.get("passed") is True and result.get("verdict") == "pass":
        if number(result.get("busbw_gbps")) is None:
            return [*reasons, "the verdict is a pass without a bandwidth"]
        return []
    return reasons or [f"the verdict is {result.get('verdict')!r} and gives no reason"]


def _worst(results: Mapping[str, Mapping[str, Any]], reasons: Mapping[str, Sequence[str]]) -> str:
    def rank(pool: str) -> tuple[bool, float]:
        fraction = number(results.get(pool, {}).get("fraction"))
        return (not reasons[pool], -math.inf if fraction is None else fraction)

    return min(reasons, key=rank)


def _node(host: Host, facts: Mapping[str, Any]) -> Node:
    return Node(
        host.name, host.role, host.address, gpus=_count(facts.get("gpus")), rails=_count(facts.get("rails"))
    )


def _count(found: Any) -> int:
    """How many were found: facts give a number, or the list of what was found."""
    if isinstance(found, Sequence) and not isinstance(found, str):
        return len(found)
    return int(found or 0)


def _common(results: Mapping[str, Mapping[str, Any]], key: str) -> str | None:
    """The value that the pools agree on, or all of them: `2.28.3, 2.27.6`."""
    found = dict.fromkeys(str(value) for result in results.values() if (value := result.get(key)))
    return ", ".join(found) or None
