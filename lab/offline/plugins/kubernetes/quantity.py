"""Kubernetes quantities, compared by what they mean: the server rewrites "1000m" as "1"."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

_SPELLING: Final = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")
_FACTORS: Final[dict[str, Decimal]] = {
    "": Decimal(1),
    **{name: Decimal(10) ** power for name, power in zip("num", (-9, -6, -3), strict=True)},
    **{name: Decimal(1000) ** power for power, name in enumerate("kMGTPE", start=1)},
    **{f"{name}i": Decimal(1024) ** power for power, name in enumerate("KMGTPE", start=1)},
}


def parse(value: Any) -> Decimal | None:
    """The number that a quantity such as "64Gi" or "250m" stands for, None for other values."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    match = _SPELLING.fullmatch(str(value))
    if not match:
        return None
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _FACTORS:
        return number * _FACTORS[suffix]
    return number * Decimal(10) ** int(suffix[1:])


def same(one: Any, other: Any) -> bool:
    """Whether both are quantities of the same size."""
    left = parse(one)
    return left is not None and left == parse(other)
