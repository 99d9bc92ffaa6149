"""Lines that a caller looks for in a log besides tables and evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from busbar.judge.nccl.log.records import LogLine


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

    def look(self, text: str, line: int, *, level: str | None = None, started: bool = True) -> None:
        """Count the known lines that one cleaned line, or a message of NCCL of this LEVEL, shows.

        STARTED: a program of nccl-tests had printed something before it.
        """

    def known_lines(self) -> list[KnownLine]:
        """Everything that was recognized."""

    def unknown_lines(self) -> list[LogLine]:
        """Lines that look like a failure and were not recognized."""
