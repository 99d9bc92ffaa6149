"""Gate on the table: every requested size has its row, the summary is there, and the numbers agree."""

from __future__ import annotations

from busbar.judge.nccl.checks.codes import Code
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
        return unknown(Code.COMPLETENESS_NO_TABLE, "no table to judge")
    empty = [r for r in context.log.runs if not r.rows]
    if empty:
        reason = f"{len(empty)} tables have no row (line {empty[0].line})"
        return (unknown if context.log.long_lines else failed)(Code.COMPLETENESS_EMPTY_TABLE, reason)
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
        Code.COMPLETENESS_COMPLETE,
        f"{rows} rows: all sizes of the arguments, summary present, its average agrees with the rows",
        LogLine("", first.avg_line or first.line, first.avg_text),
    )


def _damage(run: Run) -> Check | None:
    if run.template_rows:
        return failed(
            Code.COMPLETENESS_PLACEHOLDERS,
            "a table holds placeholders (XXX, nan) in place of numbers: not a measurement",
        )
    if run.has_wrong_precision:
        return failed(
            Code.COMPLETENESS_WRONG_PRECISION,
            "bandwidths with one decimal: nccl-tests prints two, so the table is not its output",
        )
    if run.cpu_time:
        return failed(
            Code.COMPLETENESS_CPU_TIME,
            "the time column is CPU time (-C 1): its bandwidths are not those of the fabric",
        )
    if run.other_unit is not None:
        return failed(
            Code.COMPLETENESS_OTHER_UNIT,
            f"a column is in {run.other_unit.value}, where nccl-tests prints (B), (us) or (GB/s)",
            run.other_unit,
        )
    if run.damaged or run.orphans:
        return unknown(
            Code.COMPLETENESS_DAMAGED,
            f"{run.damaged} rows and {run.orphans} groups of numbers have a form that is not known: not read",
        )
    if run.has_repeated_rows and run.is_picked:
        reason = "rows only, and a size appears twice: they are of several runs"
        return unknown(Code.COMPLETENESS_NO_BANNER, reason)
    if run.has_repeated_rows:
        return failed(
            Code.COMPLETENESS_REPEATED_ROWS,
            "a size appears twice: two programs wrote into one table, or the size sweep ran more than once",
        )
    if run.rows_after_summary or run.summaries:
        return failed(
            Code.COMPLETENESS_AFTER_SUMMARY,
            "rows or a second summary follow the summary: two programs wrote into one log",
        )
    return None


def _average(run: Run, *, excerpt: bool) -> Check | None:
    if run.average_matches is not False:
        return None
    if number(run.avg or "") is None:
        reason = f"the printed average {run.avg} is not a number: the summary is damaged"
        return failed(Code.COMPLETENESS_AVERAGE, reason, LogLine("", run.avg_line or run.line, run.avg_text))
    return (unknown if excerpt else failed)(
        Code.COMPLETENESS_AVERAGE,
        f"the printed average {run.avg} is not that of the rows ({run.mean_busbw:.4f}): rows are missing or "
        "belong to another run",
    )


def _summary(run: Run) -> Check | None:
    if run.avg is not None and run.out_of_bounds is not None:
        return None
    return unknown(
        Code.COMPLETENESS_NO_SUMMARY,
        "the summary (`Out of bounds`, `Avg bus bandwidth`) is missing: the log was cut",
    )
