"""The tests compare this of a log that was read: one object with every table of a log, in plain JSON types.

Flat fields are those of the first table with rows; `runs` has every table; all others are about the whole
log. Numbers printed with a meaningful width (times, averages) are texts in `largest_row` and `avg_*`.
"""

from __future__ import annotations

from typing import Any

from busbar.judge.nccl.log.reader import ParsedLog
from busbar.judge.nccl.log.records import Measurement, Row, Run, amount, number, rounding
from busbar.judge.nccl.log.tables import COLLECTIVES, infer, ratio

MAX_WARNINGS = 6
WARNING_WIDTH = 140


def as_object(log: ParsedLog) -> dict[str, Any]:
    """The whole log as one JSON-ready object."""
    first = next((r for r in log.runs if r.rows), None)
    evidence = log.evidence
    return {
        **_flat(first, log),
        "usable_result": first is not None and usable(first),
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
    largest = first.largest_row if first else None
    return {
        "collective": infer(run).name if run else None,
        "n_rows": len(first.rows) if first else 0,
        "largest_size": largest.size if largest else None,
        "busbw_out_of_place_at_largest": number(largest.out_of_place.busbw) if largest else None,
        "busbw_in_place_at_largest": number(largest.in_place.busbw) if largest else None,
        "max_busbw_out_of_place": _highest(first, 0),
        "max_busbw_in_place": _highest(first, 1),
        "avg_bus_bandwidth": run.avg if run else None,
        "out_of_bounds": run.out_of_bounds if run else None,
        "wrong_rows": first.wrong_rows if first else None,
        "check_disabled": first.check_disabled if first else None,
    }


def _run(run: Run) -> dict[str, Any]:
    collective = infer(run).name
    out: dict[str, Any] = {
        "error_column": run.error_column,
        "n_rows": len(run.rows),
        "n_interleaved_rows": sum(r.interleaved for r in run.rows),
        "avg_bus_bandwidth_as_printed": run.avg,
        "out_of_bounds": run.out_of_bounds,
        "out_of_bounds_status": run.out_of_bounds_status,
    }
    if run.rows:
        last = run.largest_row
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
            "max_busbw_out_of_place": _highest(run, 0),
            "max_busbw_in_place": _highest(run, 1),
            "rows_with_wrong": run.wrong_rows,
            "check_disabled": run.check_disabled,
        }
        k = ratio(run)
        if k is not None:
            out["busbw_over_algbw"] = round(k, 4)
            if collective == "all_reduce" and 0 < k < 2:
                out["implied_allreduce_ranks"] = round(2 / (2 - k), 1)
        out["avg_recomputed_from_rows"] = round(run.mean_busbw, 4)
        out["avg_matches_rows"] = run.average_matches
    out["collective_printed"] = run.preamble.name or run.preamble.command
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
        "out_of_place": _measurement(row.out_of_place),
        "in_place": _measurement(row.in_place),
        "line": row.at.line,
        "interleaved": row.interleaved,
    }


def _measurement(measurement: Measurement) -> dict[str, Any]:
    return {
        "time": number(measurement.time),
        "algbw": number(measurement.algbw),
        "busbw": number(measurement.busbw),
        "errors": measurement.errors,
    }


def _highest(run: Run | None, index: int) -> float | None:
    """Highest busbw out of place (0) or in place (1)."""
    if run is None or not run.rows:
        return None
    return max(amount(row.measurements[index].busbw) for row in run.rows)


def usable(run: Run) -> bool:
    """Whether a table may give a number at all: real values, correct data, one program, several ranks."""
    if not all(number(m.busbw) for m in run.largest_row.measurements):
        return False
    if run.wrong_rows or run.out_of_bounds_status == "FAILED":
        return False
    if infer(run).name not in COLLECTIVES or _contradicts_itself(run):
        return False
    return not run.has_several_programs and not run.has_wrong_precision


def _contradicts_itself(run: Run) -> bool:
    """True if no single factor between busbw and algbw explains all rows, within their rounding."""
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
