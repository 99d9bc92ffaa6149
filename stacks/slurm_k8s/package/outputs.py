"""The outputs of a stack of stacks/slurm_k8s, for a terminal too. They fail closed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from busbar.frame import StackOutputs, headline
from busbar.outputs.build import build_measured
from busbar.outputs.contract import pack_details
from busbar.text import listed
from stacks.slurm_k8s.capability import GATE
from stacks.slurm_k8s.package.config import Slurm
from stacks.slurm_k8s.package.pools import Pool
from stacks.slurm_k8s.package.ready import Probe, Result
from stacks.slurm_k8s.package.values import LOGIN_SERVICE

if TYPE_CHECKING:
    from rich.console import RenderableType


class Outputs(StackOutputs):
    """The outputs, in the order of their export. Those after `login_service` are those of docs/outputs.md."""

    slurm_k8s_contract_version: int = GATE.contract
    slurm_ready: bool
    slurm_reasons: list[str]
    slurm_partitions: dict[str, str]
    """Pool -> the GPUs of a node."""
    slurm_nodes: dict[str, str]
    """Worker -> its node of Slurm."""
    slurm_drained: dict[str, str]
    """Worker -> why a person keeps jobs away from it."""
    slurm_probes: dict[str, Probe]
    login_service: str
    slurm_nccl_busbw_gbps: float | None = None
    slurm_nccl_expected_gbps: float | None = None
    slurm_nccl_fraction: float | None = None
    slurm_nccl_passed: bool
    slurm_nccl_reasons: list[str]
    slurm_details: str


def nodes_to_measure(printed: str | None, pool: Pool) -> dict[str, str]:
    """Worker -> node of Slurm, without those that a person has drained; empty where Slurm is not ready."""
    found = Result.read(printed, "slurm_k8s ready")
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
    """All outputs. `printed`: by the step `ready`; any other text is not a pass.

    `results`: the PoolResult of each pool as JSON values; none where an update measures nothing.
    """
    found = Result.read(printed, "slurm_k8s ready")
    passed, reasons = found.passed, found.reasons
    why = "nothing was measured" if slurm.probe.measure else "not measured: probe.measure is false"
    of_pools = {name: results.get(name, {"verdict": "unknown", "reasons": [why]}) for name in pools}
    wanted = {name: nodes_to_measure(printed, pool) for name, pool in pools.items()}
    too_few = {name: not_measured([*wanted[name]], wanted[name], of_pools[name]) for name in pools}
    made = build_measured(cluster_name, of_pools, too_few)
    if passed and slurm.probe.measure:
        passed, reasons = made["nccl_passed"], made["nccl_reasons"]
    return Outputs(
        cluster_name=cluster_name,
        namespace=slurm.namespace,
        slurm_ready=passed,
        slurm_reasons=reasons,
        slurm_partitions={name: pool.gres for name, pool in pools.items()},
        slurm_nodes=found.nodes,
        slurm_drained=found.drained,
        slurm_probes=found.probes,
        login_service=f"{slurm.namespace}/{LOGIN_SERVICE}:{slurm.login.port}",
        slurm_details=made["details"] if results else pack_details([], {}, {}),
        **{f"slurm_{name}": value for name, value in made.items() if name.startswith("nccl_")},
    ).model_dump()


def not_measured(workers: list[str], known: Mapping[str, str], result: Mapping[str, Any]) -> list[str]:
    """Why a measurement is not one of these workers; empty where it is, or has measured nothing."""
    measured = result.get("nodes_measured")
    absent = [each for each in workers if measured is not None and known.get(each) not in measured]
    what = f"{len(workers) - len(absent)} of {len(workers)} workers were measured; not: {listed(absent)}"
    return [what] if absent else []


def summary(outputs: Mapping[str, Any], *, folder: Path | None = None) -> RenderableType:
    """Render the outputs (build_outputs). Raises ValueError for outputs of another contract version."""
    from rich.console import Group

    from busbar.judge.tables import notes
    from busbar.outputs.summary import pool_notes, pools_of, tables

    found = Outputs.read(GATE, outputs)
    is_probed = found.slurm_probes and not any(each.skipped for each in found.slurm_probes.values())
    shown = "jobs get their GPUs" if is_probed else "not every pool was probed"
    rows = [("partition", f"{name}: {gres} per node") for name, gres in found.slurm_partitions.items()]
    rows += [("probe", f"{name}: {each}") for name, each in found.slurm_probes.items()]
    rows += [("drained", f"{node}: {reason}") for node, reason in sorted(found.slurm_drained.items())]
    rows.append(("login", f"kubectl -n {found.namespace}: Service {found.login_service}"))
    core = {name.removeprefix("slurm_"): value for name, value in outputs.items()}
    pools = pools_of(core)
    return Group(
        headline(GATE, outputs, f"{len(found.slurm_nodes)} nodes are in Slurm, and {shown}"),
        *(tables(core, pools, folder) if pools else ()),
        *notes([*rows, *pool_notes(pools, folder)]),
    )
