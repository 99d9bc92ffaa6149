"""The output of nccl-tests as values: rows, device list, arguments, tables and values derived from a table.

Nothing here reads or judges; numbers are kept as printed beside their values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

# GB/s; half of it is printed as 0.01 at least
LEAST_RESOLVED = 0.02


EVIDENCE_WIDTH = 400


@dataclass(frozen=True, slots=True)
class LogLine:
    """The first line that states a fact; `text` is at most EVIDENCE_WIDTH characters."""

    value: str
    line: int
    text: str

    @classmethod
    def of(cls, line: int, text: str, value: str = "") -> LogLine:
        """TEXT as printed on a LINE, cut to its width."""
        return cls(value, line, text[:EVIDENCE_WIDTH])


@dataclass(frozen=True, slots=True)
class Measurement:
    """The out-of-place or in-place part of a row: time in us, bandwidths in GB/s (1e9 B/s), as printed.

    `errors` is the text of the last column: a count under `#wrong`, a maximum difference under `error`.
    """

    time: str
    algbw: str
    busbw: str
    errors: str
    slowest: str = ""  # iteration (i_max), where -I printed it

    @property
    def unchecked(self) -> bool:
        """Whether the data was not compared (N/A)."""
        return self.errors == "N/A"

    @property
    def wrong(self) -> bool:
        """Whether the last column is a number above 0."""
        return amount(self.errors) > 0


@dataclass(frozen=True, slots=True)
class Row:
    """One message size, and the line AT which it stands. Formats without `redop` and `root` have None."""

    size: int
    count: int
    type: str
    redop: str | None
    root: int | None
    out_of_place: Measurement
    in_place: Measurement
    at: LogLine

    @property
    def measurements(self) -> tuple[Measurement, Measurement]:
        """The out-of-place and the in-place measurement."""
        return self.out_of_place, self.in_place

    @property
    def is_out_of_place_only(self) -> bool:
        """True if only the out-of-place data was compared, as of alltoall: in place it does other work."""
        return self.in_place.unchecked and not self.out_of_place.unchecked

    @property
    def key(self) -> tuple[str, str | None, int | None, int]:
        """The key of the row, which differs between all rows in a table of one program."""
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
    at: LogLine
    bus: str = ""


@dataclass
class Banner:
    """Arguments as printed; sizes in bytes. `step` is a factor or, with `by` = bytes, an increment."""

    min_bytes: int
    max_bytes: int
    step: int
    by: str
    at: LogLine
    validation: int | None = None
    iterations: int | None = None
    warmup: int | None = None
    ranks_per_process: int | None = None  # threads x GPUs of each


@dataclass(frozen=True, slots=True)
class Asked:
    """The numbers for which the command before a table asks its launcher and program; sizes in bytes."""

    processes: int | None = None
    nodes: int | None = None
    low: int | None = None
    high: int | None = None


@dataclass
class Preamble:
    """The output before a table."""

    tests_version: str | None = None
    library: int | None = None  # NCCL as nccl-tests loaded it: 22902
    name: str | None = None
    command: str | None = None  # a program's name on a shell line before the table: a hint, no proof
    asked: Asked = Asked()
    banner: Banner | None = None
    ranks: list[Rank] = field(default_factory=list)
    reduced_max: int | None = None
    # a second banner, name or rank list before any header: several programs share this log
    repeats: int = 0
    line: int | None = None

    @property
    def hosts(self) -> set[str]:
        """Hosts of the device list."""
        return {r.host for r in self.ranks}

    @property
    def has_several_programs(self) -> bool:
        """True if two programs wrote it: a rank, a banner or a name occurs twice."""
        ranks = [(r.group, r.rank) for r in self.ranks]
        return len(set(ranks)) < len(ranks) or self.repeats > 0

    @property
    def has_lines_twice(self) -> bool:
        """True if each line of the device list stands twice, with the same process."""
        processes = [(r.rank, r.host, r.pid) for r in self.ranks]
        return processes[:1] != processes[-1:] and processes[::2] == processes[1::2]

    @property
    def has_whole_lists(self) -> bool:
        """True if MPI did join the programs: each device list has several processes and is whole."""
        starts = [i for i, r in enumerate(self.ranks) if r.rank == 0] + [len(self.ranks)]
        lists = [self.ranks[a:b] for a, b in pairwise(starts)]
        whole = all([r.rank for r in listed] == [*range(len(listed))] for listed in lists)
        joined = all(len({(r.host, r.pid) for r in listed}) > 1 for listed in lists)
        return bool(lists) and starts[0] == 0 and whole and joined


@dataclass
class Run:
    """One table, with the output before and after it."""

    preamble: Preamble
    line: int
    error_column: str | None = None
    cpu_time: bool = False
    columns: tuple[str, ...] = ()
    measurement_width: int = 0  # columns of one measurement as the header names them; 0: no header
    rows: list[Row] = field(default_factory=list)
    orphans: int = 0
    other_unit: LogLine | None = None  # of a column, as printed
    damaged: int = 0
    template_rows: int = 0
    avg: str | None = None
    avg_status: str | None = None
    avg_at: LogLine | None = None
    out_of_bounds: int | None = None
    out_of_bounds_status: str | None = None
    out_of_bounds_at: LogLine | None = None
    bitwise_failed: LogLine | None = None
    summaries: int = 0
    concluded: str | None = None
    rows_after_summary: int = 0

    @property
    def closed(self) -> bool:
        """Whether the summary's last line was seen."""
        return self.avg is not None

    @property
    def measurements(self) -> Iterator[Measurement]:
        """Both measurements of every row."""
        return (m for row in self.rows for m in row.measurements)

    @property
    def largest_row(self) -> Row:
        """The row of the largest message, the first of equal ones. Raises ValueError without rows."""
        return max(self.rows, key=lambda r: r.size)

    @property
    def busbw(self) -> float | None:
        """The smaller busbw in GB/s at the largest message. Of a size that repeats, the worst row counts."""
        if not self.rows:
            return None
        top = self.largest_row.size
        values = [number(m.busbw) for row in self.rows if row.size == top for m in row.measurements]
        return None if any(v is None for v in values) else min(v for v in values if v is not None)

    @property
    def highest_busbw(self) -> float:
        """The highest busbw of any measurement; 0 without rows."""
        return max((amount(m.busbw) for m in self.measurements), default=0.0)

    @property
    def mean_busbw(self) -> float:
        """Mean busbw of all measurements, which nccl-tests prints as `Avg bus bandwidth`."""
        values = [amount(m.busbw) for m in self.measurements]
        return sum(values) / len(values)

    @property
    def average_matches(self) -> bool | None:
        """Whether the printed average agrees with the rows, within rounding; None where one is missing.

        A text that is not a number (nan, a decimal comma) does not match.
        """
        if self.avg is None or not self.rows:
            return None
        printed = number(self.avg)
        if printed is None:
            return False
        # the deviation in GB/s that rounding of the printed values explains
        tolerance = 0.1 if self.highest_busbw >= 1000 else 0.01
        # %g prints six digits: 202818 for 202818.2039
        digits = 0.5 * 10.0 ** (math.floor(math.log10(abs(printed))) - 5) if printed else 0.0
        return abs(printed - self.mean_busbw) <= max(tolerance, digits)

    @property
    def wrong_rows(self) -> list[Row]:
        """Rows whose `#wrong` is above 0; the values of the old `error` column are differences."""
        return [
            r for r in self.rows if self.error_column == "#wrong" and any(m.wrong for m in r.measurements)
        ]

    @property
    def has_repeated_rows(self) -> bool:
        """True if a size occurs twice with the same type, operation and root, not in whole cycles (-N)."""
        keys = [r.key for r in self.rows if r.size > 0 and r.count > 0]
        return len(set(keys)) < len(keys) and not self.is_cyclic

    @property
    def is_cyclic(self) -> bool:
        """True if one program ran the whole size sweep several times, one after the other."""
        keys = [r.key for r in self.rows]
        cycle = len(set(keys))
        whole = self.preamble.banner is not None and self.closed and not self.summaries
        return whole and cycle < len(keys) and keys == keys[:cycle] * (len(keys) // cycle)

    @property
    def has_several_programs(self) -> bool:
        """True if two programs wrote into one table: something before it or a row occurs twice."""
        repeated = self.has_repeated_rows and not self.is_picked
        return repeated or self.preamble.has_several_programs

    @property
    def is_picked(self) -> bool:
        """Whether there are only rows, as from grep: of runs one after the other, not at the same time."""
        if self.error_column is not None or self.preamble.banner is not None or self.preamble.ranks:
            return False
        keys = [r.key for r in self.rows]
        return len(set(keys)) == 1 or all(a != b for a, b in pairwise(keys))

    @property
    def has_wrong_precision(self) -> bool:
        """Whether bandwidths below 1000 have one decimal: not the output of nccl-tests, which prints two."""
        texts = (text for m in self.measurements for text in (m.algbw, m.busbw) if "e" not in text.lower())
        printed = ((text, number(text)) for text in texts)
        return any(v is not None and v < 999.95 and len(t.partition(".")[2]) != 2 for t, v in printed)

    @property
    def is_one_rank(self) -> bool:
        """Whether a table is of one rank: busbw is 0 in rows where two ranks would show algbw / 2.

        Small messages only show latencies, so 0.01 and 0.00 say nothing.
        """
        first = [r.out_of_place for r in self.rows]
        if len(self.preamble.ranks) > 1 or any(number(m.busbw) for m in first):
            return False
        return any(amount(m.algbw) > LEAST_RESOLVED for m in first)


def rounding(text: str) -> float:
    """Half of the last printed digit, the largest difference between a printed and the real value."""
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    power = int(exponent[:5]) if exponent else 0
    return 0.5 * 10.0 ** max(-300, min(300, power - decimals))


def whole(digits: str) -> int:
    """An integer of at most 20 digits; longer ones are not counts, and int() refuses 4,300."""
    return int(digits[:20])


def number(text: str) -> float | None:
    """The value of a printed field; None for N/A, nan and inf, which are not measurements."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def amount(text: str) -> float:
    """The value of a printed field; 0 if it is not a measurement."""
    return number(text) or 0.0


Stage = Literal["before", "table", "after"]
"""The place of a line: before its program's first row, among its rows, or after its summary."""
