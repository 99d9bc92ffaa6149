"""Gates on the bandwidth: it lies between floor and ceiling, and is steady."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from busbar.judge.checks import Status
from busbar.judge.nccl.checks.context import (
    GIVE_SYSTEM,
    Check,
    CollectiveResult,
    Context,
    failed,
    not_required,
    nvls_lost,
    passed,
    points,
    unknown,
)
from busbar.judge.nccl.expected.bounds import NO_SYSTEM, Bounds, Rise, envelope
from busbar.judge.nccl.log.records import Row, Run, amount, rounding
from busbar.judge.nccl.units import compared, duration, exact, gbps, share, size

SATURATION = 64 * 2**20
LAST_SIZES = 0.10  # the largest two messages
DIP = 0.15  # below what both a smaller and a larger message reach
FALL = 0.20  # of the largest message below the best
JUMP = 0.20  # above both neighbours
# a message that takes less than this part of the time of each of the NEIGHBOURS before it is too fast
TOO_FAST = 0.5
STALL = 5  # times the mean time of an iteration
NEIGHBOURS = 3
# fraction of known-good curves below which a size is slow; so many in a row, or one from SATURATION on, count
SLOW_RISE = 0.75
SLOW_SIZES = 3
SLOW_STEP = 0.85


def curve(run: Run) -> Check | None:
    """The error in the curve of RUN, or None. A curve that still rises at its end is "unknown"."""
    unsure: Check | None = None
    kinds: dict[tuple[str, str | None, int | None], list[Row]] = {}
    for row in run.rows:
        kinds.setdefault((row.type, row.redop, row.root), []).append(row)
    for rows in kinds.values():
        rows.sort(key=lambda r: r.size)
        for half, name in enumerate(("out-of-place", "in-place")):
            for problem in _problems(rows, half, name):
                if problem.status == "fail":
                    return problem
                unsure = unsure or problem
    return unsure


def rise(run: Run, known_good: dict[int, Rise]) -> Check | None:
    """The size where RUN, relative to its last row, is far slower than all known-good curves of its class."""
    rows = sorted((row for row in run.rows if row.size in known_good), key=lambda r: r.size)
    speeds = {row.size: _slower_half(row) for row in run.rows}
    plateau, slow = _slower_half(run.largest_row), 0
    for row in rows:
        least, speed, following = known_good[row.size], speeds[row.size], speeds.get(2 * row.size)
        slow = slow + 1 if speed < SLOW_RISE * least.of_plateau * plateau else 0
        large = row.size >= SATURATION
        steep = large and following is not None and speed < SLOW_STEP * least.of_next * following
        if steep or slow >= SLOW_SIZES or (slow and large):
            usual = f"at least {share(least.of_plateau)} of their last row there"
            usual += f", and {share(least.of_next)} of the next size" if steep else ""
            reason = f"{gbps(speed)} at {exact(row.size)}: known-good curves of this class have {usual}"
            return unknown("stability.slow_rise", reason, row.at)
    return None


def _slower_half(row: Row) -> float:
    values = [amount(m.busbw) for m in row.measurements]
    return min((v for v in values if v > 0), default=0.0)


def _problems(rows: list[Row], half: int, name: str) -> Iterator[Check]:
    # sizes without an element per rank are printed as 0 bytes, and only show the start of a kernel
    rows = [row for row in rows if row.size]
    large = [row for row in rows if row.size >= SATURATION]
    values = [amount(row.measurements[half].busbw) for row in large]
    for row, one in ((row, row.measurements[half]) for row in large):
        if amount(one.slowest) > STALL * amount(one.time):
            reason = f"{name} at {exact(row.size)}: i_max is {one.slowest} us, the mean is {one.time}"
            yield unknown("stability.iterations", reason, row.at)
    yield from _dips(large, values, name)
    yield from _end(large, values, name)
    yield from _latencies(rows, [amount(row.measurements[half].time) for row in rows], name)


def _dips(rows: list[Row], values: list[float], name: str) -> Iterator[Check]:
    before = list(accumulate(values, max))
    behind = list(accumulate(reversed(values), max))[::-1]
    for i in range(1, len(rows) - 1):
        at = f"{name} at {exact(rows[i].size)}: {gbps(values[i])}"
        reached = min(before[i], behind[i])
        if values[i] < (1 - DIP) * reached:
            reason = f"{at}, although smaller and larger messages reach {gbps(reached)}"
            yield failed("stability.dip", reason, rows[i].at)
        beside = max(values[i - 1], values[i + 1])
        if values[i] > (1 + JUMP) * beside:
            reason = f"{at}, although its neighbours reach {gbps(beside)} only"
            yield failed("stability.jump", reason, rows[i].at)


def _end(rows: list[Row], values: list[float], name: str) -> Iterator[Check]:
    if len(rows) < 2 or rows[-2].size == rows[-1].size:
        return
    before, last = values[-2:]
    said = f"{name} at {exact(rows[-1].size)}: {gbps(last)}"
    if last < (1 - LAST_SIZES) * before:
        agree = f"they must agree within {share(LAST_SIZES)}"
        reason = f"{said}, at {exact(rows[-2].size)}: {gbps(before)}; {agree}"
        yield failed("stability.last_sizes", reason, rows[-1].at)
    elif last < (1 - FALL) * max(values):
        reason = f"{said}, although smaller messages reach {gbps(max(values))}"
        yield failed("stability.dip", reason, rows[-1].at)
    elif before < (1 - LAST_SIZES) * last:
        reason = f"{said}, at {exact(rows[-2].size)} only {gbps(before)}: not flat"
        yield unknown("stability.rising", reason, rows[-1].at, "measure larger messages")


def _latencies(rows: list[Row], times: list[float], name: str) -> Iterator[Check]:
    """Check the latencies. The first rows warm up and are slower, so nothing is compared with them."""
    for i in range(NEIGHBOURS + 1, len(rows)):
        least = min(times[i - NEIGHBOURS : i])
        if times[i] < TOO_FAST * least:
            before = f"the {NEIGHBOURS} smaller messages before it ({duration(least)} at least)"
            at = f"{name} at {exact(rows[i].size)}: {duration(times[i])}"
            reason = f"{at}, less than half of the time of {before}"
            # where the next size is fast as well, the smaller messages are slow (another protocol)
            next_too = i + 1 < len(rows) and times[i + 1] < least
            found = unknown if next_too else failed
            yield found("stability.latency", reason, rows[i].at)


UNSTEADY = 0.10
FEW = 5  # iterations of a size from which its mean is steady
TUNING = "set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET,ENV,TUNING, or pass --algorithm ring"
FAR_BELOW = 0.10  # of the expected value: no slow rail explains that
ACCEPT = "find what is slow, or accept it: --expected-busbw (validation.expected_busbw_gbps)"
ORDER_OF_STATUS: tuple[Status, ...] = ("fail", "unknown", "not-required", "pass")
# codes, the worst first: the worst one names a failure of several collectives
ORDER = (
    "busbw.part_of_line_rate", "busbw.below_floor", "busbw.above_ceiling",
    "busbw.no_value", "busbw.low", "busbw.algorithm_unknown", "busbw.no_expectation",
    "busbw.small_messages", "busbw.not_required", "busbw.in_range",
)  # fmt: skip


def assess(context: Context, name: str) -> tuple[Check, CollectiveResult]:
    """Compare the bandwidth of the collective NAME with its bounds. The worst of its tables counts."""
    bounds = context.expectation.bounds(name)
    runs = [r for r in context.tables.get(name, []) if r.busbw is not None]
    # small messages only show latencies, and count where there are no others
    judged = [r for r in runs if r.largest_row.size >= SATURATION] or runs
    found = [(_compare(context, name, bounds, run, run.busbw or 0.0), run) for run in judged]
    check, run = min(found, key=_worst_first, default=(unknown("busbw.no_value", "no value"), None))
    value = run.busbw if run else None
    of_several = f" (the worst of {len(runs)} tables, line {run.line})" if run and len(runs) > 1 else ""
    result = CollectiveResult(
        busbw_gbps=value,
        expected_gbps=_rounded(bounds.expected),
        floor_gbps=_rounded(bounds.floor),
        ceiling_gbps=_rounded(bounds.ceiling),
        fraction=round(value / bounds.expected, 4) if value is not None and bounds.expected else None,
        passed=check.status in ("pass", "not-required"),
        basis=bounds.basis,
        size_bytes=run.largest_row.size if run else None,
        plateau_bytes=bounds.plateau_bytes,
        reasoning=list(bounds.reasoning),
        curve=points(run) if run else [],
    )
    return check.model_copy(update={"reason": f"{name}: {check.reason}{of_several}"}), result


def _worst_first(found: tuple[Check, Run]) -> tuple[int, int, float]:
    """The order of a collective's tables: by their status, the largest message, the lowest value."""
    check, run = found
    return ORDER_OF_STATUS.index(check.status), -run.largest_row.size, run.busbw or 0.0


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3 if value >= 1 else 6)


