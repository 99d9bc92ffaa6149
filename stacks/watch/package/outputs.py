"""The outputs of a stack of stacks/watch, for a terminal too. They fail closed: only a plain pass is one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stacks.watch.package.config import Watch
from stacks.watch.package.manifests import DCGM_COUNTERS, GRAFANA_SECRET, STACK

if TYPE_CHECKING:
    from rich.console import RenderableType

CONTRACT_VERSION = 1
"""Raised when an output changes its meaning or is removed; a new output alone does not raise it."""


def build_outputs(watch: Watch, cluster_name: str, printed: str | None) -> dict[str, Any]:
    """All outputs. `printed`: by `busbar watch check`; any other text is not a pass."""
    passed, reasons, nodes = _read(printed)
    found = {
        "watch_contract_version": CONTRACT_VERSION,
        "cluster_name": cluster_name,
        "namespace": watch.namespace,
        "watch_passed": passed,
        "watch_reasons": reasons,
        "nodes_read": nodes,
        "prometheus": watch.stack.mode,
    }
    if watch.stack.enabled:
        found["grafana_secret"] = f"{STACK.namespace}/{GRAFANA_SECRET}"
    if watch.dcgm:
        found["gpu_operator_values"] = {"dcgmExporter": {"config": {"name": DCGM_COUNTERS}}}
    return found


def _read(printed: str | None) -> tuple[bool, list[str], int]:
    try:
        found = json.loads(printed or "")
        reasons = [str(each) for each in found["reasons"]]
        return found["passed"] is True and not reasons, reasons, int(found["nodes"])
    except (ValueError, KeyError, TypeError) as error:
        return False, [f"the output of `busbar watch check` cannot be read: {error!r}"], 0


def summary(outputs: Mapping[str, Any], *, folder: Path | None = None) -> RenderableType:
    """Render the outputs (build_outputs). Raises ValueError for outputs of another contract version."""
    from rich.console import Group

    from busbar.judge.tables import not_passed, notes, passed

    version = outputs.get("watch_contract_version")
    if version != CONTRACT_VERSION:
        raise ValueError(f"unsupported watch_contract_version {version} (supported: {CONTRACT_VERSION})")
    if outputs.get("watch_passed") is True:
        head = passed(f"all rails of {outputs['nodes_read']:.0f} nodes are read")
    else:
        head = not_passed("monitoring is not complete", outputs.get("watch_reasons"))
    found = [(name, outputs.get(name)) for name in ("cluster_name", "prometheus", "grafana_secret")]
    if values := outputs.get("gpu_operator_values"):
        found.append(
            ("GPU counters", f"set gpu_operator.values: {json.dumps(values)} in the cluster's stack")
        )
    return Group(head, *notes((name.split("_")[0], str(value)) for name, value in found if value is not None))
