"""Differences between the stored live object and the inputs that are wanted now.

pulumi-kubernetes compares the new inputs with the part of the live object that the old inputs
set, so that drift recorded by a refresh shows up and fields that the server filled in do not.
"""

from __future__ import annotations

from typing import Any

from lab.offline.plugins.kubernetes import quantity
from lab.offline.plugins.kubernetes.client import Object
from lab.offline.plugins.kubernetes.immutable_fields import forces_replacement
from lab.offline.plugins.sdk.resource import ADD, DELETE, UPDATE
from lab.offline.plugins.sdk.structural import child
from lab.offline.plugins.sdk.values import Unknown

_MISSING = object()


def changes(
    live: Object, new: Object, old: Object, immutable: tuple[str, ...], *, built_in: bool
) -> dict[str, str]:
    """Path of every changed field to its kind of change.

    `live` is pruned to the shape of the `old` inputs. For a `built_in` kind an empty value that the server
    dropped is not a change as long as the program has not touched it.
    """
    found: dict[str, tuple[str, Any]] = {}
    _compare("", live, new, old, found, built_in)
    return {
        path: f"{kind}_REPLACE"
        if forces_replacement(path, value, immutable) or _drops_metadata(path, kind)
        else kind
        for path, (kind, value) in found.items()
    }


def _drops_metadata(path: str, kind: str) -> bool:
    return path == "metadata" and kind == DELETE


def _compare(
    path: str, live: Any, new: Any, old: Any, found: dict[str, tuple[str, Any]], built_in: bool
) -> None:
    if isinstance(new, Unknown):
        found[path] = (ADD if live is _MISSING else UPDATE, new)
    elif new is _MISSING or new is None:
        if live is not _MISSING and live is not None:
            found[path] = (DELETE, None)
    elif live is _MISSING or live is None:
        dropped_by_server = built_in and new == old and _is_empty(new)
        if not dropped_by_server:
            found[path] = (ADD, new)
    elif isinstance(live, dict) and isinstance(new, dict):
        before = old if isinstance(old, dict) else {}
        for key in sorted(live.keys() | new.keys()):
            _compare(
                child(path, key),
                live.get(key, _MISSING),
                new.get(key, _MISSING),
                before.get(key, _MISSING),
                found,
                built_in,
            )
    elif isinstance(live, list) and isinstance(new, list):
        for index in range(max(len(live), len(new))):
            _compare(
                f"{path}[{index}]",
                _item(live, index),
                _item(new, index),
                _item(old if isinstance(old, list) else [], index),
                found,
                built_in,
            )
    elif not _same(live, new) and not (built_in and new == old and quantity.same(live, new)):
        found[path] = (UPDATE, new)


def _item(items: list[Any], index: int) -> Any:
    return items[index] if index < len(items) else _MISSING


def _is_empty(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_empty(item) for item in value.values())
    return value in ([], "", 0, False)


def _same(live: Any, new: Any) -> bool:
    return isinstance(live, bool) == isinstance(new, bool) and bool(live == new)


def as_written(live: Any, old: Any) -> Any:
    """The pruned `live` value, spelled as in the `old` inputs wherever it means the same.

    A refresh stores this as the new inputs: what the server merely rewrote must not look like drift.
    """
    if isinstance(live, dict) and isinstance(old, dict):
        kept = {key: as_written(value, old[key]) for key, value in live.items() if key in old}
        return kept | {key: value for key, value in old.items() if key not in live and _is_empty(value)}
    if isinstance(live, list) and isinstance(old, list) and len(live) == len(old):
        return [as_written(value, before) for value, before in zip(live, old, strict=True)]
    return old if quantity.same(live, old) else live
