"""Checks that the rows agree with the arguments, and the numbers of a row with each other."""

from __future__ import annotations

from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.checks.result import Check, failed, unknown
from busbar.judge.nccl.log.collective import BYTES, IN_PARTS, WHOLE, infer, is_scaled
from busbar.judge.nccl.log.records import Banner, Measurement, Run, number, rounding
from busbar.judge.nccl.units import exact

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
