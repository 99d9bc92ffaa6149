"""Gate on the data: all of it was compared, and was correct."""

from __future__ import annotations

from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.checks.result import Check, failed, passed, unknown
from busbar.judge.nccl.log.collective import infer
from busbar.judge.nccl.log.records import LogLine, Run, number
from busbar.judge.nccl.units import exact

# collectives whose in-place measurement nccl-tests does not compare
OUT_OF_PLACE_ONLY = ("alltoall", "alltoallv", "sendrecv")


def correctness(context: Context) -> Check:
    """Check that all data was compared, and was correct."""
    if not context.judged:
        return unknown("correctness.no_table", "no table to judge")
    for run in context.log.runs:
        problem = _wrong(run)
        if problem:
            return problem
    for run in context.judged:
        problem = _not_compared(run)
        if problem:
            return problem
    first = context.judged[0]
    return passed(
        "correctness.verified",
        "every row was compared and is right",
        LogLine("", first.out_of_bounds_line or first.line, first.out_of_bounds_text),
    )


def _wrong(run: Run) -> Check | None:
    wrong = run.wrong_rows
    if wrong:
        bad = next(r for r in run.rows if any(m.wrong for m in r.measurements))
        return failed("correctness.wrong_values", f"{wrong} rows with wrong values", bad.as_line)
    if run.out_of_bounds_status == "FAILED" or run.out_of_bounds:
        line = LogLine("", run.out_of_bounds_line or run.line, run.out_of_bounds_text)
        return failed("correctness.out_of_bounds", "values out of bounds", line)
    if run.bitwise_failed is not None:
        return failed("correctness.bitwise", "results of repeated runs differ bit by bit", run.bitwise_failed)
    if run.avg_status == "FAILED":
        line = LogLine("", run.avg_line or run.line, run.avg_text)
        return failed("correctness.min_bw", "below the NCCL_TESTS_MIN_BW given to nccl-tests", line)
    return None


def _not_compared(run: Run) -> Check | None:
    banner = run.preamble.banner
    if run.check_disabled or (banner is not None and banner.validation == 0):
        return unknown(
            "correctness.not_compared",
            "the data was not compared (-c 0): N/A everywhere, although `0 OK` is printed",
        )
    reason = _missing(run)
    return unknown("correctness.not_stated", reason) if reason else None


def _counts(errors: str) -> bool:
    """Whether ERRORS is a non-negative number: a count, or a difference."""
    value = number(errors)
    return value is not None and value >= 0 and not errors.startswith("-")


def _missing(run: Run) -> str | None:
    """The missing evidence that every row was compared, or None."""
    banner = run.preamble.banner
    if banner is None or banner.validation is None:
        return "no `validation: 1` in the arguments: whether the data was compared is not known"
    if run.error_column is None:
        return "the header is missing: what the last column is, is not known"
    if run.out_of_bounds is None or run.out_of_bounds_status != "OK":
        return "the `Out of bounds values : 0 OK` line is missing"
    out_of_place_only = infer(run).name in OUT_OF_PLACE_ONLY
    for row in run.rows:
        if row.out_of_place.unchecked or (row.in_place.unchecked and not out_of_place_only):
            return f"a measurement of {exact(row.size)} was not compared (N/A)"
        if any(not m.unchecked and not _counts(m.errors) for m in row.measurements):
            return f"the last column of {exact(row.size)} is not a number of errors"
    return None
