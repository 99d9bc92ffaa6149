"""Gates on the log itself: the job's outcome, the completeness of the log, and the collective of a table."""

from __future__ import annotations

from busbar.judge import LAST_LINE
from busbar.judge.checks import job_check
from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.checks.result import Check, failed, passed, result, unknown
from busbar.judge.nccl.log.collective import from_name, infer
from busbar.judge.nccl.log.records import LogLine


def job(context: Context) -> Check | None:
    """Check that the job that printed the log succeeded. None if only a log was given."""
    return job_check(result, context.job)


def source(context: Context) -> Check:
    """Check that the log is complete from its first line to its last."""
    log = context.log
    if not log.bytes:
        return unknown("source.empty", f"the log is empty: {log.truncated or 'nothing was measured'}")
    if log.truncated:
        return failed("source.truncated", f"the log is not complete: {log.truncated}")
    if log.form:
        reason = f"the log is {log.form}, which is not read"
        return unknown("source.unread_form", reason, fix="give the program's own output as text, .gz or .zst")
    if any(r.has_several_programs for r in log.runs if not r.rows):
        ended = "a table has no row of its own" if context.has_rows else "none finished"
        reason = f"several programs wrote this log and {ended}: MPI was not effective"
        return failed("source.several_programs", reason)
    if not context.has_rows:
        return _without_rows(context)
    if log.dangling is not None and (log.dangling.banner or log.dangling.ranks):
        return failed(
            "source.program_without_table",
            "another program was started after the last table and printed no table",
        )
    if any(r.preamble.banner is None for r in context.judged):
        return unknown(
            "source.beginning_missing",
            "no `# nThread ..` line before a table: the log's beginning is missing",
        )
    if log.long_lines:
        return unknown(
            "source.long_lines",
            f"{log.long_lines} lines cannot be read whole: they are too long, or in an unknown form",
        )
    if log.missing is not None:
        return unknown("source.lines_missing", "lines of the log are missing", log.missing)
    if lost := log.evidence.lost - {"warnings"}:
        reason = f"more different texts on {', '.join(sorted(lost))} were printed than are kept"
        return unknown("source.lists_too_long", reason)
    first = next((r.preamble.banner for r in context.judged if r.preamble.banner), None)
    return passed(
        "source.whole",
        f"complete, with the arguments before each table ({len(log.runs)})",
        LogLine("", first.line, first.text) if first else None,
    )


def _without_rows(context: Context) -> Check:
    log = context.log
    fatal = next((known for known in log.known_lines if known.severity == "fatal"), None)
    error = fatal.first if fatal else next(iter(log.evidence.test_failures.values()), None)
    preamble = log.dangling
    if preamble is None and (error is not None or _launcher_failed(log.last_line)):
        # The head of a table is printed before its first size is measured.
        preamble = next((run.preamble for run in reversed(log.runs)), None)
    if preamble is None or not preamble.ranks:
        return unknown("source.no_table", "no table of nccl-tests in this log: nothing was measured")
    if error is not None:
        return failed(
            "source.ended_with_error",
            "the log ends after the device list, without a row: the run ended with an error",
            error,
        )
    last = preamble.ranks[-1]
    return failed(
        "source.ends_after_device_list",
        "the log ends after the device list, without a row: the run hung or was ended",
        LogLine("", last.line, f"{last.text}; last line of the log: {log.last_line[:200]}"),
    )


def _launcher_failed(last_line: str) -> bool:
    begin = f"{LAST_LINE} "
    return last_line.startswith(begin) and last_line.removeprefix(begin).strip() != "0"


def collective(context: Context) -> Check:
    """Check that each wanted collective has a table, which is certainly of that collective."""
    if not context.tables:
        return unknown("collective.no_table", "no table of a known collective")
    for wanted, runs in context.tables.items():
        if not runs:
            others = sorted({infer(r).name or "an unknown one" for r in context.log.runs if r.rows})
            if not others:
                return unknown("collective.no_table", f"no table of {wanted}, nor of another collective")
            return failed("collective.missing", f"no table of {wanted}; the log has: {', '.join(others)}")
        for run in runs:
            found = infer(run)
            if not found.certain:
                unnamed = ": the program did not print its name" if run.preamble.name is None else ""
                return unknown("collective.uncertain", f"{wanted} is a guess ({found.why}){unnamed}")
            concluded = run.concluded and from_name(run.concluded)
            if concluded and concluded != wanted:
                return failed(
                    "collective.mixed",
                    f"a table began as {wanted} and ended as {concluded}: runs are mixed",
                )
    why = "; ".join(f"{w}: {infer(runs[0]).why}" for w, runs in context.tables.items())
    return passed("collective.certain", why)
