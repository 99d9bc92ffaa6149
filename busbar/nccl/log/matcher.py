"""What a caller looks for in a log besides tables and evidence: lines that it knows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from busbar.nccl.log.records import LogLine


@dataclass(slots=True)
class KnownLine:
    """What a matcher recognized: its name for it, the first line, and how many lines there were."""

    name: str
    severity: str
    meaning: str
    first: LogLine
    count: int = 1


class LineMatcher(Protocol):
    """Recognizes lines on behalf of a caller (known failures, see busbar.nccl.diagnose)."""

    @property
    def literals(self) -> Iterable[str]:
        """Texts of which one is in every line that can be recognized."""

    def look(self, text: str, line: int, literals: Iterable[str] | None = None) -> tuple[KnownLine, ...]:
        """What one cleaned line or message shows, counted; it holds no literals but LITERALS if given."""

    def known_lines(self) -> list[KnownLine]:
        """Everything that was recognized."""
