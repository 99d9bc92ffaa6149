"""Gates on the text itself: is it the whole output of one program, and did the data arrive right?"""

from __future__ import annotations

from busbar.nccl.checks.context import Context, check
from busbar.nccl.checks.rows import arithmetic, ladder
from busbar.nccl.log.collective import from_name, infer
from busbar.nccl.log.evidence import Seen
from busbar.nccl.log.records import Run, number
from busbar.nccl.log.sidecar import (
    avg_matches,
    check_disabled,
    invented,
    mean_busbw,
    several_programs,
    wrong_rows,
)
from busbar.nccl.units import exact
from busbar.nccl.verdict import Check, Status


def source(context: Context) -> Check:
    """The log is there from its first line to its last, and the job ended well."""
    log, name = context.log, "source"
    if log.bytes == 0:
        return check(name, "unknown", "the log is empty: nothing was measured")
    if log.truncated:
        return check(name, "fail", f"the log is not whole: {log.truncated}")
    if context.expectation.job_succeeded is False:
        return check(name, "fail", "the job did not succeed; its numbers are not used")
    if any(several_programs(r) for r in log.runs if not r.rows):
        return check(name, "fail", "several programs wrote this log and none finished: MPI was not effective")
    if not any(r.rows for r in log.runs):
        if log.dangling is not None and log.dangling.ranks:
            last = log.dangling.ranks[-1]
            return check(
                name, "fail", "the log ends after the device list, without a row: the run hung or was ended",
                Seen("", last.line, f"{last.text}; last line of the log: {log.last_line[:200]}"),
            )  # fmt: skip
        return check(name, "unknown", "no table of nccl-tests in this log: nothing was measured")
    if log.dangling is not None and (log.dangling.banner or log.dangling.ranks):
        return check(
            name, "fail", "one more program was started after the last table and printed none of its own"
        )
    if any(r.preamble.banner is None for r in context.judged):
        return check(name, "unknown", "no `# nThread ..` line before a table: the log's beginning is missing")
    if log.long_lines:
        return check(name, "unknown", f"{log.long_lines} lines over 64 KiB were cut: the log is damaged")
    first = next((r.preamble.banner for r in context.judged if r.preamble.banner), None)
    seen = Seen("", first.line, first.text) if first else None
    return check(name, "pass", f"whole, with the banner of each table ({len(log.runs)})", seen)


def collective(context: Context) -> Check:
    """Each wanted collective has a table, and the table is of that collective beyond doubt."""
    name = "collective"
    if not context.tables:
        return check(name, "unknown", "no table of a known collective")
    for wanted, runs in context.tables.items():
        if not runs:
            others = sorted({infer(r).name or "an unknown one" for r in context.log.runs if r.rows})
            status: Status = "fail" if others else "unknown"
            return check(name, status, f"no table of {wanted}; there are: {', '.join(others) or 'none'}")
        for run in runs:
            found = infer(run)
            if not found.certain:
                return check(
                    name, "unknown", f"{wanted} is a guess ({found.why}): the program did not name it"
                )
            concluded = run.concluded and from_name(run.concluded)
            if concluded and concluded != wanted:
                return check(
                    name, "fail", f"a table began as {wanted} and concluded as {concluded}: runs are mixed"
                )
    why = "; ".join(f"{w}: {infer(runs[0]).why}" for w, runs in context.tables.items())
    return check(name, "pass", why)


def completeness(context: Context) -> Check:
    """Every size that was asked for has its row, the summary is there, and the numbers agree."""
    name = "completeness"
    for run in context.log.runs:
        problem = _damage(run)
        if problem:
            return check(name, "fail", problem)
    if not context.judged:
        return check(name, "unknown", "no table to judge")
    empty = [r for r in context.log.runs if not r.rows]
    if empty:
        return check(name, "fail", f"{len(empty)} tables have a header and no row (line {empty[0].line})")
    unsure: str | None = None
    for run in context.judged:
        problem = arithmetic(run) or _checksum(run)
        if problem:
            return check(name, "fail", problem)
        state, problem = ladder(run, context)
        if state == "fail":
            return check(name, "fail", problem)
        if state == "unknown":
            unsure = unsure or problem
        if run.avg is None or run.out_of_bounds is None:
            unsure = (
                unsure or "the summary (`Out of bounds`, `Avg bus bandwidth`) is missing: the log was cut"
            )
    if unsure:
        return check(name, "unknown", unsure)
    run = context.judged[0]
    rows = ", ".join(str(len(r.rows)) for r in context.judged)
    seen = Seen("", run.avg_line or run.line, run.avg_text)
    return check(
        name,
        "pass",
        f"{rows} rows: all sizes of the banner, summary present, its average is that of the rows",
        seen,
    )


