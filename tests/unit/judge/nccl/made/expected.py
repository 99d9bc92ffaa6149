"""What must be read from the tables of a made log, computed from the numbers that were printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.unit.judge.nccl.made.lines import Bounds, Half, Row

RESOLVABLE = 50.0  # GB/s; below it two decimals are too few to compare busbw with algbw


@dataclass
class Table:
    """A table as its lines state it."""

    error_column: str | None = None
    collective: str | None = None
    printed: str | None = None
    rows: list[tuple[int, Row]] = field(default_factory=list)  # number of its line, row
    average: str | None = None
    bounds: Bounds | None = None


def halves(table: Table) -> list[Half]:
    """Both halves of all rows."""
    return [h for _, r in table.rows for h in (r.out_of_place, r.in_place)]


def largest(table: Table) -> Row:
    """The row of the largest message, the first of equals."""
    return max((r for _, r in table.rows), key=lambda r: r.size)


def highest(table: Table, half: str) -> float:
    """The highest busbw of one half."""
    return max(float(getattr(r, half).busbw) for _, r in table.rows)


def wrong_rows(table: Table) -> int | None:
    """Rows with a count above 0 under `#wrong`; None under `error` and without a header."""
    if table.error_column != "#wrong":
        return None
    return sum(any(h.errors not in ("0", "N/A") for h in (r.out_of_place, r.in_place)) for _, r in table.rows)


def unchecked(table: Table) -> bool:
    """Whether nothing was compared."""
    return all(h.errors == "N/A" for h in halves(table))


def described(table: Table) -> dict[str, Any]:
    """One entry of `runs`."""
    out: dict[str, Any] = {
        "error_column": table.error_column,
        "n_rows": len(table.rows),
        "n_interleaved_rows": sum(r.interleaved for _, r in table.rows),
        "avg_bus_bandwidth_as_printed": table.average,
        "out_of_bounds": table.bounds.count if table.bounds else None,
        "out_of_bounds_status": table.bounds.status if table.bounds else None,
        "collective_printed": table.printed,
        "collective": table.collective,
        "rows": [_row(number, row) for number, row in table.rows],
    }
    if table.rows:
        out |= _measured(table)
    return out


def _measured(table: Table) -> dict[str, Any]:
    top = largest(table)
    out: dict[str, Any] = {
        "largest_size": top.size,
        "largest_row": {
            "oop_time": top.out_of_place.time,
            "oop_algbw": top.out_of_place.algbw,
            "oop_busbw": top.out_of_place.busbw,
            "oop_err": top.out_of_place.errors,
            "ip_busbw": top.in_place.busbw,
            "ip_err": top.in_place.errors,
        },
        "max_busbw_out_of_place": highest(table, "out_of_place"),
        "max_busbw_in_place": highest(table, "in_place"),
        "rows_with_wrong": wrong_rows(table),
        "check_disabled": unchecked(table),
    }
    ratios = [
        float(r.out_of_place.busbw) / float(r.out_of_place.algbw)
        for _, r in table.rows
        if float(r.out_of_place.algbw) >= RESOLVABLE
    ]
    if ratios:
        k = sum(ratios) / len(ratios)
        out["busbw_over_algbw"] = round(k, 4)
        if table.collective == "all_reduce" and 0 < k < 2:
            out["implied_allreduce_ranks"] = round(2 / (2 - k), 1)
    speeds = [float(h.busbw) for h in halves(table)]
    mean = sum(speeds) / len(speeds)
    out["avg_recomputed_from_rows"] = round(mean, 4)
    near = 0.1 if max(speeds) >= 1000 else 0.01
    out["avg_matches_rows"] = None if table.average is None else abs(float(table.average) - mean) <= near
    return out


def _row(number: int, row: Row) -> dict[str, Any]:
    def half(h: Half) -> dict[str, Any]:
        return {
            "time": float(h.time), "algbw": float(h.algbw), "busbw": float(h.busbw), "errors": h.errors,
        }  # fmt: skip

    return {
        "size": row.size, "count": row.count, "type": row.type, "redop": row.redop, "root": row.root,
        "out_of_place": half(row.out_of_place), "in_place": half(row.in_place),
        "line": number, "interleaved": row.interleaved,
    }  # fmt: skip
