"""A user's further keys laid over ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """`theirs` over `ours`: a list is appended (arguments add up), anything else replaces.

    `key` and K3s's own `key+` mean the same, since a list is never replaced here.
    """
    result = dict(ours)
    for name, value in theirs.items():
        key = name.removesuffix("+")
        present = result.get(key)
        if isinstance(present, list):
            result[key] = [*present, *(value if isinstance(value, list) else [value])]
        else:
            result[key] = value
    return result
