"""The annotation pulumi.com/waitFor: one condition, or a JSON list of which all must hold."""

from __future__ import annotations

import json
import re
from typing import Any

from lab.offline.plugins.kubernetes.client import Object
from lab.offline.plugins.kubernetes.jsonpath import JsonPathError, parse
from lab.offline.plugins.kubernetes.kinds import metadata
from lab.offline.plugins.kubernetes.readiness import Check, Readiness
from lab.offline.plugins.sdk.resource import ProviderError


def check_for(text: str) -> Check:
    """A check for the annotation's value; raises ProviderError where it cannot be read."""
    try:
        values = json.loads(text)
    except ValueError:
        values = [text]
    if not isinstance(values, list) or not values:
        values = [text]
    checks = [_single(str(value)) for value in values]

    def check(obj: Object) -> Readiness:
        results = [check(obj) for check in checks]
        waiting = [result.progress for result in results if not result.ready]
        return Readiness(not waiting, "; ".join(waiting))

    return check


def _single(text: str) -> Check:
    kind, _, expression = text.partition("=")
    if kind == "jsonpath":
        return _jsonpath(expression)
    if kind == "condition":
        return _condition(expression)
    raise ProviderError(f'expected a "jsonpath=" or "condition=" prefix, got "{text}"')


def _jsonpath(expression: str) -> Check:
    # Only a single "=" separates the value; "==" belongs to a filter.
    parts = re.split(r"(?<![=!<>])=(?!=)", expression)
    if len(parts) > 2 or (len(parts) == 2 and not parts[1]):
        raise ProviderError(f'format should be {{.path}}=value or {{.path}}, got "{expression}"')
    braces = re.fullmatch(r"\{\s*(.*?)\s*\}", parts[0])
    if not braces:
        raise ProviderError(f"{parts[0]} should be wrapped in brackets {{ ... }}")
    path = braces[1] if braces[1].startswith("$") else f"${braces[1]}"
    try:
        select = parse(path)
    except JsonPathError as error:
        raise ProviderError(f'parsing "{parts[0]}": {error}') from error
    wanted = parts[1] if len(parts) == 2 else None

    def check(obj: Object) -> Readiness:
        found = select(obj)
        if not _current(obj):
            return Readiness(False, f"Waiting for {expression}")
        if not found:
            return Readiness(False, f"{parts[0]} selected nothing")
        if wanted is None or _text(found[0]) == wanted:
            return Readiness(True)
        return Readiness(False, f'Waiting for {expression} (found "{_text(found[0])}")')

    return check


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "<nil>" if value is None else str(value)


def _condition(expression: str) -> Check:
    name, _, wanted = expression.partition("=")
    wanted = wanted or "True"

    def check(obj: Object) -> Readiness:
        for item in (obj.get("status") or {}).get("conditions") or []:
            if str(item.get("type", "")).lower() != name.lower():
                continue
            status = str(item.get("status", ""))
            stale = int(item.get("observedGeneration", 10**12)) < int(metadata(obj).get("generation", 0))
            if not stale and _current(obj) and status.lower() == wanted.lower():
                return Readiness(True)
            return Readiness(False, f"Resource has condition {name}={status} (want {wanted})")
        return Readiness(False, f"Waiting for condition {name}={wanted}")

    return check


def _current(obj: Object) -> bool:
    observed = (obj.get("status") or {}).get("observedGeneration")
    return observed is None or int(observed) >= int(metadata(obj).get("generation", 0))
