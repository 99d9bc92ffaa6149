"""Which collective a table is of, and the factor between its algorithm and bus bandwidth.

Older nccl-tests never name the collective; then (redop, root, busbw/algbw) must tell. Factors: nccl-tests
doc/PERFORMANCE.md and each *GetBw in src/.
"""

from __future__ import annotations

from dataclasses import dataclass

from busbar.nccl.log.records import Row, Run, number

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "alltoall",
    "alltoallv",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "sendrecv",
    "hypercube",
)
# below this many GB/s two decimals are too few to compare busbw with algbw
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
    """Mean busbw/algbw of the rows whose algbw is large enough to tell; None where none is."""
    values = []
    for row in run.rows:
        algbw, busbw = number(row.out_of_place.algbw), number(row.out_of_place.busbw)
        if algbw is not None and busbw is not None and algbw >= RESOLVABLE_GBPS:
            values.append(busbw / algbw)
    return sum(values) / len(values) if values else None


@dataclass(frozen=True, slots=True)
class Inferred:
    """`certain` is False where the columns fit more than one collective."""

    name: str | None
    certain: bool
    why: str


def from_name(printed: str) -> str | None:
    """all_reduce_perf_mpi -> all_reduce; None for another program."""
    base = printed.rsplit("/", 1)[-1].partition("_perf")[0].lower()
    return base if base in COLLECTIVES else None


def infer(run: Run) -> Inferred:
    """The collective of RUN: its printed name, else what (redop, root, ratio) fit."""
    if run.preamble.name is not None:
        name = from_name(run.preamble.name)
        return Inferred(name, name is not None, f"printed: {run.preamble.name}")
    if not run.rows:
        return _hinted(run, "no row and no name")
    row = run.largest_row
    k = _best_ratio(run)
    if k is None or k == 0:
        # one rank: busbw is 0 whatever ran
        return _hinted(run, "busbw is 0 in every row")
    kind = (row.redop, None if row.root is None else ("-1" if row.root < 0 else "root"))
    skipped = _in_place_unchecked(run)
    if kind[0] not in (None, "", "none"):
        return _reducing(kind[1], k, skipped, _ranks(run))
    return _moving(kind, k, skipped)


def _hinted(run: Run, why: str) -> Inferred:
    """What a shell line before the table names: better than nothing to a reader, never certain."""
    name = from_name(run.preamble.command) if run.preamble.command else None
    return Inferred(name, False, why)


def _reducing(root: str | None, k: float, skipped: bool, ranks: int | None) -> Inferred:
    if root == "root":
        return Inferred("reduce", True, "redop and a root")
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
