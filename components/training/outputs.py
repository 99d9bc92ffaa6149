"""Exporting the outputs of stacks/training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi

from busbar.training import outputs
from components.training.stack import TrainingStack


def export_outputs(
    stack: TrainingStack, results: Mapping[str, pulumi.Input[Mapping[str, Any]]]
) -> pulumi.Output[dict[str, Any]]:
    """Export every output; returns them. See busbar.training.outputs.build_outputs."""
    # Named, because Output.all() of nothing is an empty list.
    built: pulumi.Output[dict[str, Any]] = pulumi.Output.all(results=results).apply(
        lambda found: outputs.build_outputs(
            stack.training, stack.cluster.cluster_name, stack.targets, found["results"]
        )
    )
    for name in outputs.NAMES:
        pulumi.export(name, built[name])
    return built
