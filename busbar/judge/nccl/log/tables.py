"""From lines to tables: one Run per table that nccl-tests printed.

A table starts at its header line, or at a row if the header was cut off. Lines before a header (the program's
name, its arguments, the device list) belong to the next table. Nothing here judges: rows that were repeated,
cut or orphaned are counted, so that the gates can refuse them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from busbar.judge.nccl.log import patterns as p
from busbar.judge.nccl.log.records import (
    Asked,
    Banner,
    LogLine,
    Measurement,
    Preamble,
    Rank,
    Row,
    Run,
    Stage,
    number,
    rounding,
    whole,
)


class Kind(NamedTuple):
    """A collective as its rows show it.

    `shares`: busbw / algbw in multiples of (n-1)/n; 0: both are the same. `counts`: whether a row counts the
    whole message or the part of one rank. `redop`: whether it prints an operation (None: either).
    """

    shares: int
    counts: Literal["whole", "part", ""]
    redop: bool | None = None
    root: bool = False


COLLECTIVES = {
    "all_reduce": Kind(2, "whole", redop=True),
    "all_gather": Kind(1, "part", redop=False),
    "reduce_scatter": Kind(1, "part", redop=True),
    "alltoall": Kind(1, "part", redop=False),
    "alltoallv": Kind(1, ""),
    "broadcast": Kind(0, "whole", redop=False, root=True),
    "reduce": Kind(0, "whole", redop=True, root=True),
    "gather": Kind(1, "part", redop=False, root=True),
    "scatter": Kind(1, "part", redop=False, root=True),
    "sendrecv": Kind(0, "whole"),
    "hypercube": Kind(0, "part"),
}
IN_PARTS = tuple(name for name, kind in COLLECTIVES.items() if kind.counts == "part")
WHOLE = tuple(name for name, kind in COLLECTIVES.items() if kind.counts == "whole")
# below this bandwidth in GB/s, two decimals are too few to compare busbw with algbw
RESOLVABLE_GBPS = 50.0


def factor(collective: str, ranks: int) -> float:
    """busbw / algbw of COLLECTIVE over RANKS ranks. Raises KeyError for an unknown one."""
    if ranks < 1:
        raise KeyError(collective)
    shares = COLLECTIVES[collective].shares
    return shares * (ranks - 1) / ranks if shares else 1.0


def ratio(run: Run) -> float | None:
    """Mean busbw/algbw of the rows whose algbw is large enough to compare; None without such rows."""
    values = [busbw / algbw for algbw, busbw in _bandwidths(run) if algbw >= RESOLVABLE_GBPS]
    return sum(values) / len(values) if values else None


def _bandwidths(run: Run) -> Iterator[tuple[float, float]]:
    """algbw and busbw of the out-of-place measurements that have both."""
    for row in run.rows:
        algbw, busbw = number(row.out_of_place.algbw), number(row.out_of_place.busbw)
        if algbw is not None and busbw is not None:
            yield algbw, busbw


def parts(run: Run) -> int | None:
    """Size / (count x type size): 1 where the count is the whole message, n where it is a rank's part.

    None where no row tells, or the rows contradict each other.
    """
    found = {row.size / (row.count * p.BYTES[row.type]) for row in run.rows if row.count and row.size}
    if len(found) != 1 or not (value := found.pop()).is_integer():
        return None
    return int(value)


def is_scaled(run: Run) -> bool:
    """Whether algbw is scaled to busbw already: (n-1)/n of size / time, and the same as busbw.

    hypercube prints it so, and all_gather and reduce_scatter of nccl-tests 2.0.0.
    """
    n, named = parts(run), from_name(run.preamble.name or "")
    if n is None or n < 2 or (run.error_column == "#wrong" and named != "hypercube"):
        return False
    if any(m.algbw != m.busbw for m in run.measurements):
        return False
    share = (n - 1) / n
    for row in run.rows:
        for m in row.measurements:
            time, algbw = number(m.time), number(m.algbw)
            if time is None or algbw is None or time <= rounding(m.time):
                return False
            slack = 1.05 * rounding(m.algbw)
            least = share * row.size / (time + rounding(m.time)) / 1000
            most = share * row.size / (time - rounding(m.time)) / 1000
            if not least - slack <= algbw <= most + slack:
                return False
    return True


class Inferred(NamedTuple):
    """The collective of a table; `certain` is False if the columns fit more than one."""

    name: str | None
    certain: bool
    why: str


def from_name(printed: str) -> str | None:
    """all_reduce_perf_mpi -> all_reduce; None for another program."""
    base = printed.rsplit("/", 1)[-1].partition("_perf")[0].lower()
    return base if base in COLLECTIVES else None


def infer(run: Run) -> Inferred:
    """The collective of RUN: its printed name, else the one that fits (redop, root, ratio, count)."""
    command = from_name(run.preamble.command) if run.preamble.command else None
    if run.preamble.name is not None:
        name, printed = from_name(run.preamble.name), f"printed: {run.preamble.name}"
        odd = _odd_column(name, run.rows)
        if odd:
            return Inferred(name, False, f"{printed}, but its rows have {odd}")
        return Inferred(name, name is not None, printed)
    # a shell line before the table is only a hint, and never certain
    if not run.rows:
        return Inferred(command, False, "no row and no name")
    k = ratio(run)
    if k is None:
        algbw, busbw = max(_bandwidths(run), key=lambda pair: pair[0], default=(0.0, 0.0))
        k = busbw / algbw if algbw else 0.0
    if k == 0:
        # one rank: busbw is 0 whatever ran
        return Inferred(command, False, "busbw is 0 in every row")
    found = _of_columns(run, k)
    n = parts(run)
    if n is not None and n != 1 and found.name in WHOLE:
        return Inferred(found.name, False, f"{found.why}, but a count is 1/{n} of its message")
    if n == 1 and found.name in IN_PARTS:
        return Inferred(found.name, False, f"{found.why}, but a count is the whole message")
    if command is not None and command == found.name and not found.certain:
        fits = n is not None and (command in IN_PARTS if n > 1 else command in WHOLE)
        return Inferred(command, fits, f"{found.why}; the command line names it")
    if command in ("sendrecv", "all_reduce", "reduce_scatter") and not found.certain:
        return Inferred(command, False, f"the command line names it; {found.why}")
    return found


def _odd_column(name: str | None, rows: list[Row]) -> str | None:
    """The first column that contradicts the collective NAME: an operation or root, or its absence."""
    kind = COLLECTIVES.get(name or "")
    if kind is None or kind.redop is None:
        return None
    for row in rows:
        if row.redop is not None and (row.redop not in ("", "none")) != kind.redop:
            return f"redop {row.redop or 'empty'}"
        if row.root is not None and (row.root >= 0) != kind.root:
            return f"root {row.root}"
    return None


def _of_columns(run: Run, k: float) -> Inferred:
    """The collective whose columns RUN has, with busbw = K x algbw."""
    row, n = run.largest_row, parts(run)
    reduces, rooted = row.redop not in (None, "", "none"), row.root is not None and row.root >= 0
    skipped = all(each.is_out_of_place_only for each in run.rows)
    if is_scaled(run):
        name = "reduce_scatter" if reduces else "all_gather"
        return Inferred(name, True, "a count is a rank's part, and algbw is scaled as by nccl-tests 2.0.0")
    if not reduces:
        if rooted and k > 0.97:
            return Inferred("broadcast", k > 0.99, "a root, busbw = algbw")
        if rooted:
            return Inferred("gather", False, "a root, busbw < algbw: gather or scatter")
        if row.redop == "":
            return Inferred("alltoall", True, "redop column without a redop")
        if skipped:
            return Inferred("alltoall", True, "no redop, in-place measurement unchecked")
        return Inferred("all_gather", row.redop == "none" or k < 0.97, "no redop, no root")
    if rooted:
        return Inferred("reduce", True, "redop and a root")
    if n is not None and n > 1:
        fits = abs(k - (n - 1) / n) < 0.05
        return Inferred("reduce_scatter", fits, f"redop, no root, a count is 1/{n} of its message")
    if k > 1 + 0.05:
        return Inferred("all_reduce", True, f"redop, no root, busbw/algbw {k:.3f} > 1")
    if k < 1 - 0.05:
        return Inferred("reduce_scatter", True, f"redop, no root, busbw/algbw {k:.3f} < 1")
    ranks = max((r.rank + 1 for r in run.preamble.ranks if r.group == 0), default=0)
    if skipped:
        return Inferred("sendrecv", ranks > 2, "busbw = algbw, in-place measurement unchecked")
    why = "busbw = algbw: all_reduce of two ranks, or sendrecv before 2.13.1"
    return Inferred("all_reduce", ranks == 2, why)


QUOTES = ("`", '"', "'", "(", "\u201c", "\u2018")
# three words in a row, which no prefix has
WORDS = re.compile(
    r"(?<![^\s(])[A-Za-z][a-z]{0,30},? [A-Za-z]?[a-z]{1,30},? [A-Za-z]?[a-z]{1,30}(?=[\s:;,.]|$)"
)
RECORD = re.compile(r"""["<>{}|;]|\\[nt]""")  # signs that no row has
ONLY_WORDS = re.compile(r"[A-Za-z][a-z]{0,30}(?:,? [A-Za-z]?[a-z]{0,30}){1,8} ")
MAX_ROWS = 16384  # of all tables; a run has one for each size
MAX_TABLES = 4096
VALUE_SIGNS = "+-Nni"  # what p.VALUE may start with besides a digit


