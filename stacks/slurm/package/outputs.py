"""The outputs of a stack of stacks/slurm: those of the core's measurement, with the prefix `slurm_`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from busbar import outputs as core
from busbar.outputs.build import build_measured
from busbar.outputs.contract import CONTRACT_VERSION as CORE_CONTRACT
from busbar.outputs.contract import pack_details
from busbar.text import listed
from stacks.slurm.package.config import Slurm

if TYPE_CHECKING:
    from rich.console import RenderableType

CONTRACT_VERSION = 1
"""Raised when an output changes its meaning or is removed; a new output alone does not raise it."""

_NCCL = ("nccl_busbw_gbps", "nccl_expected_gbps", "nccl_fraction", "nccl_passed", "nccl_reasons")
NAMES = (
    "slurm_contract_version", "cluster_name", "controller", "slurm_versions", "slurm_partitions",
    *(f"slurm_{name}" for name in _NCCL),
    "slurm_details",
)  # fmt: skip
"""The outputs, in the order of their export. Without `slurm_` they are those of docs/outputs.md."""


def build_outputs(
    slurm: Slurm, facts: Mapping[str, Mapping[str, Any]], results: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """All outputs. `results`: the PoolResult of each pool as JSON values.

    Fails closed: a pool without a result counts as not passed.
    """
    why = "nothing was measured" if slurm.validation.enabled else "not measured: validation.enabled is false"
    missing = {"verdict": "unknown", "reasons": [why]}
    measured = {pool: results.get(pool, missing) for pool in slurm.pools}
    absent = {pool: too_few(slurm, pool, result) for pool, result in measured.items()}
    found = build_measured(slurm.name, measured, absent)
    versions = sorted({str(each["slurm"]) for each in facts.values() if each.get("slurm")})
    return {
        "slurm_contract_version": CONTRACT_VERSION,
        "cluster_name": slurm.name,
        "controller": slurm.hosts.controller.address,
        "slurm_versions": {"slurm": ", ".join(versions), **found["versions"]},
        "slurm_partitions": {name: each.pools for name, each in slurm.partitions_or_default.items()},
        **{f"slurm_{name}": found[name] for name in _NCCL},
        # As in the core, a pool without a result has no entry: nothing was measured, and nothing has failed.
        "slurm_details": found["details"] if results else pack_details([], {}, {}),
    }


def too_few(slurm: Slurm, pool: str, result: Mapping[str, Any]) -> list[str]:
    """Why hosts of a pool are missing in its measurement, unless validation.min_nodes_fraction is set.

    Without that key the measurement still runs without a node that is down, but the pool does not pass.
    """
    measured = result.get("nodes_measured")
    if measured is None or "min_nodes_fraction" in slurm.validation.model_fields_set:
        return []
    hosts = [host.name for host in slurm.workers_of(pool) if not host.quarantine]
    if not (absent := [name for name in hosts if name not in measured]):
        return []
    return [
        f"{len(hosts) - len(absent)} of {len(hosts)} hosts were measured; not measured: {listed(absent)}. "
        "Fix: repair or quarantine them and raise validation.run, or set validation.min_nodes_fraction"
    ]


def as_core(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs under the names of the core's contract, for its gate and its tables. Raises ValueError."""
    if (
        "slurm_contract_version" in outputs
        and (found := outputs["slurm_contract_version"]) != CONTRACT_VERSION
    ):
        raise ValueError(f"unsupported slurm_contract_version {found} (supported: {CONTRACT_VERSION})")
    renamed = {name.removeprefix("slurm_"): value for name, value in outputs.items()}
    return {**renamed, "contract_version": CORE_CONTRACT}


def gate(outputs: Mapping[str, Any], *, enforce: bool) -> str | None:
    """Why `pulumi up` has to fail, as a text for the terminal; None if it may succeed."""
    return core.CLUSTER_GATE.refusal(as_core(outputs), enforce=enforce)


def summary(outputs: Mapping[str, Any], *, folder: Path | None = None) -> RenderableType:
    """Render the outputs for a terminal; `folder` is where reports were kept. Raises ValueError."""
    from rich.console import Group

    from busbar.judge.tables import notes
    from busbar.outputs.summary import pool_notes, pools_of, tables

    found = as_core(outputs)
    pools = pools_of(found)
    listed = [("controller", str(found.get("controller")))]
    for name, members in (found.get("partitions") or {}).items():
        listed.append(("partition", f"{name}: {', '.join(members)}"))
    if versions := found.get("versions"):
        texts = [f"{name} {version}" for name, version in sorted(versions.items())]
        listed.append(("versions", ", ".join(texts)))
    return Group(*tables(found, pools, folder), *notes([*listed, *pool_notes(pools, folder)]))
