"""Differences between two sets of inputs, property by property."""

from __future__ import annotations

from typing import Any

from lab.offline.plugins.sdk.resource import ADD, DELETE, UPDATE
from lab.offline.plugins.sdk.values import Properties, asset_kind, reveal

_MISSING = object()


def changes(old: Properties, new: Properties) -> dict[str, str]:
    """Path of every changed leaf to ADD, DELETE or UPDATE; secrets are compared by what they hide.

    Paths are written as the engine writes them: `connection.port`, `triggers[0]`, `labels["a.b"]`.
    """
    found: dict[str, str] = {}
    _compare("", reveal(old), reveal(new), found)
    return found


def _compare(path: str, old: Any, new: Any, found: dict[str, str]) -> None:
    if new is _MISSING:
        found[path] = DELETE
    elif old is _MISSING:
        found[path] = ADD
    elif isinstance(old, dict) and isinstance(new, dict) and not asset_kind(old) and not asset_kind(new):
        for key in sorted(old.keys() | new.keys()):
            _compare(child(path, key), old.get(key, _MISSING), new.get(key, _MISSING), found)
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            _compare(f"{path}[{index}]", _item(old, index), _item(new, index), found)
    elif asset_kind(old) and asset_kind(new):
        if _same_asset(old, new):
            return
        found[path] = UPDATE
    elif isinstance(old, bool) != isinstance(new, bool) or old != new:
        found[path] = UPDATE


def _item(items: list[Any], index: int) -> Any:
    return items[index] if index < len(items) else _MISSING


def _same_asset(old: dict[str, Any], new: dict[str, Any]) -> bool:
    # The engine fills in the hash of the content; where both have one the rest is only where it came from.
    if old.get("hash") and new.get("hash"):
        return bool(old["hash"] == new["hash"])
    return old == new


def child(path: str, key: str) -> str:
    """The path of `key` inside the object at `path`."""
    if any(character in key for character in '."[]'):
        escaped = key.replace('"', '\\"')
        return f'{path}["{escaped}"]'
    return f"{path}.{key}" if path else key
