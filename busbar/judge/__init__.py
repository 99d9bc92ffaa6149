"""Shared parts of all gates: checks and their statuses, verdicts, and the way from a job to a verdict."""

# A launcher prints these lines: a log without them has lost its beginning or its end.
FIRST_LINE = "# busbar: launcher starts"
LAST_LINE = "# busbar: launcher ends with exit code"
# "N lines, B bytes" follows: the amount that the launcher wrote before this line.
COUNT_LINE = "# busbar: launcher wrote"

# NCCL of four hosts with eight GPUs each has failed with so many (goodfire-ai/spd#957).
FEW_FILES = 1024


def few_files(limits: str) -> bool:
    """True if limits of open files, such as `soft 1024, hard 524288`, are too low for many hosts."""
    soft = limits.removeprefix("soft ").partition(",")[0]
    return soft.isdigit() and int(soft) <= FEW_FILES
