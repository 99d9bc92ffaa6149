"""Exporting the outputs of stacks/training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi

from busbar.components.engine.stack_outputs import export_all
from stacks.training.package import outputs
from stacks.training.package.components.stack import TrainingStack


def export_outputs(
    stack: TrainingStack,
    results: Mapping[str, pulumi.Input[Mapping[str, Any]]],
    installed: Mapping[str, pulumi.Input[Any]],
) -> pulumi.Output[dict[str, Any]]:
    """Export every output, and the values of `installed`; returns the outputs.

    See stacks.training.package.outputs.build_outputs.
    """
    # Named, because Output.all() of nothing is an empty list.
    built: pulumi.Output[dict[str, Any]] = pulumi.Output.all(results=results).apply(
        lambda found: outputs.build_outputs(
            stack.training, stack.cluster.cluster_name, stack.targets, found["results"]
        )
    )
    export_all({**installed, **{name: built[name] for name in outputs.NAMES}})
    return built
