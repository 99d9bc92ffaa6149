"""Exporting the outputs of stacks/training, and failing the update by them where the run did not pass."""

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


async def fail_unless_passed(built: pulumi.Output[dict[str, Any]], *, enforce: bool) -> None:
    """Raise pulumi.RunError with the reasons where the gate does not pass. The outputs are kept all the same.

    In a preview it is a warning, because a failed preview would keep `pulumi up` from running again.
    """
    if not await built.is_known():
        return  # the preview of a first update: nothing is trained yet
    reason = outputs.gate(await built.future() or {}, enforce=enforce)
    if reason is None:
        return
    if not pulumi.runtime.is_dry_run():
        raise pulumi.RunError(reason)
    pulumi.warn(reason)