def _compare(context: Context, name: str, bounds: Bounds, run: Run, value: float) -> Check:
    """Compare VALUE, the bandwidth of a table, with its BOUNDS."""
    want, line = context.expectation, run.largest_row.at
    top = run.largest_row.size
    if bounds.floor is None:
        if want.transport == "socket":
            reason = f"{gbps(value)} over TCP; no expected value is configured, and no line rate applies"
            return not_required("busbw.not_required", reason, line)
        reason = f"{gbps(value)}, but the expected value is not known: {bounds.reasoning[-1]}"
        return unknown("busbw.no_expectation", reason, line, GIVE_SYSTEM if want.rails is None else "")
    if top < bounds.plateau_bytes:
        reason = f"largest message {size(top)}, at least {size(bounds.plateau_bytes)} is needed"
        return unknown("busbw.small_messages", reason, line, "run with -e 8G")
    configured = " (configured)" if want.given(name) is not None else ""
    at, floor = f"{gbps(value)} at {size(top)}", gbps(bounds.floor)
    part = f", {compared(value, bounds.expected)}" if bounds.expected else ""
    if value < bounds.floor:
        slower = _as_ring(context, name)
        if slower is not None and value >= slower:
            below = f"{at} is below the floor of {floor} for NVLS,"
            lost = nvls_lost(context.log.evidence, context.judged, want.system)
            if lost is not None:
                reason = f"{below} which is lost on these GPUs: {lost.text[:200]}"
                return failed("busbw.below_floor", reason, line)
            reason = f"{below} NCCL's default here, but not for a ring: the log does not say which was used"
            return unknown("busbw.algorithm_unknown", reason, line, TUNING)
        if bounds.low is not None and value >= bounds.low:
            healthy = f"healthy systems that nobody tuned are not below {gbps(bounds.low)}"
            why = NO_SYSTEM if bounds.evidence == "none" else healthy
            return unknown("busbw.low", f"{at}{part}, is below the floor of {floor}; {why}", line, ACCEPT)
        points_at = _part_of_line_rate(context, value) if context.nodes != 1 else ""
        code = "busbw.part_of_line_rate" if points_at else "busbw.below_floor"
        if bounds.expected and value < FAR_BELOW * bounds.expected:
            far = f"only {value / bounds.expected:.1%} of the expected {gbps(bounds.expected)}"
            points_at = f": {far}, as over TCP or with throttled GPUs, PCIe or links"
        floor = gbps(bounds.low or bounds.floor)
        return failed(code, f"{at} is below the floor of {floor}{configured}{points_at}", line)
    if bounds.ceiling is not None and run.highest_busbw > bounds.ceiling:
        highest = max(run.rows, key=lambda r: max(amount(m.busbw) for m in r.measurements))
        above = f"{gbps(run.highest_busbw)} at {size(highest.size)} is above the ceiling"
        why = "not credible (wrong number of nodes or rails, or mixed runs)"
        return failed("busbw.above_ceiling", f"{above} of {gbps(bounds.ceiling)}: {why}", line)
    return passed("busbw.in_range", f"{at}{part}{configured}; floor {floor}", line)


