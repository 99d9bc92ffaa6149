"""Gates on the log and its tables: the job, the completeness of log, tables and rows, the data, and lines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from busbar.judge.checks import job_check
from busbar.judge.nccl.checks.context import Check, Context, failed, passed, result, unknown
from busbar.judge.nccl.log.patterns import BYTES
from busbar.judge.nccl.log.records import Banner, LogLine, Measurement, Preamble, Run, number, rounding
from busbar.judge.nccl.log.tables import IN_PARTS, WHOLE, from_name, infer, is_scaled
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
        fix = "give the program's own output as text: iconv -f UTF-16, xz -dc, tar -xO | busbar nccl check -"
        return unknown("source.unread_form", f"the log is {log.form}, which is not read", fix=fix)
    if any(p.has_lines_twice for p in (log.dangling or Preamble(), *(r.preamble for r in log.runs))):
        fix = "give one copy: without a second tee, or the second of two collectors"
        return failed("source.lines_twice", "each line of the log stands twice", fix=fix)
    without_rows = [log.dangling or Preamble(), *(r.preamble for r in log.runs if not r.rows)]
    if any(p.has_several_programs and not p.has_whole_lists for p in without_rows):
        ended = "a table has no row of its own" if context.has_rows else "none finished"
        reason = f"several programs wrote this log and {ended}: MPI was not effective"
        return failed("source.several_programs", reason)
    if not context.has_rows:
        return _without_rows(context)
    if log.dangling is not None and (log.dangling.banner or log.dangling.ranks):
        reason = "another program was started after the last table and printed no table"
        return failed("source.program_without_table", reason)
    if any(r.preamble.banner is None for r in context.judged):
        reason = "no `# nThread ..` line before a table: the log's beginning is missing"
        return unknown("source.beginning_missing", reason)
    if log.long_lines:
        reason = f"{log.long_lines} lines cannot be read whole: they are too long, or in an unknown form"
        return unknown("source.long_lines", reason)
    if log.missing is not None:
        fix = "keep every line that the launcher prints (Ray: RAY_DEDUP_LOGS=0), and run again"
        return unknown("source.lines_missing", "lines of the log are missing", log.missing, fix)
    if lost := log.evidence.lost - {"warnings"}:
        reason = f"more different texts on {', '.join(sorted(lost))} were printed than are kept"
        return unknown("source.lists_too_long", reason)
    first = next((r.preamble.banner.at for r in context.judged if r.preamble.banner), None)
    return passed("source.whole", f"complete, with the arguments before each table ({len(log.runs)})", first)


def _without_rows(context: Context) -> Check:
    log, without = context.log, "the log ends after the device list, without a row: the run"
    fatal = next((known for known in log.known_lines if known.rule.severity == "fatal"), None)
    error = fatal.first if fatal else next(iter(log.evidence.test_failures.values()), None)
    preamble, run = log.dangling, next(reversed(log.runs), None)
    # The head of a table is printed before its first size is measured.
    if run is not None and not (run.closed or run.damaged or run.orphans or run.template_rows):
        preamble = preamble or run.preamble
    if preamble is None or not preamble.ranks:
        return unknown("source.no_table", "no table of nccl-tests in this log: nothing was measured")
    if error is not None:
        return failed("source.ended_with_error", f"{without} ended with an error", error)
    last = preamble.ranks[-1].at
    line = LogLine("", last.line, f"{last.text}; last line of the log: {log.last_line[:200]}")
    return failed("source.ends_after_device_list", f"{without} hung or was ended", line)


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
                reason = f"a table began as {wanted} and ended as {concluded}: runs are mixed"
                return failed("collective.mixed", reason)
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
            reason = (
                f"line {row.at.line}: {row.count} elements of {row.type} are not {exact(row.size)} in {name} "
                f"of {n} ranks: the row is damaged, or of another run"
            )
            return failed("completeness.count", reason, row.at)
        for measurement in row.measurements:
            if not _consistent(row.size * share, measurement):
                reason = (
                    f"line {row.at.line}: {exact(row.size)} in {measurement.time} us is not "
                    f"{measurement.algbw} GB/s: the row is damaged, or parts of two rows"
                )
                return failed("completeness.arithmetic", reason, row.at)
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
        reason = "no `# nThread ..` line: how many sizes were asked for is not known"
        return unknown("completeness.no_banner", reason)
    return next(_other_sizes(run, banner, context), None)


def _other_sizes(run: Run, banner: Banner, context: Context) -> Iterator[Check]:
    """The differences between expected and printed arguments, and between these and the rows."""
    other = partial(failed, "completeness.other_sizes")
    want, reduced = context.expectation, run.preamble.reduced_max
    limits = (("smallest", banner.min_bytes, want.min_bytes), ("largest", banner.max_bytes, want.max_bytes))
    for name, found, expected in limits:
        if expected is not None and found != expected:
            yield other(f"{name} message {exact(found)}, expected {exact(expected)}: another run's log")
    if want.step_factor is not None and (banner.step, banner.by) != (want.step_factor, "factor"):
        step = f"step {banner.step} ({banner.by})"
        yield other(f"{step}, expected {want.step_factor} (factor): another run's log")
    if banner.iterations == 0:
        yield other("no iterations (iters: 0): nothing was timed")
    if reduced is not None and want.max_bytes is not None and reduced < want.max_bytes:
        yield other(f"GPU memory limited messages to {exact(reduced)}, expected {exact(want.max_bytes)}")
    top = banner.max_bytes if reduced is None else min(banner.max_bytes, reduced)
    sizes = _asked_sizes(banner.min_bytes, top, banner.step, banner.by)
    if sizes is None:
        yield other(f"the arguments give no size sweep ({banner.min_bytes} to {top} by {banner.step})")
        return
    kinds: dict[tuple[str, str | None, int | None], list[int]] = {}
    cycle = len({row.key for row in run.rows}) if run.is_cyclic else len(run.rows)
    for row in run.rows[:cycle]:
        kinds.setdefault((row.type, row.redop, row.root), []).append(row.size)
    # some collectives cut data into ranks x 16 B pieces, all of them into whole elements
    piece = (context.ranks or 1) * 16
    for got in kinds.values():
        if len(sizes) != len(got):
            asked = f"{len(sizes)} sizes ({exact(sizes[0])} to {exact(sizes[-1])})"
            reason = f"{len(got)} rows, the arguments ask for {asked}"
            cut = not run.closed and run.out_of_bounds is None and got[-1] < top
            yield failed("completeness.ends_between_rows", reason, run.rows[-1].at) if cut else other(reason)
            return
        for asked_size, size in zip(sizes, got, strict=True):
            if not asked_size - piece < size <= asked_size:
                yield other(f"a row of {exact(size)} stands where {exact(asked_size)} was asked for")


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
    rows = ", ".join(str(len(r.rows)) for r in context.judged)
    reason = f"{rows} rows: all sizes of the arguments, summary present, its average agrees with the rows"
    return passed("completeness.complete", reason, context.judged[0].avg_at)


def _damage(run: Run) -> Check | None:
    """The first sign that a table is not what one program printed: condition, code, reason."""
    unit = run.other_unit.value if run.other_unit is not None else ""
    signs = (
        (run.template_rows, "completeness.placeholders",
         "a table holds placeholders (XXX, nan) in place of numbers: not a measurement"),
        (run.has_wrong_precision, "completeness.wrong_precision",
         "bandwidths with one decimal: nccl-tests prints two, so the table is not its output"),
        (run.cpu_time, "completeness.cpu_time",
         "the time column is CPU time (-C 1): its bandwidths are not those of the fabric"),
        (unit, "completeness.other_unit", f"a column is in {unit}, and nccl-tests prints (B), (us), (GB/s)"),
        (run.damaged or run.orphans, "completeness.damaged",
         f"{run.damaged} rows and {run.orphans} groups of numbers have a form that is not known: not read"),
        (run.has_repeated_rows and run.is_picked, "completeness.no_banner",
         "rows only, and a size appears twice: they are of several runs"),
        (run.has_repeated_rows, "completeness.repeated_rows",
         "a size appears twice: two programs wrote into one table, or the size sweep ran more than once"),
        (run.rows_after_summary or run.summaries, "completeness.after_summary",
         "rows or a second summary follow the summary: two programs wrote into one log"),
    )  # fmt: skip
    code, reason = next(((code, reason) for shown, code, reason in signs if shown), ("", ""))
    if not code:
        return None
    made = unknown if code in ("completeness.damaged", "completeness.no_banner") else failed
    return made(code, reason, run.other_unit if code == "completeness.other_unit" else None)


def _average(run: Run, *, excerpt: bool) -> Check | None:
    if run.average_matches is not False:
        return None
    if number(run.avg or "") is None:
        reason = f"the printed average {run.avg} is not a number: the summary is damaged"
        return failed("completeness.average", reason, run.avg_at)
    reason = f"the printed average {run.avg} is not that of the rows ({run.mean_busbw:.4f}): rows are missing"
    return (unknown if excerpt else failed)("completeness.average", f"{reason} or belong to another run")


def _summary(run: Run) -> Check | None:
    if run.avg is not None and run.out_of_bounds is not None:
        return None
    reason = "the summary (`Out of bounds`, `Avg bus bandwidth`) is missing: the log was cut"
    return unknown("completeness.no_summary", reason)


# collectives whose in-place measurement nccl-tests does not compare
OUT_OF_PLACE_ONLY = ("alltoall", "alltoallv", "sendrecv")


def correctness(context: Context) -> Check:
    """Check that all data was compared, and was correct."""
    if not context.judged:
        return unknown("correctness.no_table", "no table to judge")
    problems = [*map(_wrong, context.log.runs), *map(_not_compared, context.judged)]
    verified = "every row was compared and is right"
    verifies = passed("correctness.verified", verified, context.judged[0].out_of_bounds_at)
    return next(filter(None, problems), verifies)


def _wrong(run: Run) -> Check | None:
    if wrong := run.wrong_rows:
        return failed("correctness.wrong_values", f"{len(wrong)} rows with wrong values", wrong[0].at)
    if run.out_of_bounds_status == "FAILED" or run.out_of_bounds:
        return failed("correctness.out_of_bounds", "values out of bounds", run.out_of_bounds_at)
    if run.bitwise_failed is not None:
        return failed("correctness.bitwise", "results of repeated runs differ bit by bit", run.bitwise_failed)
    if run.avg_status == "FAILED":
        return failed("correctness.min_bw", "below the NCCL_TESTS_MIN_BW given to nccl-tests", run.avg_at)
    return None


def _not_compared(run: Run) -> Check | None:
    banner = run.preamble.banner
    if all(m.unchecked for m in run.measurements) or (banner is not None and banner.validation == 0):
        reason = "the data was not compared (-c 0): N/A everywhere, although `0 OK` is printed"
        return unknown("correctness.not_compared", reason)
    reason = next(_not_stated(run), "")
    return unknown("correctness.not_stated", reason) if reason else None


def _not_stated(run: Run) -> Iterator[str]:
    """The missing evidence that every row was compared."""
    banner = run.preamble.banner
    if banner is None or banner.validation is None:
        yield "no `validation: 1` in the arguments: whether the data was compared is not known"
    if run.error_column is None:
        yield "the header is missing: what the last column is, is not known"
    if run.out_of_bounds is None or run.out_of_bounds_status != "OK":
        yield "the `Out of bounds values : 0 OK` line is missing"
    out_of_place_only = infer(run).name in OUT_OF_PLACE_ONLY
    for row in run.rows:
        if row.out_of_place.unchecked or (row.in_place.unchecked and not out_of_place_only):
            yield f"a measurement of {exact(row.size)} was not compared (N/A)"
        counts = [m.errors for m in row.measurements if not m.unchecked]
        if any(number(count) is None or count.startswith("-") for count in counts):
            yield f"the last column of {exact(row.size)} is not a number of errors"


ACCEPT = "find out what it means; --accept-warn TEXT (validation.accept_warnings) accepts it by name"

# what an unusual line says of the run -> code, reason
MEANS = {
    "disturbed": ("warnings.disturbed", "among the rows, and not known"),
    "ended badly": ("warnings.ended_badly", "the program or its launcher did not end well"),
    "fault": ("warnings.fault", "a tool or a check says that hardware is not well"),
}


def warnings(context: Context) -> Check:
    """Check that no line of the log is a failure, ends the run or disturbs its rows."""
    log = context.log
    fatal = [known for known in log.known_lines if known.rule.severity == "fatal"]
    if fatal:
        reason = "; ".join(f"{known.rule.name}: {known.rule.meaning}" for known in fatal[:4])
        return failed("warnings.known_failure", reason, fatal[0].first)
    if log.evidence.test_failures:
        line = next(iter(log.evidence.test_failures.values()))
        return failed("warnings.test_failure", "nccl-tests reports a failure", line)
    doubts = _doubts(context)
    wanted = context.expectation.accept_warnings
    open_ = [doubt for doubt in doubts if not any(text in doubt[2].text for text in wanted)]
    if open_:
        code, why, line = open_[0]
        more = f" (and {len(open_) - 1} more)" if open_[1:] else ""
        return unknown(code, f"{why}: {line.text[:200]}{more}", line, ACCEPT)
    if doubts:
        reason = "; ".join(line.text[:200] for _, _, line in doubts[:4])
        return passed("warnings.accepted", f"accepted by name: {reason}", doubts[0][2])
    return passed("warnings.none", "no line disturbs the rows or ends the run")


def _doubts(context: Context) -> list[tuple[str, str, LogLine]]:
    """Code, reason and line of each doubt about the run, in the order of the log."""
    found = []
    for known in context.log.known_lines:
        if known.rule.no_verdict:
            found.append(("warnings.no_verdict", known.rule.meaning, known.first))
        elif known.among_rows is not None:
            found.append(("warnings.disturbed", f"among the rows, {known.rule.meaning}", known.among_rows))
    for unusual in context.log.unusual:
        if unusual.decides:
            found.append((*MEANS[unusual.decides], unusual.first))
    return sorted(found, key=lambda doubt: doubt[2].line)
