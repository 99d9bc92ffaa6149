"""Reading nccl-tests output and NCCL's own evidence, and judging both against what the hardware can do."""

from busbar.nccl.expected.expectation import Expectation
from busbar.nccl.judge import judge, judge_log
from busbar.nccl.verdict import Verdict

__all__ = ["Expectation", "Verdict", "judge", "judge_log"]