def _as_ring(context: Context, name: str) -> float | None:
    """The lowest value of a healthy ring, if NVLS is expected and NCCL may have chosen a ring."""
    want = context.expectation
    if want.algorithm != "auto" or want.given(name) is not None or name != "all_reduce":
        return None
    return want.model_copy(update={"algorithm": "ring"}).bounds(name).low


def _part_of_line_rate(context: Context, value: float) -> str:
    """A note if the value is half or a quarter of line rate, which points at rails without traffic."""
    system = context.expectation.system
    if system is None or system.line_rate <= 0 or context.expectation.transport == "socket":
        return ""
    for part, words in ((0.5, "half"), (0.25, "a quarter")):
        if abs(value / system.line_rate - part) < 0.03:
            return f": about {words} of line rate (half-rate links, missing rails, or plain Tree)"
    return ""


def busbw(context: Context) -> Check:
    """Check that all wanted collectives lie between their floor and ceiling."""
    if not context.bandwidths:
        return unknown("busbw.no_value", "no table: no bandwidth")
    found = [*context.bandwidths.values()]
    status = min((check.status for check in found), key=ORDER_OF_STATUS.index)
    worst = [check for check in found if check.status == status]
    named = min(worst, key=lambda check: ORDER.index(check.code))
    of_first = {"line": worst[0].line, "evidence": worst[0].evidence}
    return named.model_copy(update={"reason": "; ".join(check.reason for check in worst), **of_first})


