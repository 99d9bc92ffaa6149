"""Sizes, times and bandwidths as text."""

from __future__ import annotations

NAMES = ("B", "KiB", "MiB", "GiB", "TiB")
PERCENT_LIMIT = 2.0  # a fraction from here on is printed as a multiple


def size(value: int) -> str:
    """A size as text: 536870912 -> 512 MiB; sizes that are not a whole unit have two decimals."""
    amount, names = float(value), list(NAMES)
    while amount >= 1024 and len(names) > 1:
        amount /= 1024
        names.pop(0)
    text = f"{amount:.2f}".rstrip("0").rstrip(".")
    return f"{text} {names[0]}"


def exact(value: int) -> str:
    """An exact size: 536870912 -> 512 MiB, 536870916 -> 536870916 B. Different sizes have different texts."""
    names = list(NAMES)
    while value and value % 1024 == 0 and len(names) > 1:
        value //= 1024
        names.pop(0)
    return f"{value} {names[0]}"


def rate(value: float | None) -> str:
    """GB/s for a column: two decimals as nccl-tests prints, below 1 three digits (0.0182); None is -."""
    if value is None:
        return "-"
    return f"{value:.2f}" if abs(value) >= 1 else max(f"{value:.2f}", f"{value:.3g}", key=len)


def gbps(value: float) -> str:
    """GB/s for a sentence: 390.28 GB/s, 400 GB/s, 0.018 GB/s."""
    text = rate(value)
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} GB/s"


def short(value: float) -> str:
    """A number beside a line of a plot: three digits, 390 or 0.0182."""
    return f"{value:.0f}" if abs(value) >= 100 else gbps(float(f"{value:.3g}")).removesuffix(" GB/s")


def share(value: float | None) -> str:
    """A fraction as text: 0.976 -> 97.6 %; from PERCENT_LIMIT on 35.0 -> 35x; None is -."""
    if value is None:
        return "-"
    return f"{value * 100:.1f} %" if value < PERCENT_LIMIT else f"{value:.3g}x"


def compared(value: float, expected: float) -> str:
    """A comparison: 97.6 % of the expected 400 GB/s; 35x the expected 0.02 GB/s."""
    part = share(value / expected)
    return f"{part}{'' if part.endswith('x') else ' of'} the expected {gbps(expected)}"


def duration(us: float) -> str:
    """Microseconds in the unit that reads best."""
    divisor, unit = (1, "us") if us < 1e3 else (1e3, "ms") if us < 1e6 else (1e6, "s")
    return f"{us / divisor:.4g} {unit}"
