"""Reading JSON that another program wrote."""

from __future__ import annotations

import math
from typing import Any

from pydantic import ValidationError


def number(value: Any, *, digits: int | None = None) -> float | None:
    """A finite number as a float, rounded to `digits` decimals; None for anything else, booleans too."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if digits is None else round(float(value), digits)


def problems(error: ValidationError) -> str:
    """What does not fit a model, each with its path and what was found."""
    return "; ".join(
        f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}, got {detail['input']!r}"
        for detail in error.errors()
    )