def stability(context: Context) -> Check:
    """Check that out-of-place and in-place busbw agree at the largest message, and the rows form a curve.

    An in-place half alone that nccl-tests does not compare (alltoall) is another operation.
    """
    if context.expectation.transport == "socket":
        return not_required("stability.not_required", "TCP on shared machines varies")
    if not context.judged:
        return unknown("stability.no_table", "no table to judge")
    if context.ranks == 1:
        return unknown("stability.no_value", "one rank: nothing is exchanged")
    for run in context.judged:
        row = run.largest_row
        one, two = amount(row.out_of_place.busbw), amount(row.in_place.busbw)
        if max(one, two) <= 0:
            return unknown("stability.no_value", "busbw is 0 at the largest message", row.at)
        slack = rounding(row.out_of_place.busbw) + rounding(row.in_place.busbw)
        if not row.is_out_of_place_only and abs(one - two) - slack > UNSTEADY * max(one, two):
            halves = f"out-of-place {gbps(one)} and in-place {gbps(two)} at {size(row.size)}"
            return failed("stability.differs", f"{halves} differ by over {UNSTEADY:.0%}", row.at)
    for banner in (run.preamble.banner for run in context.judged):
        if banner is not None and 0 < (banner.iterations or FEW) < FEW:
            reason = f"{banner.iterations} iterations of each size: their mean is not that of a steady run"
            return unknown("stability.few_iterations", reason, banner.at, "-n 20")
    if (gap := context.log.gap) is not None:
        return unknown("stability.gap", f"the run stood still among its rows: {gap.text}", gap)
    system = context.expectation.system
    references = {name: envelope(system, name) for name in context.tables}
    rises = [rise(run, references[name]) for name, runs in context.tables.items() for run in runs]
    problems = [found for found in (*map(curve, context.judged), *rises) if found is not None]
    if problems:
        return min(problems, key=lambda check: ORDER_OF_STATUS.index(check.status))
    row = context.judged[0].largest_row
    agree = "are of two operations" if row.is_out_of_place_only else "agree"
    reason = f"{row.out_of_place.busbw} and {row.in_place.busbw} GB/s {agree}, and the curve has no dip"
    without = [name for name, known_good in references.items() if not known_good]
    if without:
        reason += f"; not judged, without known-good curves: how {' and '.join(without)} rises"
    return passed("stability.steady", reason, row.at)
