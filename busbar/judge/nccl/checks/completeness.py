"""Gate on the table: every requested size has its row, the summary is there, and the numbers agree."""

from __future__ import annotations

from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.checks.result import Check, failed, passed, unknown
from busbar.judge.nccl.checks.rows import arithmetic, size_sweep
from busbar.judge.nccl.log.records import LogLine, Run, number


def completeness(context: Context) -> Check:
    """Check that every requested size has its row, the summary is there, and the numbers agree."""
    damage = [found for run in context.log.runs if (found := _damage(run))]
    if damage:
        return next((found for found in damage if found.status == "fail"), damage[0])
    if not context.judged:
        return unknown("completeness.no_table", "no table to judge")
    empty = [r for r in context.log.runs if not r.rows]
    if empty:
        reason = f"{len(empty)} tables have no row (line {empty[0].line})"
        return (unknown if context.log.long_lines else failed)("completeness.empty_table", reason)
    unsure: Check | None = None
    for run in context.judged:
        sizes = size_sweep(run, context)
        problem = arithmetic(run) or _average(run, excerpt=sizes is not None) or sizes
        if problem and problem.status == "fail":
            return problem
        unsure = unsure or problem or _summary(run)
    if unsure:
        return unsure
    first = context.judged[0]
    rows = ", ".join(str(len(r.rows)) for r in context.judged)
    return passed(
        "completeness.complete",
        f"{rows} rows: all sizes of the arguments, summary present, its average agrees with the rows",
        LogLine("", first.avg_line or first.line, first.avg_text),
    )


def _damage(run: Run) -> Check | None:
    if run.template_rows:
        return failed(
            "completeness.placeholders",
            "a table holds placeholders (XXX, nan) in place of numbers: not a measurement",
        )
    if run.has_wrong_precision:
        return failed(
            "completeness.wrong_precision",
            "bandwidths with one decimal: nccl-tests prints two, so the table is not its output",
        )
    if run.cpu_time:
        return failed(
            "completeness.cpu_time",
            "the time column is CPU time (-C 1): its bandwidths are not those of the fabric",
        )
    if run.other_unit is not None:
        return failed(
            "completeness.other_unit",
            f"a column is in {run.other_unit.value}, where nccl-tests prints (B), (us) or (GB/s)",
            run.other_unit,
        )
    if run.damaged or run.orphans:
        return unknown(
            "completeness.damaged",
            f"{run.damaged} rows and {run.orphans} groups of numbers have a form that is not known: not read",
        )
    if run.has_repeated_rows and run.is_picked:
        reason = "rows only, and a size appears twice: they are of several runs"
        return unknown("completeness.no_banner", reason)
    if run.has_repeated_rows:
        return failed(
            "completeness.repeated_rows",
            "a size appears twice: two programs wrote into one table, or the size sweep ran more than once",
        )
    if run.rows_after_summary or run.summaries:
        return failed(
            "completeness.after_summary",
            "rows or a second summary follow the summary: two programs wrote into one log",
        )
    return None


def _average(run: Run, *, excerpt: bool) -> Check | None:
    if run.average_matches is not False:
        return None
    if number(run.avg or "") is None:
        reason = f"the printed average {run.avg} is not a number: the summary is damaged"
        return failed("completeness.average", reason, LogLine("", run.avg_line or run.line, run.avg_text))
    return (unknown if excerpt else failed)(
        "completeness.average",
        f"the printed average {run.avg} is not that of the rows ({run.mean_busbw:.4f}): rows are missing or "
        "belong to another run",
    )


def _summary(run: Run) -> Check | None:
    if run.avg is not None and run.out_of_bounds is not None:
        return None
    return unknown(
        "completeness.no_summary",
        "the summary (`Out of bounds`, `Avg bus bandwidth`) is missing: the log was cut",
    )
