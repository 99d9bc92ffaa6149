"""What must be read from the tables of a made log, computed from the numbers that were printed."""

from dataclasses import asdict, dataclass, field
from typing import Any

from tests.unit.judge.nccl.made.lines import Bounds, Half, Row


@dataclass
class Table:
    error_column: str | None = None
    collective: str | None = None
    printed: str | None = None
    rows: list[tuple[int, Row]] = field(default_factory=list)  # number of its line, row
    average: str | None = None
    bounds: Bounds | None = None


def described(table: Table) -> dict[str, Any]:
    """One entry of `runs`."""
    out: dict[str, Any] = {
        "error_column": table.error_column,
        "n_rows": len(table.rows),
        "avg_bus_bandwidth_as_printed": table.average,
        "out_of_bounds": table.bounds.count if table.bounds else None,
        "out_of_bounds_status": table.bounds.status if table.bounds else None,
        "collective_printed": table.printed,
        "collective": table.collective,
        "rows": [_row(number, row) for number, row in table.rows],
    }
    halves = [half for _, row in table.rows for half in (row.out_of_place, row.in_place)]
    if halves:
        speeds = [float(half.busbw) for half in halves]
        near = 0.1 if max(speeds) >= 1000 else 0.01
        off = None if table.average is None else abs(float(table.average) - sum(speeds) / len(speeds))
        out["rows_with_wrong"] = _wrong_rows(table)
        out["check_disabled"] = all(half.errors == "N/A" for half in halves)
        out["avg_matches_rows"] = None if off is None else off <= near
    return out


def _wrong_rows(table: Table) -> int | None:
    """Rows with a count above 0 under `#wrong`; None under `error` and without a header."""
    if table.error_column != "#wrong":
        return None
    return sum(any(h.errors not in ("0", "N/A") for h in (r.out_of_place, r.in_place)) for _, r in table.rows)


def _row(number: int, row: Row) -> dict[str, Any]:
    def half(printed: Half) -> dict[str, Any]:
        return {**asdict(printed), "slowest": ""}

    found = {**asdict(row), "at": number}
    del found["collective"]
    return {**found, "out_of_place": half(row.out_of_place), "in_place": half(row.in_place)}
