"""Checks on the learning: loss, data, gradients."""

from __future__ import annotations

import math

from stacks.training.package.checks.context import Context
from stacks.training.package.checks.result import Check, failed, passed, unknown

# Among thousands of float32 losses two may be equal by chance; with equal batches all are equal.
_DISTINCT_SHARE = 0.9
# Number of steps at each end for the mean loss: one step's loss depends on its batch.
_WINDOW = 3


def loss(context: Context) -> Check:
    """Check that the mean loss of the last steps is below that of the first ones by the expected part."""
    steps = context.steps
    odd = next((s for s in steps if not isinstance(s.loss, int | float) or not math.isfinite(s.loss)), None)
    if odd is not None:
        return failed("loss.not_finite", f"the loss of step {odd.step} is {odd.loss}")
    values = [float(step.loss) for step in steps]
    if len(values) < 2 * _WINDOW:
        return unknown("loss.not_falling", f"{len(values)} steps are too few to tell")
    first, last = sum(values[:_WINDOW]) / _WINDOW, sum(values[-_WINDOW:]) / _WINDOW
    limit = (1 - context.expectation.min_loss_drop) * first
    said = f"the loss went from {first:.4g} to {last:.4g}"
    if not last <= limit:
        return failed("loss.not_falling", f"{said}, expected at most {limit:.4g}")
    return passed("loss.falls", said)


def data(context: Context) -> Check:
    """Check that ranks trained on different data: with the same data, equal gradients prove nothing."""
    world = context.expectation.world_size
    if not context.steps:
        return unknown("data.same", "no step: nothing is known of the data")
    odd = next((s for s in context.steps if s.distinct_losses < math.ceil(_DISTINCT_SHARE * world)), None)
    if odd is not None:
        found = f"step {odd.step}: {odd.distinct_losses} different losses on {world} ranks"
        return failed("data.same", f"{found}: ranks trained on the same data")
    return passed("data.distinct", "every rank trained on its own data")


def gradients(context: Context) -> Check:
    """Check that all ranks have bitwise equal gradients after every step, and equal parameters at the end."""
    world, steps = context.expectation.world_size, context.steps
    end = context.last.end if context.last else None
    if not steps or end is None:
        return unknown("gradients.ranks_missing", "no step, or no end: nothing is known of the gradients")
    found = [(f"gradients of step {step.step}", step.gradients) for step in steps]
    for what, digests in [*found, ("parameters at the end", end.parameters)]:
        if sum(digests.values()) != world:
            reason = f"the {what} are known of {sum(digests.values())} ranks, expected {world}"
            return failed("gradients.ranks_missing", reason)
        if len(digests) != 1:
            kinds = ", ".join(f"{n} ranks {digest}" for digest, n in sorted(digests.items())[:4])
            return failed("gradients.differ", f"the {what} differ: {kinds}")
    if len({next(iter(step.gradients)) for step in steps}) == 1:
        return failed("gradients.constant", "the gradients are the same in every step: nothing was learned")
    return passed(
        "gradients.agree", f"the same on all {world} ranks in {len(steps)} steps; so are the parameters"
    )
