"""What a caller looks for in a log besides tables and evidence: lines that it knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from busbar.judge.nccl.log.records import LogLine


@dataclass(slots=True)
class KnownLine:
    """What a matcher recognized: its name for it, the first line, and how many lines there were."""

    name: str
    severity: str
    meaning: str
    first: LogLine
    count: int = 1


class LineMatcher(Protocol):
    """Recognizes lines on behalf of a caller (known failures, see busbar.judge.nccl.diagnose)."""

    def look(self, text: str, line: int, *, level: str | None = None, started: bool = True) -> None:
        """Count what one cleaned line shows, or a message of NCCL of this LEVEL.

        STARTED: a program of nccl-tests had printed something before it.
        """

    def known_lines(self) -> list[KnownLine]:
        """Everything that was recognized."""

    def unknown_lines(self) -> list[LogLine]:
        """What looks like a failure and was not recognized."""
