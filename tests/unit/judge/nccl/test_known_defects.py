"""Defects that made logs showed, each as the right behaviour."""

from __future__ import annotations

from tests.unit.judge.nccl.made.log import Log
from tests.unit.judge.nccl.made.spec import cases
from tests.unit.judge.nccl.reading import Expectation, Verdict, judge

WANT = Expectation(profile="h100-ib-8x400", nodes=2)


def judged(name: str, want: Expectation = WANT) -> Verdict:
    return judge(Log(cases()[name]).lines, want)


def test_two_equal_halves_are_not_said_to_differ() -> None:
    assert "differ" not in judged("one GPU").check("stability").reason


def test_a_device_list_with_gaps_does_not_prove_a_single_node() -> None:
    rack = Expectation(profile="gb200-nvl72", nodes=18)
    assert judged("a rack whose device list is cut to its last line", rack).transport == "unknown"


def test_two_programs_that_finished_are_not_said_to_have_failed() -> None:
    verdict = judged("two runs of one host each, published as one of two hosts")
    assert "none finished" not in verdict.check("source").reason
