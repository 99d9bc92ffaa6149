"""What nccl-tests prints, as values: the rows of a table, the device list, the arguments, the table itself.

Nothing here judges or reads; numbers stay as printed beside what they mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Half:
    """One half of a row: time in us, bandwidths in GB/s (1e9 B/s), as printed and as numbers.

    `errors` is the text of the last column: a count under `#wrong`, a maximum difference under `error`.
    """

    time: str
    algbw: str
    busbw: str
    errors: str

    @property
    def unchecked(self) -> bool:
        """True where the data was not compared (N/A)."""
        return self.errors == "N/A"


@dataclass(frozen=True, slots=True)
class Row:
    """One message size. `redop` and `root` are None in the formats that do not print them."""

    size: int
    count: int
    type: str
    redop: str | None
    root: int | None
    out_of_place: Half
    in_place: Half
    line: int
    interleaved: bool = False
    text: str = ""

    @property
    def key(self) -> tuple[str, str | None, int | None, int]:
        """What makes a row unique in a healthy table."""
        return (self.type, self.redop, self.root, self.size)


@dataclass(frozen=True, slots=True)
class Rank:
    """A line of the device list."""

    rank: int
    group: int
    pid: int
    host: str
    device: int
    gpu: str
    line: int
    text: str = ""


@dataclass
class Banner:
    """Arguments as printed; sizes in bytes. `step` is a factor or, with `by` = bytes, an increment."""

    min_bytes: int
    max_bytes: int
    step: int
    by: str
    line: int
    text: str = ""
    threads: int | None = None
    gpus: int | None = None
    warmup: int | None = None
    iterations: int | None = None
    validation: int | None = None


@dataclass
class Preamble:
    """What was printed before a table."""

    tests_version: str | None = None
    library: str | None = None
    name: str | None = None
    command: str | None = None  # a program's name on a shell line before the table: a hint, no proof
    banner: Banner | None = None
    ranks: list[Rank] = field(default_factory=list)
    reduced_max: int | None = None
    # a second banner, name or rank list before any header: several programs share this log
    repeats: int = 0
    line: int | None = None


@dataclass
class Run:
    """One table, with what was printed before and after it."""

    preamble: Preamble
    line: int
    error_column: str | None = None
    cpu_time: bool = False
    columns: tuple[str, ...] = ()
    half_width: int = 0  # columns of one half as the header names them; 0: no header
    rows: list[Row] = field(default_factory=list)
    orphans: int = 0
    damaged: int = 0
    template_rows: int = 0
    avg: str | None = None
    avg_status: str | None = None
    avg_line: int | None = None
    avg_text: str = ""
    out_of_bounds: int | None = None
    out_of_bounds_status: str | None = None
    out_of_bounds_line: int | None = None
    out_of_bounds_text: str = ""
    bitwise_failed: tuple[int, str] | None = None  # line and text
    summaries: int = 0
    concluded: str | None = None
    rows_after_summary: int = 0

    @property
    def closed(self) -> bool:
        """True when the summary's last line was seen."""
        return self.avg is not None


def whole(digits: str) -> int:
    """An integer of at most 20 digits; what is longer is no count, and int() refuses 4,300."""
    return int(digits[:20])


def number(text: str) -> float | None:
    """The value of a printed field; None for N/A and for nan and inf, which are no measurement."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
