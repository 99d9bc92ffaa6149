"""Every check has a run that it fails and, where it can be, one that leaves it unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from busbar.judge.checks import JobOutcome
from stacks.training.package.log import read_lines
from stacks.training.package.verdict import CHECKS, Check, Verdict, judge
from stacks.training.tests.unit.made import (
    GIB,
    STEPS,
    TCP,
    Record,
    changed,
    expected,
    first,
    lines,
    second,
    starts,
    step,
    verdict,
    without,
)
from tests.support.gates import without_case


def run() -> list[Record]:
    return [*first(), *second()]


def wrong(kind: str, **values: Any) -> Verdict:
    """On a good run of which the first record of a kind has other values."""
    return verdict(changed(run(), kind, **values))


def all_steps(**values: Any) -> Verdict:
    return verdict([{**each, **values} if each["busbar_training"] == "step" else each for each in run()])


def ended(succeeded: bool | None) -> Verdict:
    return judge(read_lines(lines(run())), expected(), JobOutcome(succeeded))


def empty() -> Verdict:
    return verdict([])


Case = Callable[[], Verdict]

FAILS: dict[str, Case] = {
    "job.failed": lambda: ended(False),
    "log.steps_missing": lambda: wrong("end", step=STEPS - 1),
    "ranks.other_nodes": lambda: wrong("host", node="gpu-9"),
    "fabric.failed": lambda: verdict(nccl=TCP),
    "data.same": lambda: wrong("step", distinct_losses=1),
    "loss.not_falling": lambda: all_steps(loss=1.0),
    "gradients.differ": lambda: wrong("step", gradients={"aa": 15, "bb": 1}),
    "checkpoint.too_small": lambda: wrong("checkpoint", bytes=GIB),
    "recovery.other_checkpoint": lambda: wrong("resume", sha256="cd" * 32),
    "allreduce.wrong": lambda: wrong("timing", wrong=3),
    "busbw.too_low": lambda: wrong("timing", allreduce_s=[0.02] * 5),
}
UNKNOWN: dict[str, Case] = {
    "job.unknown": lambda: ended(None),
    "log.no_run": empty,
    "ranks.wrong_count": empty,
    "fabric.no_messages": lambda: verdict(nccl=None),
    "data.same": empty,
    "loss.not_falling": lambda: verdict([*starts(), *(step(number) for number in range(1, 6))]),
    "gradients.ranks_missing": lambda: verdict(without(run(), "end")),
    "checkpoint.missing": lambda: verdict(without(run(), "checkpoint")),
    "recovery.not_killed": lambda: verdict(without(run(), "kill")),
    "allreduce.not_measured": lambda: verdict(without(run(), "timing")),
    "busbw.no_expectation": lambda: verdict(busbw_gbps=None),
}


def test_every_check_has_a_case_that_it_fails_and_one_that_leaves_it_unknown() -> None:
    missing = without_case(CHECKS, FAILS, UNKNOWN, never_unknown={})
    assert not missing, "\n".join(missing)


def found(verdict: Verdict, code: str) -> Check:
    return next(check for check in verdict.checks if check.name == code.partition(".")[0])


@pytest.mark.parametrize("code", FAILS)
def test_a_check_fails_its_case_and_so_does_the_run(code: str) -> None:
    judged = FAILS[code]()
    check = found(judged, code)
    assert (check.status, check.code, judged.verdict) == ("fail", code, "fail")


@pytest.mark.parametrize("code", UNKNOWN)
def test_a_check_without_its_evidence_is_unknown_and_the_run_does_not_pass(code: str) -> None:
    judged = UNKNOWN[code]()
    check = found(judged, code)
    assert (check.status, check.code, judged.passed) == ("unknown", code, False)
