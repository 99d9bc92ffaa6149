"""`busbar nccl parse --json`: one object with every table of a log, in plain JSON types.

Flat fields are those of the first table with rows; `runs` holds every table; the rest is log-wide. Numbers
that were printed with a meaningful width (times, averages) are kept as text in `largest_row` and `avg_*`.
"""

from __future__ import annotations

from typing import Any

from busbar.nccl.log.collective import COLLECTIVES, infer, ratio
from busbar.nccl.log.reader import ParsedLog
from busbar.nccl.log.records import Half, Row, Run, number

MAX_WARNINGS = 6
WARNING_WIDTH = 140


def as_object(log: ParsedLog) -> dict[str, Any]:
    """The whole log as one JSON-ready object."""
    first = next((r for r in log.runs if r.rows), None)
    flat = _flat(first, log)
    evidence = log.evidence
    return {
        **flat,
        "usable_result": first is not None and usable(first, log),
        "runs": [_run(r) for r in log.runs],
        "transport": list(evidence.networks),
        "via": dict(evidence.via.most_common()),
        "gdrdma": evidence.gdrdma,
        "nccl_version": list(evidence.versions),
        "topo_file": list(evidence.topology_set),
        "warnings": sorted({w[:WARNING_WIDTH] for w in evidence.warnings})[:MAX_WARNINGS],
        "test_failures": list(evidence.test_failures),
        "lines": log.lines,
        "bytes": log.bytes,
        "sha256": log.sha256,
        "truncated": log.truncated,
    }


def _flat(first: Run | None, log: ParsedLog) -> dict[str, Any]:
    run = first or (log.runs[0] if log.runs else None)
    largest = largest_row(first) if first else None
    return {
        "collective": infer(run).name if run else None,
        "n_rows": len(first.rows) if first else 0,
        "largest_size": largest.size if largest else None,
        "busbw_out_of_place_at_largest": number(largest.out_of_place.busbw) if largest else None,
        "busbw_in_place_at_largest": number(largest.in_place.busbw) if largest else None,
        "max_busbw_out_of_place": _max(first, "out_of_place"),
        "max_busbw_in_place": _max(first, "in_place"),
        "avg_bus_bandwidth": run.avg if run else None,
        "out_of_bounds": run.out_of_bounds if run else None,
        "wrong_rows": wrong_rows(first) if first else None,
        "check_disabled": check_disabled(first) if first else None,
    }


def _run(run: Run) -> dict[str, Any]:
    named = run.preamble.name or run.preamble.command
    out: dict[str, Any] = {
        "error_column": run.error_column,
        "n_rows": len(run.rows),
        "n_interleaved_rows": sum(r.interleaved for r in run.rows),
        "avg_bus_bandwidth_as_printed": run.avg,
        "out_of_bounds": run.out_of_bounds,
        "out_of_bounds_status": run.out_of_bounds_status,
    }
    collective = infer(run).name
    if run.rows:
        last = largest_row(run)
        out |= {
            "largest_size": last.size,
            "largest_row": {
                "oop_time": last.out_of_place.time,
                "oop_algbw": last.out_of_place.algbw,
                "oop_busbw": last.out_of_place.busbw,
                "oop_err": last.out_of_place.errors,
                "ip_busbw": last.in_place.busbw,
                "ip_err": last.in_place.errors,
            },
            "max_busbw_out_of_place": _max(run, "out_of_place"),
            "max_busbw_in_place": _max(run, "in_place"),
            "rows_with_wrong": wrong_rows(run),
            "check_disabled": check_disabled(run),
        }
        k = ratio(run)
        if k is not None:
            out["busbw_over_algbw"] = round(k, 4)
            if collective == "all_reduce" and 0 < k < 2:
                out["implied_allreduce_ranks"] = round(2 / (2 - k), 1)
        out["avg_recomputed_from_rows"] = round(mean_busbw(run), 4)
        out["avg_matches_rows"] = avg_matches(run)
    out["collective_printed"] = named
    out["collective"] = collective
    out["rows"] = [_row(r) for r in run.rows]
    return out


def _row(row: Row) -> dict[str, Any]:
    return {
        "size": row.size,
        "count": row.count,
        "type": row.type,
        "redop": row.redop,
        "root": row.root,
        "out_of_place": _half(row.out_of_place),
        "in_place": _half(row.in_place),
        "line": row.line,
        "interleaved": row.interleaved,
    }


def _half(half: Half) -> dict[str, Any]:
    return {
        "time": number(half.time),
        "algbw": number(half.algbw),
        "busbw": number(half.busbw),
        "errors": half.errors,
    }


def largest_row(run: Run) -> Row:
    """The row of the largest message, the first one of equals. The run must have rows."""
    return max(run.rows, key=lambda r: r.size)


def _max(run: Run | None, half: str) -> float | None:
    if run is None or not run.rows:
        return None
    return max(number(getattr(r, half).busbw) or 0.0 for r in run.rows)


def mean_busbw(run: Run) -> float:
    """Mean busbw of all rows and both halves: what nccl-tests prints as `Avg bus bandwidth`."""
    values = [number(h.busbw) or 0.0 for r in run.rows for h in (r.out_of_place, r.in_place)]
    return sum(values) / len(values)


def avg_matches(run: Run) -> bool | None:
    """Whether the printed average is that of the rows, within rounding; None where one is missing."""
    printed = number(run.avg) if run.avg is not None else None
    if printed is None or not run.rows:
        return None
    return abs(printed - mean_busbw(run)) <= avg_tolerance(run)


def avg_tolerance(run: Run) -> float:
    """Largest difference that rounding of the printed values explains (GB/s)."""
    widest = max(number(h.busbw) or 0.0 for r in run.rows for h in (r.out_of_place, r.in_place))
    return 0.1 if widest >= 1000 else 0.01


def wrong_rows(run: Run) -> int | None:
    """Rows whose `#wrong` is above 0; None for the old `error` column, whose values are differences."""
    if run.error_column != "#wrong" or not run.rows:
        return None
    return sum(any((number(h.errors) or 0) > 0 for h in (r.out_of_place, r.in_place)) for r in run.rows)


def check_disabled(run: Run) -> bool | None:
    """True where no half of any row was compared."""
    if not run.rows:
        return None
    return all(r.out_of_place.unchecked and r.in_place.unchecked for r in run.rows)


def usable(run: Run, log: ParsedLog) -> bool:
    """Whether the text may yield a number at all: real values, right data, one program, several ranks."""
    last = largest_row(run)
    values = (number(last.out_of_place.busbw), number(last.in_place.busbw))
    if not all(values) or wrong_rows(run) or run.out_of_bounds_status == "FAILED":
        return False
    if infer(run).name not in COLLECTIVES:
        return False
    return not several_programs(run) and not invented(run)


def several_programs(run: Run) -> bool:
    """Signs that two programs wrote into one table: rank 0 twice, the same row twice."""
    ranks = [(r.group, r.rank) for r in run.preamble.ranks]
    keys = [r.key for r in run.rows if r.size > 0 and r.count > 0]
    return len(set(ranks)) < len(ranks) or len(set(keys)) < len(keys) or run.preamble.repeats > 0


def invented(run: Run) -> bool:
    """Bandwidths with one decimal below 1000: nccl-tests always prints two there, so a hand wrote these."""
    halves = (h for r in run.rows for h in (r.out_of_place, r.in_place))
    return any(_one_decimal(v) for h in halves for v in (h.algbw, h.busbw))


def _one_decimal(text: str) -> bool:
    value = number(text)
    if value is None or value >= 999.95 or "e" in text.lower():
        return False
    return len(text.partition(".")[2]) != 2
