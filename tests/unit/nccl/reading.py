"""The product's names that the tests of made and real logs use: reading, judging, known failures."""

from __future__ import annotations

from busbar.nccl import Expectation, Verdict, judge, judge_log
from busbar.nccl.diagnose.diagnosis import shapes
from busbar.nccl.diagnose.signs import signs
from busbar.nccl.expected import profiles
from busbar.nccl.log.parse import ParsedLog, parse_lines
from busbar.nccl.log.sidecar import as_object

__all__ = [
    "Expectation", "ParsedLog", "Verdict", "as_object", "judge", "judge_log", "parse_lines", "profiles",
    "shapes", "signs",
]  # fmt: skip
