"""Shared parts of all gates: checks and their statuses, verdicts, and the way from a job to a verdict."""

# A launcher prints these lines: a log without them has lost its beginning or its end.
FIRST_LINE = "# busbar: launcher starts"
LAST_LINE = "# busbar: launcher ends with exit code"
# "N lines, B bytes" follows: the amount that the launcher wrote before this line.
COUNT_LINE = "# busbar: launcher wrote"