def _damage(run: Run) -> str | None:
    if run.template_rows:
        return "a table holds placeholders (XXX, nan) in place of numbers: not a measurement"
    if invented(run):
        return "bandwidths with one decimal: nccl-tests prints two, so this table was not printed by it"
    if run.cpu_time:
        return "the time column is CPU time (-C 1): its bandwidths say nothing about the fabric"
    if run.damaged or run.orphans:
        return f"{run.damaged} rows cut short and {run.orphans} numbers without a row: the table is damaged"
    keys = [r.key for r in run.rows if r.size > 0 and r.count > 0]
    if len(set(keys)) < len(keys):
        return (
            "a size is there twice: two programs wrote into one table, or the ladder was run more than once"
        )
    if run.rows_after_summary or run.summaries:
        return "rows or a second summary follow the summary: two programs wrote into one log"
    return None


def _checksum(run: Run) -> str | None:
    if avg_matches(run) is False:
        return (
            f"the printed average {run.avg} is not that of the rows ({mean_busbw(run):.4f}): rows are gone "
            "or are of another run"
        )
    return None


def correctness(context: Context) -> Check:
    """The data was compared, everywhere, and was right."""
    name = "correctness"
    if not context.judged:
        return check(name, "unknown", "no table to judge")
    for run in context.log.runs:
        wrong = wrong_rows(run)
        if wrong:
            bad = next(
                r for r in run.rows if any((number(h.errors) or 0) > 0 for h in (r.out_of_place, r.in_place))
            )
            return check(name, "fail", f"{wrong} rows with wrong values", Seen("", bad.line, bad.text))
        if run.out_of_bounds_status == "FAILED" or (run.out_of_bounds or 0) > 0:
            return check(
                name,
                "fail",
                "values out of bounds",
                Seen("", run.out_of_bounds_line or run.line, run.out_of_bounds_text),
            )
        if run.bitwise_failed is not None:
            at, text = run.bitwise_failed
            return check(name, "fail", "results differ from run to run, bit by bit", Seen("", at, text))
        if run.avg_status == "FAILED":
            return check(
                name,
                "fail",
                "nccl-tests' own NCCL_TESTS_MIN_BW was missed",
                Seen("", run.avg_line or 0, run.avg_text),
            )
    for run in context.judged:
        problem = _unchecked(run)
        if problem:
            return check(name, "unknown", problem)
    run = context.judged[0]
    return check(
        name,
        "pass",
        "every row was compared and is right",
        Seen("", run.out_of_bounds_line or 0, run.out_of_bounds_text),
    )


def _unchecked(run: Run) -> str | None:
    banner = run.preamble.banner
    if check_disabled(run) or (banner is not None and banner.validation == 0):
        return "the data was not compared (-c 0): N/A everywhere, although `0 OK` is printed"
    if banner is None or banner.validation is None:
        return "no banner says that the data was compared (`validation: 1`)"
    if run.error_column is None:
        return "the header is missing: the last column may be anything"
    if run.out_of_bounds is None or run.out_of_bounds_status != "OK":
        return "the `Out of bounds values : 0 OK` line is missing"
    in_place_only = infer(run).name in ("alltoall", "alltoallv", "sendrecv")
    for row in run.rows:
        if row.out_of_place.unchecked or (row.in_place.unchecked and not in_place_only):
            return f"a half of {exact(row.size)} was not compared (N/A)"
        if not row.out_of_place.unchecked and number(row.out_of_place.errors) is None:
            return f"the last column of {exact(row.size)} is no number"
    return None
