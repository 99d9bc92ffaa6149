"""Sizes, times and bandwidths in the words that people use."""

from __future__ import annotations


def size(value: int) -> str:
    """536870912 -> 512 MiB; sizes that are no whole unit keep two decimals."""
    amount, names = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(names) > 1:
        amount /= 1024
        names.pop(0)
    text = f"{amount:.2f}".rstrip("0").rstrip(".")
    return f"{text} {names[0]}"


def rate(value: float | None) -> str:
    """GB/s with two decimals, or a dash."""
    return "-" if value is None else f"{value:.2f}"


def duration(us: float) -> str:
    """Microseconds in the unit that reads best."""
    for limit, divisor, unit in ((1e3, 1, "us"), (1e6, 1e3, "ms"), (float("inf"), 1e6, "s")):
        if us < limit:
            return f"{us / divisor:.4g} {unit}"
    return f"{us} us"
