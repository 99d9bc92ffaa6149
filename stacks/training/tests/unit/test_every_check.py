"""Every check has a run that it fails and, where it can be, one that leaves it unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from busbar.judge.checks import JobOutcome
from stacks.training.package.checks import CHECKS
from stacks.training.package.checks.codes import Code
from stacks.training.package.checks.result import Check
from stacks.training.package.log import read_lines
from stacks.training.package.verdict import Verdict, judge
from stacks.training.tests.unit.made import (
    GIB,
    STEPS,
    TCP,
    Record,
    changed,
    expected,
    first,
    lines,
    record,
    second,
    starts,
    step,
    verdict,
    without,
)
from tests.support.gates import without_case

NETWORKS: dict[str, Any] = {"interfaces": ("net1",)}
STORAGE: dict[str, Any] = {"storage_bytes": 1 << 28}
PROBE = record(
    "storage", bytes=1 << 28, hosts=2, write_mib_s=9.0, read_mib_s=9.0, problems={"gpu-2": "no file"}
)
OVER_ETH0 = record("interfaces", hosts=2, sent={"eth0": [GIB, GIB], "net1": [0, 0]})


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

FAILS: dict[Code, Case] = {
    Code.JOB_FAILED: lambda: ended(False),
    Code.LOG_STEPS_MISSING: lambda: wrong("end", step=STEPS - 1),
    Code.RANKS_OTHER_NODES: lambda: wrong("host", node="gpu-9"),
    Code.FABRIC_FAILED: lambda: verdict(nccl=TCP),
    Code.INTERFACES_NOT_USED: lambda: verdict([*run()[:-1], OVER_ETH0, run()[-1]], **NETWORKS),
    Code.DATA_SAME: lambda: wrong("step", distinct_losses=1),
    Code.LOSS_NOT_FALLING: lambda: all_steps(loss=1.0),
    Code.GRADIENTS_DIFFER: lambda: wrong("step", gradients={"aa": 15, "bb": 1}),
    Code.STORAGE_NOT_SHARED: lambda: verdict([*first()[:3], PROBE, *run()[3:]], **STORAGE),
    Code.CHECKPOINT_TOO_SMALL: lambda: wrong("checkpoint", bytes=GIB),
    Code.RECOVERY_OTHER_CHECKPOINT: lambda: wrong("resume", sha256="cd" * 32),
    Code.ALLREDUCE_WRONG: lambda: wrong("timing", wrong=3),
    Code.BUSBW_TOO_LOW: lambda: wrong("timing", allreduce_s=[0.02] * 5),
}
UNKNOWN: dict[Code, Case] = {
    Code.JOB_UNKNOWN: lambda: ended(None),
    Code.LOG_NO_RUN: empty,
    Code.RANKS_WRONG_COUNT: empty,
    Code.FABRIC_NO_MESSAGES: lambda: verdict(nccl=None),
    Code.INTERFACES_NOT_COUNTED: lambda: verdict(**NETWORKS),
    Code.DATA_SAME: empty,
    Code.LOSS_NOT_FALLING: lambda: verdict([*starts(), *(step(number) for number in range(1, 6))]),
    Code.GRADIENTS_RANKS_MISSING: lambda: verdict(without(run(), "end")),
    Code.STORAGE_NOT_PROBED: lambda: verdict(**STORAGE),
    Code.CHECKPOINT_MISSING: lambda: verdict(without(run(), "checkpoint")),
    Code.RECOVERY_NOT_KILLED: lambda: verdict(without(run(), "kill")),
    Code.ALLREDUCE_NOT_MEASURED: lambda: verdict(without(run(), "timing")),
    Code.BUSBW_NO_EXPECTATION: lambda: verdict(busbw_gbps=None),
}


def test_every_check_has_a_case_that_it_fails_and_one_that_leaves_it_unknown() -> None:
    missing = without_case(CHECKS, FAILS, UNKNOWN, never_unknown={})
    assert not missing, "\n".join(missing)


def found(verdict: Verdict, code: Code) -> Check:
    return next(check for check in verdict.checks if check.name == code.gate)


@pytest.mark.parametrize("code", FAILS)
def test_a_check_fails_its_case_and_so_does_the_run(code: Code) -> None:
    judged = FAILS[code]()
    check = found(judged, code)
    assert (check.status, check.code, judged.verdict) == ("fail", code, "fail")


@pytest.mark.parametrize("code", UNKNOWN)
def test_a_check_without_its_evidence_is_unknown_and_the_run_does_not_pass(code: Code) -> None:
    judged = UNKNOWN[code]()
    check = found(judged, code)
    assert (check.status, check.code, judged.passed) == ("unknown", code, False)
