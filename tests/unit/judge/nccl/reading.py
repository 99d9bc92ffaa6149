"""The product's names that the tests of made and real logs use: reading, judging, known failures."""

from __future__ import annotations

from busbar.judge.nccl import Expectation, Verdict, judge, judge_log, read_lines
from busbar.judge.nccl.diagnose.rules import Rule, rules
from busbar.judge.nccl.expected import profiles
from busbar.judge.nccl.log.export import as_object
from busbar.judge.nccl.log.reader import ParsedLog

__all__ = [
    "Expectation", "ParsedLog", "Rule", "Verdict", "as_object", "judge", "judge_log", "profiles",
    "read_lines", "rules",
]  # fmt: skip
