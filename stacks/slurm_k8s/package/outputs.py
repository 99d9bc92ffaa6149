"""The outputs of a stack of stacks/slurm_k8s, for a terminal too. They fail closed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from busbar.outputs.build import build_measured
from busbar.outputs.contract import pack_details
from busbar.text import listed
from stacks.slurm_k8s.package.config import Slurm
from stacks.slurm_k8s.package.pools import Pool
from stacks.slurm_k8s.package.ready import Probe, Result
from stacks.slurm_k8s.package.values import LOGIN_SERVICE

if TYPE_CHECKING:
    from rich.console import RenderableType

READY = "slurm_k8s ready"
CONTRACT_VERSION = 1
"""Raised when an output changes its meaning or is removed; a new output alone does not raise it."""
_NCCL = ("nccl_busbw_gbps", "nccl_expected_gbps", "nccl_fraction", "nccl_passed", "nccl_reasons")
NAMES = (
    "slurm_k8s_contract_version", "cluster_name", "namespace", "slurm_ready", "slurm_reasons",
    "slurm_partitions", "slurm_nodes", "slurm_drained", "slurm_probes", "login_service",
    *(f"slurm_{name}" for name in _NCCL), "slurm_details",
)  # fmt: skip
"""The outputs, in the order of their export. Those after `login_service` are those of docs/outputs.md."""


def nodes_to_measure(printed: str | None, pool: Pool) -> dict[str, str]:
    """Worker -> node of Slurm, without those that a person has drained; empty where Slurm is not ready."""
    found = Result.read(printed, READY)
    return {
        worker: node
        for worker, node in found.nodes.items()
        if found.passed and worker in pool.launch.workers and worker not in found.drained
    }


def build_outputs(
    slurm: Slurm,
    cluster_name: str,
    pools: Mapping[str, Pool],
    printed: str | None,
    results: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """All outputs. `printed`: by `busbar slurm_k8s ready`; any other text is not a pass.

    `results`: the PoolResult of each pool as JSON values; none where an update measures nothing.
    """
    found = Result.read(printed, READY)
    passed, reasons = found.passed, found.reasons
    why = "nothing was measured" if slurm.probe.measure else "not measured: probe.measure is false"
    of_pools = {name: results.get(name, {"verdict": "unknown", "reasons": [why]}) for name in pools}
    wanted = {name: nodes_to_measure(printed, pool) for name, pool in pools.items()}
    too_few = {name: not_measured([*wanted[name]], wanted[name], of_pools[name]) for name in pools}
    made = build_measured(cluster_name, of_pools, too_few)
    if passed and slurm.probe.measure:
        passed, reasons = made["nccl_passed"], made["nccl_reasons"]
    return {
        "slurm_k8s_contract_version": CONTRACT_VERSION,
        "cluster_name": cluster_name,
        "namespace": slurm.namespace,
        "slurm_ready": passed,
        "slurm_reasons": reasons,
        "slurm_partitions": {name: pool.gres for name, pool in pools.items()},
        "slurm_nodes": found.nodes,
        "slurm_drained": found.drained,
        "slurm_probes": {name: each.model_dump() for name, each in found.probes.items()},
        "login_service": f"{slurm.namespace}/{LOGIN_SERVICE}:{slurm.login.port}",
        **{f"slurm_{name}": made[name] for name in _NCCL},
        "slurm_details": made["details"] if results else pack_details([], {}, {}),
    }


def not_measured(workers: list[str], known: Mapping[str, str], result: Mapping[str, Any]) -> list[str]:
    """Why a measurement is not one of these workers; empty where it is, or has measured nothing."""
    measured = result.get("nodes_measured")
    if measured is None:
        return []
    absent = [each for each in workers if known.get(each) not in measured]
    if not absent:
        return []
    return [f"{len(workers) - len(absent)} of {len(workers)} workers were measured; not: {listed(absent)}"]


def summary(outputs: Mapping[str, Any], *, folder: Path | None = None) -> RenderableType:
    """Render the outputs (build_outputs). Raises ValueError for outputs of another contract version."""
    from rich.console import Group

    from busbar.judge.tables import not_passed, notes, passed
    from busbar.outputs.summary import pool_notes, pools_of, tables

    version = outputs.get("slurm_k8s_contract_version")
    if version != CONTRACT_VERSION:
        raise ValueError(f"unsupported slurm_k8s_contract_version {version} (supported: {CONTRACT_VERSION})")
    nodes, drained = outputs.get("slurm_nodes") or {}, outputs.get("slurm_drained") or {}
    probes = {name: Probe.model_validate(each) for name, each in _pairs(outputs, "slurm_probes")}
    probed = bool(probes) and not any(each.skipped for each in probes.values())
    if outputs.get("slurm_ready") is True:
        shown = "jobs get their GPUs" if probed else "not every pool was probed"
        head = passed(f"{len(nodes)} nodes are in Slurm, and {shown}")
    else:
        head = not_passed("Slurm is not ready", outputs.get("slurm_reasons"))
    found = [("partition", f"{name}: {gres} per node") for name, gres in _pairs(outputs, "slurm_partitions")]
    found += [("probe", f"{name}: {each}") for name, each in probes.items()]
    found += [("drained", f"{node}: {reason}") for node, reason in sorted(drained.items())]
    found.append(("login", f"kubectl -n {outputs.get('namespace')}: Service {outputs.get('login_service')}"))
    core = {name.removeprefix("slurm_"): value for name, value in outputs.items()}
    pools = pools_of(core)
    measured = tables(core, pools, folder) if pools else ()
    return Group(head, *measured, *notes([*found, *pool_notes(pools, folder)]))


def _pairs(outputs: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    return sorted((outputs.get(name) or {}).items())
