"""Names and numbers in sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence


def counted(number: int | None, what: str) -> str:
    """A number with its noun: 1 node, 2 nodes; ? nodes if the number is not known."""
    return f"{'?' if number is None else number} {what}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], limit: int = 4) -> str:
    """The first names, and how many more there are: `a, b and 7 more`."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def natural(name: str) -> list[int | str]:
    """A key for an order in which mlx5_2 comes before mlx5_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def ago(seconds: float) -> str:
    """A duration in its largest unit: `3 h`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