@dataclass
class _Pending:
    """A row whose beginning was printed, then interrupted; the numbers come on later lines."""

    size: int
    count: int
    type: str
    middle: list[str]
    values: list[str]
    line: int
    text: str
    before: int = 0  # words of a collector's prefix that stood before it


class RunBuilder:
    """Feed it cleaned lines with `add`; read `runs` after `finish`."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.hosts: set[str] = set()  # of all device lists so far
        self.listed: list[tuple[Rank, Preamble]] = []  # new ones, for who sorts NCCL's messages
        self._preamble = Preamble()
        self._pending: _Pending | None = None
        self._command: str | None = None
        self._asked = Asked()
        self.foreign = 0  # rows inside a record of a form that is not known, or beyond what is kept
        self._rows = 0

    @property
    def current(self) -> Run | None:
        """The table that rows belong to now."""
        return self.runs[-1] if self.runs else None

    @property
    def dangling(self) -> Preamble | None:
        """A preamble without a table after it: the program hung or was killed."""
        empty = self._preamble.banner is None and not self._preamble.ranks and self._preamble.name is None
        return None if empty else self._preamble

    @property
    def started(self) -> bool:
        """Whether a program printed anything."""
        return bool(self.runs) or self._preamble.line is not None

    @property
    def stage(self) -> Stage:
        """Where the reader is in the output of the current program."""
        run = self.current
        if run is None or self._preamble.line is not None:
            return "before"
        if run.closed:
            return "after"
        return "table" if run.rows else "before"

    @property
    def program(self) -> tuple[Preamble, int]:
        """The program in whose part of the log the reader is, and the number of its rows so far."""
        run = self.current
        if run is None or self._preamble.line is not None:
            return self._preamble, 0
        return run.preamble, len(run.rows)

    def add(self, text: str, line: int) -> None:
        """Take one cleaned line that is not an NCCL message. Unknown text is ignored."""
        if len(self.runs) > MAX_TABLES:
            self.foreign += 1
            return
        # "# Collective test starting: all_reduce_perf" is no command, also behind a prefix
        if "_perf" in text and text[0] != "#" and "# Coll" not in text and (match := p.COMMAND.search(text)):
            asked = _asked(text, match)
            # of several commands before one table it is not known which one printed it
            self._asked = asked if self._command is None or asked == self._asked else Asked()
            self._command = match[1]
        if text.startswith("#") or "# " in text:
            hash_at = text.find("#")
            if _is_prose(text[:hash_at]):
                return
            if self._comment(text[hash_at:], line):
                return
        self._row(text, line)

    def finish(self) -> None:
        """Count rows that were not printed completely."""
        self._drop_pending()

    # ---- lines that start with '#' ----------------------------------------------------------------------

    def _comment(self, text: str, line: int) -> bool:
        if (match := p.HEADER.match(text)) is not None:
            self._header(text, line, match)
        elif (match := p.RANK.match(text)) is not None:
            self._rank(match, line)
        elif (match := p.BANNER.match(text)) is not None:
            self._begin("banner", _banner(text, match, line), line)
        elif (match := p.TESTS_VERSION.match(text)) is not None:
            self._begin("tests_version", match[1], line)
            self._preamble.library = int(match[2]) if match[2] is not None else None
        elif (match := p.STARTING.match(text)) is not None:
            self._begin("name", match[1], line)
        elif p.UNITS.match(text):
            # nccl-tests prints GB/s and us: numbers in other units cannot be judged
            if self.current is not None and (other := p.OTHER_UNIT.search(text)) is not None:
                self.current.other_unit = LogLine(other[0], line, text)
        elif (match := p.REDUCING.match(text)) is not None:
            self._preamble.reduced_max = whole(match[1])
        elif (match := p.OUT_OF_BOUNDS.match(text)) is not None:
            self._out_of_bounds(match, line)
        elif (match := p.BITWISE.match(text)) is not None:
            if self.current is not None and (match[2] == "FAILED" or whole(match[1])):
                self.current.bitwise_failed = LogLine(match[1], line, text)
        elif (match := p.AVG.match(text)) is not None:
            self._avg(match, line)
        elif (match := p.CONCLUDED.match(text)) is not None:
            if self.current is not None:
                self.current.concluded = match[1]
        else:
            # "#  Rank  ..." cut short, "#", "# Using devices", or a shell prompt: nothing to keep
            return text.startswith("#") and p.ROW.search(text) is None
        return True

    def _begin(self, what: str, value: Any, line: int) -> None:
        """Set WHAT a program prints before its table; a second program prints the same again."""
        if getattr(self._preamble, what) is not None:
            self._preamble.repeats += 1
        self._preamble.line = self._preamble.line or line
        setattr(self._preamble, what, value)

    def _rank(self, match: re.Match[str], line: int) -> None:
        rank = Rank(
            whole(match["rank"]), whole(match["group"] or "0"), whole(match["pid"]), match["host"],
            whole(match["device"]), match["gpu"].strip(), LogLine("", line, match.string),
            match["bus"].strip(),
        )  # fmt: skip
        self._preamble.ranks.append(rank)
        self._preamble.line = self._preamble.line or line
        self.hosts.add(rank.host)
        self.listed.append((rank, self._preamble))

    def _header(self, text: str, line: int, match: re.Match[str]) -> None:
        self._drop_pending()
        before, preamble = self.current, self._preamble
        if preamble.line is None and before is not None and not before.rows:
            # a second header right after the first: two programs, one preamble between them
            preamble = before.preamble
            preamble.repeats += 1
        preamble.command, self._command = self._command or preamble.command, None
        preamble.asked, self._asked = self._asked, Asked()
        run = Run(
            preamble, line, match["error"], match["time"] == "cputime", tuple(match["middle"].split()),
            _measurement_width(text, match["time"]),
        )  # fmt: skip
        self.runs.append(run)
        self._preamble = Preamble()

    def _summarized(self, match: re.Match[str]) -> Run | None:
        """The table that a summary line ends; None for a text that quotes one."""
        self._drop_pending()
        return None if WORDS.search(match.string, match.end()) is not None else self.current

    def _out_of_bounds(self, match: re.Match[str], line: int) -> None:
        run = self._summarized(match)
        if run is None:
            return
        printed = whole(match[1]), match[2]
        if run.out_of_bounds is not None and printed != (run.out_of_bounds, run.out_of_bounds_status):
            run.summaries += 1
        run.out_of_bounds, run.out_of_bounds_status = printed
        run.out_of_bounds_at = LogLine("", line, match.string)

    def _avg(self, match: re.Match[str], line: int) -> None:
        run = self._summarized(match)
        # prose in place of a number is no average; placeholders are kept as printed
        if run is None or (match[1][:1].islower() and p.VALUE.match(match[1]) is None):
            return
        if match.groups() == (run.avg, run.avg_status):
            return  # the same summary again: a text quotes it
        run.summaries += run.avg is not None
        run.avg, run.avg_status, run.avg_at = match[1], match[2], LogLine("", line, match.string)

    # ---- rows -------------------------------------------------------------------------------------------

    def _run_for_row(self, line: int) -> Run:
        run = self.current
        if run is None or (self._preamble.line is not None and (run.closed or run.rows)):
            run = Run(self._preamble, line)
            self._preamble = Preamble()
            self.runs.append(run)
        run.rows_after_summary += run.closed
        return run

    def _row(self, text: str, line: int) -> None:
        match = p.row_start(text)
        if match is None:
            self._numbers(text, line)
            return
        self._drop_pending()
        run = self._run_for_row(line)
        tokens = p.STAMP.sub("", match[4]).split()
        if any("XXX" in t for t in tokens):
            run.template_rows += 1
            return
        # of a row whose header was cut off it is a guess
        wide = len(tokens) >= 16 and all(p.VALUE.match(t) for t in tokens[-16:])
        width = 2 * run.measurement_width or (16 if wide else 8)
        split = len(tokens)
        while split > 0 and len(tokens) - split < width and p.VALUE.match(tokens[split - 1]):
            split -= 1
        values, middle = tokens[split:], tokens[:split]
        if len(values) < width:
            # an interrupted row ends in its root, a number too: give it back
            middle, values = self._give_back(run, middle, values)
        before = len(text[: match.start()].split())
        pending = _Pending(whole(match[1]), whole(match[2]), match[3], middle, values, line, text, before)
        if len(values) >= width:
            self._complete(run, pending)
        elif RECORD.search(text, match.start()) is not None:
            self.foreign += 1
        else:
            self._pending = pending

    def _give_back(self, run: Run, middle: list[str], values: list[str]) -> tuple[list[str], list[str]]:
        over = len(values) % (run.measurement_width or 4)
        if not values or over == 0:
            return middle, values
        wants_root = "root" in run.columns or (bool(middle) and over == 1)
        return ([*middle, values[0]], values[1:]) if wants_root else (middle, values)

    def _numbers(self, text: str, line: int) -> None:
        """Take the rest of an interrupted row: 8, or 4 and 4 numbers (16 with -I), alone on their lines."""
        before = self._pending.before if self._pending is not None else 0
        if not before and not (text[:1].isdigit() or text[:1] in VALUE_SIGNS):
            return
        tokens = p.STAMP.sub("", text).split()[before:]
        run = self.current
        half = (run.measurement_width if run else 0) or 4
        if len(tokens) not in (half, 2 * half, 16) or not all(p.VALUE.match(t) for t in tokens):
            return
        if self._pending is None:
            if run is not None and not run.closed:
                run.orphans += 1
            return
        pending = self._pending
        pending.values.extend(tokens)
        if len(pending.values) >= 2 * half:
            self._pending = None
            pending.text = f"{pending.text} .. {' '.join(pending.values)}"
            self._complete(self._run_for_row(line), pending)

    def _complete(self, run: Run, pending: _Pending) -> None:
        values = pending.values
        half = run.measurement_width or len(values) // 2
        if len(values) != 2 * half or half < 4:
            run.damaged += 1
            return
        # after time, algbw, busbw and errors come #bitdiff and statistics, if requested
        out_of_place, in_place = (
            Measurement(v[0], v[1], v[2], v[3], v[half - 3] if half >= 8 else "")
            for v in (values[:half], values[half:])
        )
        if any(number(v) is None for v in (*values[:3], *values[half : half + 3])):
            run.template_rows += 1
            return
        self._rows += 1
        if self._rows > MAX_ROWS:
            self.foreign += 1
            return
        redop, root = _middle(run.columns, pending.middle)
        run.rows.append(
            Row(
                pending.size, pending.count, pending.type, redop, root, out_of_place, in_place,
                LogLine("", pending.line, pending.text),
            )
        )  # fmt: skip

    def _drop_pending(self) -> None:
        if self._pending is not None and self.current is not None:
            self.current.damaged += 1
        self._pending = None


def _banner(text: str, match: re.Match[str], line: int) -> Banner:
    """The arguments in TEXT, whose sizes MATCH has."""
    found = [p.VALIDATION.search(text), p.ITERATIONS.search(text), p.WARMUP.search(text)]
    validation, iterations, warmup = (whole(each[1]) if each is not None else None for each in found)
    process = p.PER_PROCESS.match(text)
    each = whole(process["threads"] or "1") * whole(process["gpus"]) if process is not None else None
    low, high, step = whole(match["min"]), whole(match["max"]), whole(match["step"])
    at = LogLine("", line, text)
    return Banner(low, high, step, match["by"], at, validation, iterations, warmup, each)


def _asked(text: str, program: re.Match[str]) -> Asked:
    """The numbers in a command line with the name of a PROGRAM; none of one that starts two programs."""
    launcher, options = text[: program.start()], text[program.end() :]
    if p.COMMAND.search(options) is not None:
        return Asked()
    found = [p.ASKED_PROCESSES.search(launcher), p.ASKED_NODES.search(launcher)]
    found += [p.ASKED_LOW.search(options), p.ASKED_HIGH.search(options)]
    return Asked(*(_bytes(each[1]) if each is not None else None for each in found))


def _bytes(text: str) -> int:
    """A size as nccl-tests reads it: 512M is 512 MiB."""
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1].upper(), 0)
    return int(text.rstrip("KMGkmg")) << unit


def _is_prose(before: str) -> bool:
    """Whether a `#` after BEFORE is a quotation inside a sentence, and not after a collector's prefix."""
    return (
        before.rstrip(" ").endswith(QUOTES)
        or WORDS.search(before) is not None
        or ONLY_WORDS.fullmatch(before) is not None
    )


def _measurement_width(header: str, time: str) -> int:
    """Columns from one `time` to the next: 4, 5 with #bitdiff, 8 with -I, 9 with both."""
    names = [n for n in header.lstrip("# ").split() if n != "timestamp"]
    starts = [i for i, n in enumerate(names) if n == time]
    return starts[1] - starts[0] if len(starts) > 1 else 0


def _middle(columns: tuple[str, ...], tokens: list[str]) -> tuple[str | None, int | None]:
    """redop and root from the columns between type and time; old alltoall prints an empty redop."""
    redop: str | None = None
    root: int | None = None
    for token in tokens:
        if token.lstrip("-").isdigit():
            root = whole(token)
        elif redop is None:
            redop = token
    if redop is None and "redop" in columns:
        redop = ""
    return redop, root
