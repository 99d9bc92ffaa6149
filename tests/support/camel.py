"""Configurations as programs in other languages write them."""

from __future__ import annotations

from typing import Any

from pulumi.provider.experimental.util import camel_case


def camel(schema: dict[str, Any], value: Any, definition: dict[str, Any]) -> Any:
    """The value of a property with the names of the provider's schema. Raises KeyError for an unknown key."""
    if isinstance(value, list):
        return [camel(schema, each, definition["items"]) for each in value]
    if not isinstance(value, dict):
        return value
    known = schema["types"].get(definition.get("$ref", "").removeprefix("#/types/"))
    if known is None:
        inner = definition.get("additionalProperties", {})
        return {key: camel(schema, each, inner) for key, each in value.items()}
    named = {camel_case(key): each for key, each in value.items()}
    return {key: camel(schema, each, known["properties"][key]) for key, each in named.items()}
