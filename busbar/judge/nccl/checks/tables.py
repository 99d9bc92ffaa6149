"""Gates on the log and its tables: the job, the completeness of log, tables and rows, and the data."""

from __future__ import annotations

from busbar.judge import LAST_LINE
from busbar.judge.checks import job_check
from busbar.judge.nccl.checks.context import Check, Context, failed, passed, result, unknown
from busbar.judge.nccl.log.records import Banner, LogLine, Measurement, Run, number, rounding
from busbar.judge.nccl.log.tables import BYTES, IN_PARTS, WHOLE, from_name, infer, is_scaled
from busbar.judge.nccl.units import exact


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
        fix = "keep every line that the launcher prints (Ray: RAY_DEDUP_LOGS=0), and run again"
        return unknown("source.lines_missing", "lines of the log are missing", log.missing, fix)
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


MAX_ROWS = 100_000


def arithmetic(run: Run) -> Check | None:
    """Check each row: algbw = size / time, and count x type size = the collective's part.

    Both within the rounding of the printed values.
    """
    n, name, scaled = len(run.preamble.ranks), infer(run).name, is_scaled(run)
    share = (n - 1) / n if scaled and n else 1.0
    for row in run.rows:
        whole = row.count * BYTES[row.type] * (n if name in IN_PARTS else 1)
        if n and name in (*IN_PARTS, *WHOLE) and whole != row.size:
            return failed(
                "completeness.count",
                f"line {row.line}: {row.count} elements of {row.type} are not {exact(row.size)} in {name} "
                f"of {n} ranks: the row is damaged, or of another run",
                row.as_line,
            )
        for measurement in row.measurements:
            if not _consistent(row.size * share, measurement):
                return failed(
                    "completeness.arithmetic",
                    f"line {row.line}: {exact(row.size)} in {measurement.time} us is not {measurement.algbw} "
                    "GB/s: the row is damaged, or parts of two rows",
                    row.as_line,
                )
    return None


def _consistent(size: float, measurement: Measurement) -> bool:
    time, algbw, busbw = (number(t) for t in (measurement.time, measurement.algbw, measurement.busbw))
    if time is None or algbw is None or busbw is None or time <= 0 or busbw < 0:
        return False
    time_error, algbw_error = rounding(measurement.time), rounding(measurement.algbw)
    low = size / (time + time_error) / 1000 - algbw_error
    high = size / (time - time_error) / 1000 + algbw_error
    return low * 0.9999 <= algbw <= high * 1.0001


def size_sweep(run: Run, context: Context) -> Check | None:
    """Compare the sizes of the rows with those of the arguments and the expectation."""
    banner = run.preamble.banner
    if banner is None:
        return unknown(
            "completeness.no_banner", "no `# nThread ..` line: how many sizes were asked for is not known"
        )
    reason = _arguments(run, banner, context) or _sizes(run, banner, context)
    return failed("completeness.other_sizes", reason) if reason else None


def _arguments(run: Run, banner: Banner, context: Context) -> str | None:
    """The difference between the printed and the expected arguments, or None."""
    want = context.expectation
    asked = (
        ("smallest", banner.min_bytes, want.min_bytes),
        ("largest", banner.max_bytes, want.max_bytes),
    )
    for name, found, expected in asked:
        if expected is not None and found != expected:
            return f"{name} message {exact(found)}, expected {exact(expected)}: another run's log"
    if want.step_factor is not None and (banner.step, banner.by) != (want.step_factor, "factor"):
        return f"step {banner.step} ({banner.by}), expected {want.step_factor} (factor): another run's log"
    if banner.iterations == 0:
        return "no iterations (iters: 0): nothing was timed"
    reduced = run.preamble.reduced_max
    if reduced is not None and want.max_bytes is not None and reduced < want.max_bytes:
        return f"GPU memory limited messages to {exact(reduced)}, expected {exact(want.max_bytes)}"
    return None


def _sizes(run: Run, banner: Banner, context: Context) -> str | None:
    """The difference between the sizes of the rows and those of the arguments, or None."""
    top = banner.max_bytes
    if run.preamble.reduced_max is not None:
        top = min(top, run.preamble.reduced_max)
    sizes = _asked_sizes(banner.min_bytes, top, banner.step, banner.by)
    if sizes is None:
        return f"the arguments give no size sweep ({banner.min_bytes} to {top} by {banner.step})"
    kinds: dict[tuple[str, str | None, int | None], list[int]] = {}
    cycle = len({row.key for row in run.rows}) if run.is_cyclic else len(run.rows)
    for row in run.rows[:cycle]:
        kinds.setdefault((row.type, row.redop, row.root), []).append(row.size)
    for got in kinds.values():
        problem = _compare(sizes, got, context.ranks or 1)
        if problem:
            return problem
    return None


def _asked_sizes(low: int, high: int, step: int, by: str) -> list[int] | None:
    sizes: list[int] = []
    size = low
    while size <= high and len(sizes) < MAX_ROWS:
        sizes.append(size)
        following = size * step if by == "factor" else size + step
        if following <= size:
            return sizes if low == high or size == 0 else None
        size = following
    return sizes or None


def _compare(want: list[int], got: list[int], ranks: int) -> str | None:
    if len(want) != len(got):
        return (
            f"{len(got)} rows, the arguments ask for {len(want)} sizes "
            f"({exact(want[0])} to {exact(want[-1])})"
        )
    # some collectives cut data into ranks x 16 B pieces, all of them into whole elements
    piece = ranks * 16
    for expected, size in zip(want, got, strict=True):
        if not expected - piece < size <= expected:
            return f"a row of {exact(size)} stands where {exact(expected)} was asked for"
    return None


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
