"""Do the rows agree with the banner, and the numbers of a row with each other?"""

from __future__ import annotations

from busbar.nccl.checks.context import Context
from busbar.nccl.log.records import Half, Run, number
from busbar.nccl.units import exact
from busbar.nccl.verdict import Status

GATHERING = ("all_gather", "reduce_scatter", "alltoall", "alltoallv", "gather", "scatter", "hypercube")
MAX_ROWS = 100_000


def unit(text: str) -> float:
    """Half of the last printed digit: how far a printed value may be from the real one."""
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    power = int(exponent[:5]) if exponent else 0
    return 0.5 * 10.0 ** max(-300, min(300, power - decimals))


def arithmetic(run: Run) -> str | None:
    """algbw must be size / time in every half, within the rounding of the three printed values."""
    for row in run.rows:
        for half in (row.out_of_place, row.in_place):
            if not _consistent(row.size, half):
                return (
                    f"line {row.line}: {exact(row.size)} in {half.time} us is not {half.algbw} GB/s: the row "
                    "is damaged, or was put together from two"
                )
    return None


def _consistent(size: int, half: Half) -> bool:
    time, algbw, busbw = number(half.time), number(half.algbw), number(half.busbw)
    if time is None or algbw is None or busbw is None or time <= 0 or algbw < 0 or busbw < 0:
        return False
    low = size / (time + unit(half.time)) / 1000 - unit(half.algbw)
    high = size / max(time - unit(half.time), 1e-9) / 1000 + unit(half.algbw)
    return low * 0.9999 <= algbw <= high * 1.0001


def ladder(run: Run, context: Context) -> tuple[Status, str]:
    """Sizes of the rows against those that the banner (or the expectation) asks for."""
    banner, want = run.preamble.banner, context.expectation
    if banner is None:
        return "unknown", "no banner: how many sizes were asked for is not known"
    if want.min_bytes is not None and banner.min_bytes != want.min_bytes:
        return (
            "fail",
            f"smallest message {exact(banner.min_bytes)}, not {exact(want.min_bytes)}: another run's log",
        )
    if want.max_bytes is not None and banner.max_bytes != want.max_bytes:
        return (
            "fail",
            f"largest message {exact(banner.max_bytes)}, not {exact(want.max_bytes)}: another run's log",
        )
    top = banner.max_bytes
    if run.preamble.reduced_max is not None:
        top = min(top, run.preamble.reduced_max)
        if want.max_bytes is not None and top < want.max_bytes:
            return (
                "fail",
                f"GPU memory allowed {exact(top)} only, asked for {exact(want.max_bytes)}",
            )
    sizes = _sizes(banner.min_bytes, top, banner.step, banner.by)
    if sizes is None:
        return (
            "fail",
            f"the banner asks for an impossible ladder ({banner.min_bytes} to {top} by {banner.step})",
        )
    for kind in dict.fromkeys((r.type, r.redop, r.root) for r in run.rows):
        got = [r.size for r in run.rows if (r.type, r.redop, r.root) == kind]
        problem = _compare(sizes, got, context.ranks or 1)
        if problem:
            return "fail", problem
    return "pass", ""


def _sizes(low: int, high: int, step: int, by: str) -> list[int] | None:
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
            f"{len(got)} rows, the banner asks for {len(want)} sizes ({exact(want[0])} to {exact(want[-1])})"
        )
    # data is cut into ranks x 16 B pieces by some collectives, into whole elements by all
    piece = max(16, ranks * 16)
    for expected, size in zip(want, got, strict=True):
        if not expected - piece < size <= expected:
            return f"a row of {exact(size)} stands where {exact(expected)} was asked for"
    return None
