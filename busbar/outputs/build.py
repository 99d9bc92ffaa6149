"""The stack outputs: the contract between this program and those that use its clusters.

`build_outputs` writes it and `ClusterOutputs` reads it. The kubeconfig is the one output that is not built
here: it is a secret of the engine, and `__main__` exports it as such under `kubeconfig`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from busbar.config.cluster import Cluster
from busbar.hosts.inventory import Host, Inventory
from busbar.nccl.verdict import SCHEMA
from busbar.outputs.contract import CONTRACT_VERSION

VERDICT_SCHEMA = SCHEMA
"""The version of the verdict (busbar/nccl/verdict.py) that a pass is accepted of."""


def build_outputs(
    cluster: Cluster,
    *,
    versions: Mapping[str, str | None],
    facts: Mapping[str, Mapping[str, Any]],
    verdicts: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """All outputs but the kubeconfig.

    `versions`: what was found running, by component (k3s, gpu_operator, ...). `facts`: what preflight found
    on each host, by name, with `gpus` and `rails`. `verdicts`: one verdict (the JSON object) for each pool.

    Fails closed: a pool without a verdict, or with one that is anything but a plain pass, makes
    `nccl_passed` false, and `nccl_reasons` says why. The headline numbers are those of the worst pool: of
    those that did not pass, else of all, the one with the lowest fraction. A number that was not measured is
    None (Pulumi drops it).
    """
    inventory = Inventory.of(cluster)
    reasons = {pool: _reasons(verdicts.get(pool), cluster.validation.enabled) for pool in cluster.pools}
    headline = verdicts.get(_worst(verdicts, reasons)) or {}
    many = len(cluster.pools) > 1
    return {
        "contract_version": CONTRACT_VERSION,
        "cluster_name": cluster.name,
        "api_endpoint": inventory.api_endpoint,
        "k3s_version": versions.get("k3s"),
        "nodes": [_node(host, facts.get(host.name, {})) for host in inventory.hosts],
        "versions": {
            **versions,
            "nccl": _common(verdicts, "nccl_version"),
            "nccl_plugin": _common(verdicts, "plugin"),
        },
        "nccl_busbw_gbps": _number(headline.get("busbw_gbps")),
        "nccl_expected_gbps": _number(headline.get("expected_gbps")),
        "nccl_fraction": _number(headline.get("fraction")),
        "nccl_passed": not any(reasons.values()),
        "nccl_reasons": [
            f"pool {pool}: {reason}" if many else reason for pool in reasons for reason in reasons[pool]
        ],
        "nccl": {"pools": {pool: dict(verdict) for pool, verdict in verdicts.items()}},
    }


def gate(outputs: Mapping[str, Any], *, enforce: bool) -> str | None:
    """Why `pulumi up` has to fail, as a text for a person; None where it may succeed.

    Without `enforce` it may always succeed: `nccl_passed` in the outputs still tells consumers.
    """
    if not enforce or outputs.get("nccl_passed") is True:
        return None
    reasons = outputs.get("nccl_reasons") or ["there is no result"]
    listed = "\n".join(f"  - {reason}" for reason in reasons)
    return (
        f"the fabric of {outputs.get('cluster_name')} has not been shown to be what it should be:\n{listed}\n"
        "The outputs are kept: `pulumi stack output nccl`. To measure again after a repair: raise "
        "validation.run. To go on all the same: validation.enforce: false."
    )


def _reasons(verdict: Mapping[str, Any] | None, enabled: bool) -> list[str]:
    """Why a pool did not pass; empty only for a verdict that is a pass in every respect."""
    if verdict is None:
        return [
            "no verdict: nothing was measured" if enabled else "not measured: validation.enabled is false"
        ]
    reasons = [str(reason) for reason in verdict.get("reasons") or []]
    if verdict.get("schema") != VERDICT_SCHEMA:
        return [*reasons, f"the verdict has schema {verdict.get('schema')!r}, {VERDICT_SCHEMA} is understood"]
    if verdict.get("passed") is True and verdict.get("verdict") == "pass":
        if _number(verdict.get("busbw_gbps")) is None:
            return [*reasons, "the verdict is a pass without a bandwidth"]
        return []
    return reasons or [f"the verdict is {verdict.get('verdict')!r} and gives no reason"]


def _worst(verdicts: Mapping[str, Mapping[str, Any]], reasons: Mapping[str, Sequence[str]]) -> str:
    def badness(pool: str) -> tuple[bool, float]:
        fraction = _number(verdicts.get(pool, {}).get("fraction"))
        return (not reasons[pool], -math.inf if fraction is None else fraction)

    return min(reasons, key=badness)


def _node(host: Host, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": host.name,
        "role": host.role,
        "address": host.address,
        "gpus": _count(facts.get("gpus")),
        "rails": _count(facts.get("rails")),
    }


def _count(found: Any) -> int:
    """How many were found: facts give a number, or the list of what was found."""
    if isinstance(found, Sequence) and not isinstance(found, str):
        return len(found)
    return int(found or 0)


def _common(verdicts: Mapping[str, Mapping[str, Any]], key: str) -> str | None:
    """The value that the pools agree on, or all of them: `2.28.3, 2.27.6`."""
    found = dict.fromkeys(str(value) for verdict in verdicts.values() if (value := verdict.get(key)))
    return ", ".join(found) or None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
