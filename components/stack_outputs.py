"""Exporting the stack outputs, and failing the update by them where the validation did not pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import pulumi

from busbar import outputs
from busbar.config import Cluster


class Gate(Protocol):
    """Why an update has to fail by its outputs; None where it may succeed."""

    def __call__(self, outputs: Mapping[str, Any], /, *, enforce: bool) -> str | None: ...


def export_outputs(
    cluster: Cluster,
    *,
    kubeconfig: pulumi.Output[str],
    versions: Mapping[str, pulumi.Input[str | None]],
    facts: pulumi.Input[Mapping[str, Any]],
    results: Mapping[str, pulumi.Input[Mapping[str, Any]]],
) -> pulumi.Output[dict[str, Any]]:
    """Export every output of the contract; returns them without the kubeconfig. See outputs.build_outputs."""
    built: pulumi.Output[dict[str, Any]] = pulumi.Output.all(
        versions=versions, facts=facts, results=results
    ).apply(lambda found: outputs.build_outputs(cluster, **found))
    for name in outputs.NAMES:
        pulumi.export(name, built[name])
    pulumi.export("kubeconfig", kubeconfig)
    return built


async def fail_unless_passed(
    built: pulumi.Output[dict[str, Any]], *, enforce: bool, gate: Gate = outputs.gate
) -> None:
    """Raise pulumi.RunError with the reasons where the gate does not pass. The outputs are kept all the same.

    In a preview it is a warning, because a failed preview would keep `pulumi up` from measuring again.
    """
    if not await built.is_known():
        return  # the preview of a first update: nothing is measured yet
    reason = gate(await built.future() or {}, enforce=enforce)
    if reason is None:
        return
    if not pulumi.runtime.is_dry_run():
        raise pulumi.RunError(reason)
    pulumi.warn(reason)
