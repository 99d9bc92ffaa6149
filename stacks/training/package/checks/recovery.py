"""Checks on recovery: the checkpoint, and the run after a rank was killed."""

from __future__ import annotations

from stacks.training.package.checks.context import Context
from stacks.training.package.checks.result import Check, failed, passed, unknown
from stacks.training.package.log import Attempt, Checkpoint

# The state has parameters and momentum.
STATE_PER_GRADIENT = 2
# In the same step from the same state, only the order of sums may differ.
_SAME_LOSS = 1e-3


def checkpoint(context: Context) -> Check:
    """Check that a checkpoint was written before the kill, and has parameters and momentum."""
    written = context.checkpoint
    if written is None:
        return unknown("checkpoint.missing", "no checkpoint was written before a rank was killed")
    least = STATE_PER_GRADIENT * context.log.attempts[0].start.gradient_bytes
    if written.bytes < least:
        reason = f"the checkpoint has {written.bytes} bytes, parameters and momentum have {least}"
        return failed("checkpoint.too_small", reason)
    rate = written.bytes / written.seconds / (1 << 20)
    return passed(
        "checkpoint.written",
        f"{written.bytes / (1 << 20):.0f} MiB at {rate:.0f} MiB/s, synced to the disk",
    )


def recovery(context: Context) -> Check:
    """Check that after the kill of a rank all ranks restarted, resumed from the checkpoint and continued."""
    killed, written = context.killed, context.checkpoint
    if killed is None:
        anew = context.log.attempts and context.log.attempts[0].resume is not None
        why = ": the run began with the checkpoint of another one" if anew else ""
        return unknown("recovery.not_killed", f"no rank was killed{why}: what survives is not known")
    resumed = context.log.attempts[1:]
    if not resumed:
        return failed("recovery.not_restarted", "a rank was killed, and the run did not start again")
    if written is None:
        return unknown("recovery.other_checkpoint", "no checkpoint to resume from")
    for attempt in resumed:
        if problem := _other_state(attempt, written, context) or _other_losses(attempt, killed):
            return problem
    return passed(
        "recovery.resumed",
        f"after the kill the run resumed from step {written.step}, and repeated its steps with the same loss",
    )


def _other_state(attempt: Attempt, written: Checkpoint, context: Context) -> Check | None:
    resume = attempt.resume
    if resume is None:
        return failed("recovery.started_anew", "after the kill the run began anew: it found no checkpoint")
    if (resume.step, resume.sha256) != (written.step, written.sha256):
        found = f"step {resume.step}, sha256 {resume.sha256[:12]}"
        reason = f"the run resumed from {found}, written was step {written.step}, {written.sha256[:12]}"
        return failed("recovery.other_checkpoint", reason)
    hosts = len(context.expectation.nodes)
    if context.expectation.shared_checkpoint and resume.files != {written.sha256: hosts}:
        reason = f"{resume.files.get(written.sha256, 0)} of {hosts} workers see the checkpoint's file"
        return failed("recovery.not_shared", f"{reason}: the storage is not shared")
    return None


def _other_losses(attempt: Attempt, killed: Attempt) -> Check | None:
    """Check that steps in both attempts have the same loss."""
    before = {step.step: step.loss for step in killed.steps}
    repeated = [step for step in attempt.steps if step.step in before]
    if not repeated:
        return unknown("recovery.other_loss", "no step was repeated: the loaded state is not compared")
    for step in repeated:
        first, again = before[step.step], step.loss
        same = (
            isinstance(first, int | float)
            and isinstance(again, int | float)
            and abs(again - first) <= _SAME_LOSS * abs(first)
        )
        if not same:
            reason = f"step {step.step} had the loss {first}, and {again} after the resume"
            return failed("recovery.other_loss", f"{reason}: another state was loaded")
    return None
