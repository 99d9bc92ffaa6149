"""Reading numbers out of JSON that another program wrote."""

from __future__ import annotations

import math
from typing import Any


def number(value: Any, *, digits: int | None = None) -> float | None:
    """A finite number as a float, rounded to `digits` decimals; None for anything else, booleans too."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if digits is None else round(float(value), digits)
