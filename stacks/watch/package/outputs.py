"""The outputs of a stack of stacks/watch, and the gate that decides whether an update may succeed."""

from __future__ import annotations

import json
from collections.abc import Mapping
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


def gate(outputs: Mapping[str, Any], *, enforce: bool) -> str | None:
    """Why `pulumi up` has to fail, as a text for the terminal; None where it may succeed."""
    if not enforce or outputs.get("watch_passed") is True:
        return None
    listed = "\n".join(f"  - {reason}" for reason in outputs.get("watch_reasons") or ["there is no result"])
    return (
        f"monitoring of cluster {outputs.get('cluster_name')} is not complete:\n{listed}\n"
        "Everything stays installed. Fix: repair what the reasons name, then raise check.run by one. "
        "To accept it as it is: check.enforce: false."
    )
