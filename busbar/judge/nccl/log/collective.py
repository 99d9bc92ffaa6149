"""Finds the collective of a table, and the factor between its algorithm and bus bandwidth.

Older nccl-tests never name the collective; then it follows from (redop, root, busbw/algbw). Factors:
nccl-tests doc/PERFORMANCE.md and each *GetBw in src/.
"""

from __future__ import annotations

from dataclasses import dataclass

from busbar.judge.nccl.log.records import Row, Run, number, rounding

COLLECTIVES = (
    "all_reduce", "all_gather", "reduce_scatter", "alltoall", "alltoallv", "broadcast", "reduce", "gather",
    "scatter", "sendrecv", "hypercube",
)  # fmt: skip
BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float", "int"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}
# collectives whose rows count the part of one rank, not the whole message
IN_PARTS = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter", "hypercube")
WHOLE = ("all_reduce", "broadcast", "reduce", "sendrecv")
# collectives that print an operation, and those that print a root; others print none, and -1
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
MOVING = ("all_gather", "alltoall", "broadcast", "gather", "scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
# below this bandwidth in GB/s, two decimals are too few to compare busbw with algbw
RESOLVABLE_GBPS = 50.0


def factor(collective: str, ranks: int) -> float:
    """busbw / algbw of COLLECTIVE over RANKS ranks. Raises KeyError for an unknown one."""
    n = float(ranks)
    if n < 1:
        raise KeyError(collective)
    share = (n - 1) / n
    return {
        "all_reduce": 2 * share,
        "all_gather": share,
        "reduce_scatter": share,
        "alltoall": share,
        "alltoallv": share,
        "gather": share,
        "scatter": share,
        "hypercube": share,
        "broadcast": 1.0,
        "reduce": 1.0,
        "sendrecv": 1.0,
    }[collective]


def ratio(run: Run) -> float | None:
    """Mean busbw/algbw of the rows whose algbw is large enough to compare; None without such rows."""
    values = []
    for row in run.rows:
        algbw, busbw = number(row.out_of_place.algbw), number(row.out_of_place.busbw)
        if algbw is not None and busbw is not None and algbw >= RESOLVABLE_GBPS:
            values.append(busbw / algbw)
    return sum(values) / len(values) if values else None


def parts(run: Run) -> int | None:
    """Size / (count x type size): 1 where the count is the whole message, n where it is a rank's part.

    None where no row tells, or the rows contradict each other.
    """
    found = {row.size / (row.count * BYTES[row.type]) for row in run.rows if row.count and row.size}
    if len(found) != 1 or not (value := found.pop()).is_integer():
        return None
    return int(value)


def contradicts_itself(run: Run) -> bool:
    """Whether no single factor between busbw and algbw explains all rows, within their rounding."""
    low, high = 0.0, float("inf")
    for row in run.rows:
        for measurement in row.measurements:
            algbw, busbw = number(measurement.algbw), number(measurement.busbw)
            if algbw is None or busbw is None:
                continue
            # a little wider than half the last digit: the program rounded a value that it did not print
            below, above = 1.05 * rounding(measurement.busbw), 1.05 * rounding(measurement.algbw)
            low = max(low, (busbw - below) / (algbw + above))
            if algbw > above:
                high = min(high, (busbw + below) / (algbw - above))
    return low > high


def is_scaled(run: Run) -> bool:
    """Whether algbw is scaled to busbw already, as nccl-tests 2.0.0 does where each rank has one part.

    Its all_gather and reduce_scatter print (n-1)/n of size / time as algbw, and the same as busbw.
    """
    n = parts(run)
    if n is None or n < 2 or run.error_column == "#wrong":
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


@dataclass(frozen=True, slots=True)
class Inferred:
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
    if run.preamble.name is not None:
        name = from_name(run.preamble.name)
        odd = _odd_column(name, run.rows)
        if odd:
            return Inferred(name, False, f"printed: {run.preamble.name}, but its rows have {odd}")
        return Inferred(name, name is not None, f"printed: {run.preamble.name}")
    if not run.rows:
        return _hinted(run, "no row and no name")
    k = _best_ratio(run)
    if k is None or k == 0:
        # one rank: busbw is 0 whatever ran
        return _hinted(run, "busbw is 0 in every row")
    found = _of_columns(run, k)
    n = parts(run)
    if n is not None and n != 1 and found.name in WHOLE:
        return Inferred(found.name, False, f"{found.why}, but a count is 1/{n} of its message")
    if n == 1 and found.name in IN_PARTS:
        return Inferred(found.name, False, f"{found.why}, but a count is the whole message")
    command = from_name(run.preamble.command) if run.preamble.command else None
    if command == found.name and not found.certain and command is not None:
        return Inferred(command, _fits_alone(command, n), f"{found.why}; the command line names it")
    if command in ("sendrecv", "all_reduce", "reduce_scatter") and not found.certain:
        return Inferred(command, False, f"the command line names it; {found.why}")
    return found


def _odd_column(name: str | None, rows: list[Row]) -> str | None:
    """The first column that contradicts the collective NAME: an operation or root, or its absence."""
    if name not in (*REDUCING, *MOVING):
        return None
    for row in rows:
        if row.redop is not None and (row.redop in ("", "none")) == (name in REDUCING):
            return f"redop {row.redop or 'empty'}"
        if row.root is not None and (row.root >= 0) != (name in ROOTED):
            return f"root {row.root}"
    return None


def _of_columns(run: Run, k: float) -> Inferred:
    row = run.largest_row
    kind = (row.redop, None if row.root is None else ("-1" if row.root < 0 else "root"))
    skipped = _in_place_unchecked(run)
    if is_scaled(run):
        reducing = kind[0] not in (None, "", "none")
        name = "reduce_scatter" if reducing else "all_gather"
        return Inferred(name, True, "a count is a rank's part, and algbw is scaled as by nccl-tests 2.0.0")
    if kind[0] not in (None, "", "none"):
        return _reducing(kind[1], k, skipped, _ranks(run), parts(run))
    return _moving(kind, k, skipped)


def _fits_alone(name: str, n: int | None) -> bool:
    """Whether the count fits the collective NAME, for cases that columns and ratio do not decide."""
    return n is not None and ((name in IN_PARTS and n > 1) or (name in WHOLE and n == 1))


def _hinted(run: Run, why: str) -> Inferred:
    """The collective named by a shell line before the table, which is only a hint and never certain."""
    name = from_name(run.preamble.command) if run.preamble.command else None
    return Inferred(name, False, why)


def _reducing(root: str | None, k: float, skipped: bool, ranks: int | None, n: int | None) -> Inferred:
    if root == "root":
        return Inferred("reduce", True, "redop and a root")
    if n is not None and n > 1:
        fits = abs(k - (n - 1) / n) < 0.05
        return Inferred("reduce_scatter", fits, f"redop, no root, a count is 1/{n} of its message")
    if k > 1 + 0.05:
        return Inferred("all_reduce", True, f"redop, no root, busbw/algbw {k:.3f} > 1")
    if k < 1 - 0.05:
        return Inferred("reduce_scatter", True, f"redop, no root, busbw/algbw {k:.3f} < 1")
    if skipped:
        return Inferred(
            "sendrecv", ranks is not None and ranks > 2, "busbw = algbw, in-place measurement unchecked"
        )
    certain = ranks == 2
    return Inferred(
        "all_reduce", certain, "busbw = algbw: all_reduce of two ranks, or sendrecv before 2.13.1"
    )


def _moving(kind: tuple[str | None, str | None], k: float, skipped: bool) -> Inferred:
    redop, root = kind
    if root == "root":
        if k > 0.97:
            return Inferred("broadcast", k > 0.99, "a root, busbw = algbw")
        return Inferred("gather", False, "a root, busbw < algbw: gather or scatter")
    if redop == "":
        return Inferred("alltoall", True, "redop column without a redop")
    if skipped:
        return Inferred("alltoall", True, "no redop, in-place measurement unchecked")
    return Inferred("all_gather", redop == "none" or k < 0.97, "no redop, no root")


def _best_ratio(run: Run) -> float | None:
    mean = ratio(run)
    if mean is not None:
        return mean
    best: tuple[float, float] | None = None
    for row in run.rows:
        algbw, busbw = number(row.out_of_place.algbw), number(row.out_of_place.busbw)
        if algbw and busbw is not None and (best is None or algbw > best[0]):
            best = (algbw, busbw / algbw)
    return best[1] if best else None


def _in_place_unchecked(run: Run) -> bool:
    def only_in_place(row: Row) -> bool:
        return row.in_place.unchecked and not row.out_of_place.unchecked

    return all(only_in_place(r) for r in run.rows)


def _ranks(run: Run) -> int | None:
    ranks = {r.rank for r in run.preamble.ranks if r.group == 0}
    return max(ranks) + 1 if ranks else None
