"""Checks that the rows of a table form a curve: latency for small messages, no dips, and flat at its end.

Thresholds are from the public logs: of their healthy curves, the last two sizes differ by up to 7 %, no size
above 64 MiB lies more than 8 % below its neighbours, and small messages are slowed down by up to 25 times
for one or two sizes in a row, but not sped up.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from busbar.judge.nccl.checks.result import Check, failed, unknown
from busbar.judge.nccl.expected.curves import Rise
from busbar.judge.nccl.log.records import Row, Run, amount
from busbar.judge.nccl.units import duration, exact, gbps, share

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
            reason = (
                f"{gbps(speed)} at {exact(row.size)}: known-good curves of this class have at least "
                f"{share(least.of_plateau)} of their last row there"
                + (f", and {share(least.of_next)} of the next size" if steep else "")
            )
            return unknown("stability.slow_rise", reason, row.as_line)
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
            yield unknown("stability.iterations", reason, row.as_line)
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
            yield failed("stability.dip", reason, rows[i].as_line)
        beside = max(values[i - 1], values[i + 1])
        if values[i] > (1 + JUMP) * beside:
            reason = f"{at}, although its neighbours reach {gbps(beside)} only"
            yield failed("stability.jump", reason, rows[i].as_line)


def _end(rows: list[Row], values: list[float], name: str) -> Iterator[Check]:
    if len(rows) < 2 or rows[-2].size == rows[-1].size:
        return
    before, last = values[-2:]
    said = f"{name} at {exact(rows[-1].size)}: {gbps(last)}"
    if last < (1 - LAST_SIZES) * before:
        reason = (
            f"{said}, at {exact(rows[-2].size)}: {gbps(before)}; they must agree within {share(LAST_SIZES)}"
        )
        yield failed("stability.last_sizes", reason, rows[-1].as_line)
    elif last < (1 - FALL) * max(values):
        reason = f"{said}, although smaller messages reach {gbps(max(values))}"
        yield failed("stability.dip", reason, rows[-1].as_line)
    elif before < (1 - LAST_SIZES) * last:
        reason = f"{said}, at {exact(rows[-2].size)} only {gbps(before)}: not flat"
        yield unknown("stability.rising", reason, rows[-1].as_line, "measure larger messages")


def _latencies(rows: list[Row], times: list[float], name: str) -> Iterator[Check]:
    """Check the latencies. The first rows warm up and are slower, so nothing is compared with them."""
    sizes = [row.size for row in rows]
    for i in range(NEIGHBOURS + 1, len(rows)):
        least = min(times[i - NEIGHBOURS : i])
        if times[i] < TOO_FAST * least:
            reason = (
                f"{name} at {exact(sizes[i])}: {duration(times[i])}, less than half of the time of the "
                f"{NEIGHBOURS} smaller messages before it ({duration(least)} at least)"
            )
            yield failed("stability.latency", reason, rows[i].as_line)
