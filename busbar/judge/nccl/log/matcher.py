"""Lines that a caller looks for in a log besides tables and evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from busbar.judge.nccl.log.records import LogLine

Stage = Literal["before", "table", "after"]
"""Where a line stands: before its program's first row, among its rows, or after its summary."""
Sort = Literal["error", "warn", "kernel", "other"]
"""Who prints an unusual line: NCCL as an error, NCCL as a warning, the kernel, or anybody else."""
Decides = Literal["disturbed", "ended badly", ""]
"""What an unusual line says of the run: "" says nothing, so the line is a remark only."""


@dataclass(slots=True)
class KnownLine:
    """A kind of line that a matcher recognized: its name, the first such line, and their number."""

    name: str
    severity: str
    meaning: str
    first: LogLine
    count: int = 1
    among_rows: LogLine | None = None
    """The first such line among the rows of a table."""
    no_verdict: bool = False
    """What the line means for the numbers is not known."""
    proven_by: tuple[str, ...] = ()
    """Gates whose pass proves that the line did no harm among the rows."""


@dataclass(slots=True)
class Unusual:
    """A line that no rule knows, the first of `count` that differ only in numbers."""

    sort: Sort
    decides: Decides
    first: LogLine
    count: int = 1
    about_hardware: bool = True
    """Whether the line names a GPU, an HCA or their software; a host's name may do as well."""


@dataclass(slots=True)
class FoundLines:
    """Everything that a matcher found. `stated`: texts that decide between causes, and their hosts."""

    known: list[KnownLine] = field(default_factory=list)
    unusual: list[Unusual] = field(default_factory=list)
    uncounted: int = 0
    """Unusual lines beyond what is kept."""
    missing: LogLine | None = None
    """A line that says that others were lost."""
    stated: dict[str, set[str]] = field(default_factory=dict)


class LineMatcher(Protocol):
    """Recognizes lines on behalf of a caller (known failures, see busbar.judge.nccl.diagnose)."""

    def look(
        self, text: str, line: int, *, level: str | None = None, started: bool = True, stage: Stage = "before"
    ) -> bool:
        """Count what one cleaned line, or a message of NCCL of this LEVEL, shows.

        STARTED: a program of nccl-tests had printed something before it. False where the line shows nothing.
        """

    def found(self) -> FoundLines:
        """Everything that was recognized."""
