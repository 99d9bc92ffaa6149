"""Exports the stack outputs, and fails the update by them if the validation did not pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import pulumi
from pulumi_command import local, remote

from busbar import outputs

INCOMPLETE = f"the outputs stay as they were: a step failed {outputs.FOLLOW_UP}"
UNFINISHED = f"no host is uninstalled: a step failed {outputs.FOLLOW_UP}"


Step = remote.Command | local.Command


class Gate(Protocol):
    """Returns why an update has to fail by its outputs; None if it may succeed."""

    def __call__(self, outputs: Mapping[str, Any], /, *, enforce: bool) -> str | None: ...


def export_all(values: Mapping[str, pulumi.Input[Any]], steps: Iterable[Step] = ()) -> None:
    """Export all values; if one is unknown or one of `steps` failed, none, so that the former ones stay.

    `busbar up` continues after a failed step. The engine would then store placeholders for unknown values,
    and delete what is no longer configured, such as a server whose replacement failed to join. A failing
    program prevents both.
    """
    needed = [pulumi.Output.from_input(value) for value in values.values()]
    needed += [step.stdout for step in steps]

    checked: pulumi.Output[None] = pulumi.Output.from_input(_fail_unless_known(needed, INCOMPLETE))
    for name, value in values.items():
        pulumi.export(name, pulumi.Output.all(value, checked)[0])


async def fail_unless_made(steps: Iterable[Step]) -> None:
    """Raise pulumi.RunError if one of the steps has failed: the engine then deletes nothing."""
    await _fail_unless_known([step.stdout for step in steps], UNFINISHED)


async def _fail_unless_known(values: Iterable[pulumi.Output[Any]], reason: str) -> None:
    known = [await value.is_known() for value in values]
    if not all(known) and not pulumi.runtime.is_dry_run():
        raise pulumi.RunError(reason)


async def fail_unless_passed(
    built: pulumi.Output[dict[str, Any]], *, enforce: bool, gate: Gate = outputs.CLUSTER.refusal
) -> None:
    """Raise pulumi.RunError with the reasons if the gate does not pass. The outputs are kept nevertheless.

    In a preview this is a warning, because a failed preview would keep `pulumi up` from measuring again.
    """
    if not await built.is_known():
        return  # in the preview of a first update nothing is measured yet
    reason = gate(await built.future() or {}, enforce=enforce)
    if reason is None:
        return
    if not pulumi.runtime.is_dry_run():
        raise pulumi.RunError(f"{reason} {outputs.GATE}")
    pulumi.warn(reason)
