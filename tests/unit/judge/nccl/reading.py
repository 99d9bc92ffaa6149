"""The product's names that the tests of made and real logs use: reading, judging, known failures."""

from __future__ import annotations

from functools import cache

from busbar.judge.nccl import Expectation, Verdict, judge, judge_log, read_lines
from busbar.judge.nccl.expected import profiles
from busbar.judge.nccl.log.known import Failure as Rule
from busbar.judge.nccl.log.known import failures as rules
from busbar.judge.nccl.log.reader import ParsedLog
from tests.unit.judge.nccl.export import as_object
from tests.unit.judge.nccl.made.log import Log
from tests.unit.judge.nccl.made.spec import cases

__all__ = [
    "Expectation", "ParsedLog", "Rule", "Verdict", "as_object", "judge", "judge_log", "parsed", "profiles",
    "read_lines", "rules", "verdict_of",
]  # fmt: skip


@cache
def parsed(name: str) -> ParsedLog:
    """The made log of a case, as it is read."""
    return read_lines(Log(cases()[name]).lines)


@cache
def verdict_of(name: str) -> Verdict:
    """The verdict on the made log of a case, as on two hosts with eight rails."""
    return judge_log(parsed(name), Expectation(profile="h100-ib-8x400", nodes=2))
