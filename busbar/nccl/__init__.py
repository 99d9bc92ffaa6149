"""Read the output of nccl-tests and NCCL, and judge it against what the hardware can do.

One way: log -> expected -> checks -> diagnose -> verdict -> report; each package imports only what stands
before it. judge.py puts them together.
"""

from busbar.nccl.checks.context import JobOutcome
from busbar.nccl.expected.expectation import Expectation
from busbar.nccl.judge import judge, judge_log, read_file, read_lines
from busbar.nccl.verdict import Verdict

__all__ = ["Expectation", "JobOutcome", "Verdict", "judge", "judge_log", "read_file", "read_lines"]
