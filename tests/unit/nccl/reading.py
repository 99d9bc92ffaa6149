"""The product's names that the tests of made and real logs use: reading, judging, known failures."""

from __future__ import annotations

from busbar.nccl import Expectation, Verdict, judge, judge_log, profiles
from busbar.nccl.diagnosis import shapes
from busbar.nccl.parse import ParsedLog, parse_lines
from busbar.nccl.sidecar import as_object
from busbar.nccl.signs import signs

__all__ = [
    "Expectation", "ParsedLog", "Verdict", "as_object", "judge", "judge_log", "parse_lines", "profiles",
    "shapes", "signs",
]  # fmt: skip
