"""The outputs of a stack of stacks/watch. They fail closed: only a plain pass is a pass."""

from __future__ import annotations

import json
from typing import Any

from stacks.watch.package.config import Watch
from stacks.watch.package.manifests import DCGM_COUNTERS
from stacks.watch.package.prometheus import GRAFANA_SECRET, STACK
from stacks.watch.package.sizing import Estimate

CONTRACT_VERSION = 1
"""Raised when an output changes its meaning or is removed; a new output alone does not raise it."""


def build_outputs(watch: Watch, cluster_name: str, size: Estimate, printed: str | None) -> dict[str, Any]:
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
        "estimate": str(size),
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
