"""The verdict on a training run, as JSON: the measured and the expected values, and every check."""

from __future__ import annotations

from statistics import median
from typing import Any, Literal

from pydantic import Field

from busbar.judge import verdict
from busbar.judge.checks import JobOutcome
from busbar.judge.verdict import conclusion
from stacks.training.package.checks import run_all
from stacks.training.package.checks.bandwidth import expected_seconds, measured_busbw
from stacks.training.package.checks.context import Context
from stacks.training.package.checks.result import Check
from stacks.training.package.expectation import Expectation
from stacks.training.package.log import TrainingLog

SCHEMA: Literal[2] = 2
"""Of verdict.json. Schema 1 was that of busbar before 1.0."""


class Verdict(verdict.Verdict):
    """Times in seconds (medians), bandwidths in GB/s; None: not measured.

    `allreduce_share` is the time of the all-reduce as a part of the step, `exposed_share` the part of the
    step that its overlap with the computation does not hide.
    """

    schema_: Literal[2] = Field(default=SCHEMA, alias="schema")
    backend: str | None = None
    ranks: int | None = None
    nodes: int | None = None
    torch: str | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    gradient_bytes: int | None = None
    step_seconds: float | None = None
    compute_seconds: float | None = None
    allreduce_seconds: float | None = None
    expected_allreduce_seconds: float | None = None
    allreduce_share: float | None = None
    exposed_share: float | None = None
    busbw_gbps: float | None = None
    measured_busbw_gbps: float | None = Field(default=None, description="by nccl-tests, at this size")
    busbw_fraction: float | None = None
    checkpoint_bytes: int | None = None
    checkpoint_seconds: float | None = None
    storage_write_mib_s: float | None = Field(default=None, description="of the slowest worker")
    storage_read_mib_s: float | None = Field(default=None, description="of the slowest worker")
    starts: int = 0
    checks: list[Check]
    expectation: dict[str, Any]


def judge(
    log: TrainingLog,
    expectation: Expectation,
    outcome: JobOutcome | None = None,
    missing: tuple[str, ...] = (),
) -> Verdict:
    """Judge a log that was read. `outcome`: of its job; `missing`: parts that could not be read."""
    context = Context(log, expectation, outcome, missing)
    checks = run_all(context)
    start = log.attempts[-1].start if log.attempts else None
    written = context.checkpoint
    probed = log.attempts[0].storage if log.attempts else None
    losses = [float(step.loss) for step in context.steps if isinstance(step.loss, int | float)]
    return Verdict(
        **conclusion(checks),
        backend=start.backend if start else None,
        ranks=start.world_size if start else None,
        nodes=len(log.attempts[-1].hosts) if log.attempts else None,
        torch=start.torch if start else None,
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        **_times(context),
        checkpoint_bytes=written.bytes if written else None,
        checkpoint_seconds=written.seconds if written else None,
        storage_write_mib_s=probed.write_mib_s if probed else None,
        storage_read_mib_s=probed.read_mib_s if probed else None,
        starts=len(log.attempts),
        checks=checks,
        expectation=expectation.model_dump(mode="json", exclude_none=True),
    )


def _times(context: Context) -> dict[str, Any]:
    timing, want = context.timing, context.expectation
    if timing is None:
        return {}
    step, compute, reduce = (median(each) for each in (timing.step_s, timing.compute_s, timing.allreduce_s))
    times: dict[str, Any] = {
        "gradient_bytes": timing.bytes,
        "step_seconds": step,
        "compute_seconds": compute,
        "allreduce_seconds": reduce,
        "allreduce_share": reduce / step,
        "exposed_share": max(0.0, step - compute) / step,
    }
    if want.world_size > 1:
        times["busbw_gbps"] = busbw = measured_busbw(timing, want.world_size)
        if want.busbw_gbps is not None:
            times["measured_busbw_gbps"] = want.busbw_gbps
            times["busbw_fraction"] = busbw / want.busbw_gbps
            times["expected_allreduce_seconds"] = expected_seconds(timing, want.world_size, want.busbw_gbps)
    return times
