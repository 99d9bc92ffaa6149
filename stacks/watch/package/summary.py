"""The outputs of a stack of stacks/watch for a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from busbar.judge.tables import not_passed, notes, passed
from stacks.watch.package.outputs import CONTRACT_VERSION


def summary(outputs: Mapping[str, Any], *, folder: Path | None = None) -> RenderableType:
    """Render the outputs (build_outputs). Raises ValueError for outputs of another contract version."""
    version = outputs.get("watch_contract_version")
    if version != CONTRACT_VERSION:
        raise ValueError(f"unsupported watch_contract_version {version} (supported: {CONTRACT_VERSION})")
    if outputs.get("watch_passed") is True:
        head = passed(f"all rails of {outputs['nodes_read']:.0f} nodes are read")
    else:
        head = not_passed("monitoring is not complete", outputs.get("watch_reasons"))
    found = [
        (name, outputs.get(name)) for name in ("cluster_name", "prometheus", "estimate", "grafana_secret")
    ]
    if values := outputs.get("gpu_operator_values"):
        found.append(
            ("GPU counters", f"set gpu_operator.values: {json.dumps(values)} in the cluster's stack")
        )
    return Group(head, *notes((name.split("_")[0], str(value)) for name, value in found if value is not None))
