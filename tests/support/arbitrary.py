"""Configurations in which one value is replaced by anything."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a nested object."""
    found = [path] if path else []
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        found += places(value, (*path, key))
    return found


def replaced(data: Any, place: tuple[Any, ...], value: Any) -> Any:
    """A copy of `data` with `value` at `place`."""
    made = copy.deepcopy(data)
    node = made
    for step in place[:-1]:
        node = node[step]
    node[place[-1]] = value
    return made
