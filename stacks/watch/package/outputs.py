"""The outputs of a stack of stacks/watch, for a terminal too. They fail closed: only a plain pass is one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from busbar.frame import StackOutputs, headline
from stacks.watch.capability import GATE
from stacks.watch.package.check import Result
from stacks.watch.package.config import Watch
from stacks.watch.package.manifests import DCGM_COUNTERS, GRAFANA_SECRET, STACK

if TYPE_CHECKING:
    from rich.console import RenderableType


class Outputs(StackOutputs):
    """The outputs, in the order of their export."""

    watch_contract_version: int = GATE.contract
    watch_passed: bool
    watch_reasons: list[str]
    nodes_read: int
    prometheus: str
    grafana_secret: str | None = None
    gpu_operator_values: dict[str, Any] | None = None


def build_outputs(watch: Watch, cluster_name: str, printed: str | None) -> dict[str, Any]:
    """All outputs. `printed`: by the step `check`; any other text is not a pass."""
    found = Result.read(printed, "watch check")
    counters = {"dcgmExporter": {"config": {"name": DCGM_COUNTERS}}}
    return Outputs(
        cluster_name=cluster_name,
        namespace=watch.namespace,
        watch_passed=found.passed,
        watch_reasons=found.reasons,
        nodes_read=found.nodes,
        prometheus=watch.stack.mode,
        grafana_secret=f"{STACK.namespace}/{GRAFANA_SECRET}" if watch.stack.enabled else None,
        gpu_operator_values=counters if watch.dcgm else None,
    ).model_dump()


def summary(outputs: Mapping[str, Any], *, folder: Path | None = None) -> RenderableType:
    """Render the outputs for a terminal. Raises ValueError for those of another contract."""
    from rich.console import Group

    from busbar.judge.tables import notes

    found = Outputs.read(GATE, outputs)
    shown = [("cluster", found.cluster_name), ("prometheus", found.prometheus)]
    if found.grafana_secret:
        shown.append(("grafana", found.grafana_secret))
    if found.gpu_operator_values:
        values = json.dumps(found.gpu_operator_values)
        shown.append(("GPU counters", f"set gpu_operator.values: {values} in the cluster's stack"))
    return Group(headline(GATE, outputs, f"all rails of {found.nodes_read} nodes are read"), *notes(shown))
