"""What all gates share: checks and their statuses, verdicts, and the way from a job to one."""

# A launcher prints these lines: a log without them has lost its beginning or its end.
FIRST_LINE = "# busbar: launcher starts"
LAST_LINE = "# busbar: launcher ends with exit code"
# Followed by "N lines, B bytes": what the launcher wrote before this line.
COUNT_LINE = "# busbar: launcher wrote"
