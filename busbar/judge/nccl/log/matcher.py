"""Lines that a caller looks for in a log besides tables and evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from busbar.judge.nccl.log.records import LogLine

Stage = Literal["before", "table", "after"]
"""Where a line stands: before the header of its program's table, in the table, or after its summary."""
NOTED = "not known, and printed before the table"
BAD_STATE = "a bad state of GPU, HCA, switch or driver"
SHOWN = (NOTED, BAD_STATE)
"""The values of unknown lines that are shown and decide nothing."""


@dataclass(slots=True)
class KnownLine:
    """A kind of line that a matcher recognized: its name, the first such line, and their number."""

    name: str
    severity: str
    meaning: str
    first: LogLine
    count: int = 1


class LineMatcher(Protocol):
    """Recognizes lines on behalf of a caller (known failures, see busbar.judge.nccl.diagnose)."""

    def look(
        self, text: str, line: int, *, level: str | None = None, started: bool = True, stage: Stage = "before"
    ) -> bool:
        """Count the known lines that one cleaned line, or a message of NCCL of this LEVEL, shows.

        STARTED: a program of nccl-tests had printed something before it. False where the line shows nothing.
        """

    def known_lines(self) -> list[KnownLine]:
        """Everything that was recognized."""

    def unknown_lines(self) -> list[LogLine]:
        """Lines that look like a failure and were not recognized: `value` is what is known of them."""

    def stated(self) -> dict[str, set[str]]:
        """Texts that decide between causes, and the hosts that printed them ("" where it is not known)."""
