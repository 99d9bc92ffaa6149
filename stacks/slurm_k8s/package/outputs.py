"""The outputs of a stack of stacks/slurm_k8s, for a terminal too. They fail closed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stacks.slurm_k8s.package.config import Slurm
from stacks.slurm_k8s.package.pools import Pool
from stacks.slurm_k8s.package.values import LOGIN_SERVICE

if TYPE_CHECKING:
    from rich.console import RenderableType

CONTRACT_VERSION = 1
"""Raised when an output changes its meaning or is removed; a new output alone does not raise it."""
NAMES = (
    "slurm_k8s_contract_version", "cluster_name", "namespace", "slurm_ready", "slurm_reasons",
    "slurm_partitions", "slurm_nodes", "slurm_drained", "login_service",
)  # fmt: skip
"""The outputs, in the order of their export."""


def build_outputs(
    slurm: Slurm, cluster_name: str, pools: Mapping[str, Pool], printed: str | None
) -> dict[str, Any]:
    """All outputs. `printed`: by `busbar slurm_k8s ready`; any other text is not a pass."""
    try:
        found = json.loads(printed or "")
        reasons = [str(each) for each in found["reasons"]]
        passed = found["passed"] is True and not reasons
        nodes, drained = dict(found["nodes"]), dict(found["drained"])
    except (ValueError, KeyError, TypeError) as error:
        passed, nodes, drained = False, {}, {}
        reasons = [f"the output of `busbar slurm_k8s ready` cannot be read: {error!r}"]
    return {
        "slurm_k8s_contract_version": CONTRACT_VERSION,
        "cluster_name": cluster_name,
        "namespace": slurm.namespace,
        "slurm_ready": passed,
        "slurm_reasons": reasons,
        "slurm_partitions": {name: pool.gres for name, pool in pools.items()},
        "slurm_nodes": nodes,
        "slurm_drained": drained,
        "login_service": f"{slurm.namespace}/{LOGIN_SERVICE}:{slurm.login.port}",
    }


def summary(outputs: Mapping[str, Any], *, folder: Path | None = None) -> RenderableType:
    """Render the outputs (build_outputs). Raises ValueError for outputs of another contract version."""
    from rich.console import Group

    from busbar.judge.tables import not_passed, notes, passed

    version = outputs.get("slurm_k8s_contract_version")
    if version != CONTRACT_VERSION:
        raise ValueError(f"unsupported slurm_k8s_contract_version {version} (supported: {CONTRACT_VERSION})")
    nodes, drained = outputs.get("slurm_nodes") or {}, outputs.get("slurm_drained") or {}
    if outputs.get("slurm_ready") is True:
        head = passed(f"{len(nodes)} nodes are in Slurm, and jobs get their GPUs")
    else:
        head = not_passed("Slurm is not ready", outputs.get("slurm_reasons"))
    found = [("partition", f"{name}: {gres} per node") for name, gres in _pairs(outputs, "slurm_partitions")]
    found += [("drained", f"{node}: {reason}") for node, reason in sorted(drained.items())]
    found.append(("login", f"kubectl -n {outputs.get('namespace')}: Service {outputs.get('login_service')}"))
    return Group(head, *notes(found))


def _pairs(outputs: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    return sorted((outputs.get(name) or {}).items())
