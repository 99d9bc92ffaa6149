"""Exporting the stack outputs, and failing the update by them where the validation did not pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pulumi

from busbar import outputs
from busbar.config import Cluster

INCOMPLETE = "the outputs stay as they were: a step that they need failed"


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
    hosts: Sequence[pulumi.Output[Any]],
) -> pulumi.Output[dict[str, Any]]:
    """Export every output of the contract; returns them without the kubeconfig. See outputs.build_outputs.

    `hosts`: known once every host is done; without them nothing is exported, as in `export_all`.
    """
    built: pulumi.Output[dict[str, Any]] = pulumi.Output.all(
        versions=versions, facts=facts, results=results
    ).apply(lambda found: outputs.build_outputs(cluster, **found))
    export_all({**{name: built[name] for name in outputs.NAMES}, "kubeconfig": kubeconfig}, hosts)
    return built


def export_all(values: Mapping[str, pulumi.Input[Any]], steps: Sequence[pulumi.Output[Any]] = ()) -> None:
    """Export the values, or none of them: if a step failed that one needs, those of the last update stay.

    `busbar up` goes on after a failed step. The engine would then store placeholders for what is not known,
    and remove what is no longer configured, though its replacement failed: a program that ends with an error
    keeps it from both. `steps` are outputs that must be known besides.
    """

    async def check() -> bool:
        needed = [*values.values(), *steps]
        known = [await pulumi.Output.from_input(value).is_known() for value in needed]
        if not all(known) and not pulumi.runtime.is_dry_run():
            raise pulumi.RunError(INCOMPLETE)
        return True

    checked: pulumi.Output[bool] = pulumi.Output.from_input(check())
    for name, value in values.items():
        pulumi.export(name, pulumi.Output.all(value, checked)[0])


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
