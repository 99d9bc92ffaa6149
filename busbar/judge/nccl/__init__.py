"""Read the output of nccl-tests and NCCL, and judge it against what the hardware can do."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from busbar.judge.checks import JobOutcome
    from busbar.judge.nccl.expected.expectation import Expectation
    from busbar.judge.nccl.log.reader import read_file, read_lines
    from busbar.judge.nccl.verdict import Verdict, judge, judge_log, tables

__all__ = ["Expectation", "JobOutcome", "Verdict", "judge", "judge_log", "read_file", "read_lines", "tables"]

_MODULES = {
    "Expectation": "expected.expectation",
    "JobOutcome": "checks.context",
    **dict.fromkeys(("Verdict", "judge", "judge_log", "tables"), "verdict"),
    **dict.fromkeys(("read_file", "read_lines"), "log.reader"),
}


# A name is imported when it is used: the configuration needs the profiles in here, but not the judge.
def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
