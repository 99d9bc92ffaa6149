"""Crusoe's Terraform provider behind Pulumi's bridge: resources and properties from a table, sample values.

The table (crusoe.json) is data from the provider's published documentation: names, types, what is required
and what is read-only. Anything that is not in it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lab.offline.plugins.sdk import structural
from lab.offline.plugins.sdk.provider import Provider
from lab.offline.plugins.sdk.resource import Call, Difference, Failure, ProviderError, Resource, unique
from lab.offline.plugins.sdk.values import UNKNOWN, Properties, Unknown, reveal

TABLE = json.loads(Path(__file__).with_name("crusoe.json").read_text(encoding="utf-8"))
REMOTE = {"remote": {"url": "registry.opentofu.org/crusoecloud/crusoe", "version": "1.1.1"}}
# Free slices of the only InfiniBand network.
SLICES = 512
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "String": str,
    "Boolean": bool,
    "Number": (int, float),
    "Attributes": dict,
    "Attributes List": list,
    "Attributes Set": list,
    "List of String": list,
}


class TerraformProvider(Provider):
    """Behaves as the bridge 1.1.3 with crusoecloud/crusoe 1.1.1, as far as the table goes."""

    name = "terraform-provider"
    version = "1.1.3"

    def parameterize(self, name: str, version: str, value: bytes) -> None:
        """Take the parameter of a package. Raises ProviderError for any other provider or version."""
        if (name, version, json.loads(value)) != ("crusoe", "1.1.1", REMOTE):
            raise ProviderError(f"this replacement of the bridge has no provider {name} {version}: {value!r}")

    def resource(self, type_token: str) -> Resource:
        for name, properties in TABLE["resources"].items():
            if type_token == _token(name):
                return _Bridged(properties)
        raise ProviderError(f"this replacement of the bridge has no resource {type_token!r}")

    def invoke(self, token: str, args: Properties) -> Properties:
        if token != _token("get_ib_networks", is_function=True):
            return super().invoke(token, args)
        capacity = {"quantity": SLICES, "sliceType": "h100-80gb-sxm-ib.8x"}
        network = {"id": "ib-1", "name": "ib-1", "location": "us-east1-a", "capacities": [capacity]}
        return {"ibNetworks": [network]}


class _Bridged(Resource):
    """One resource of the table; its properties have the names of Pulumi."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = properties

    def check(self, call: Call, olds: Properties, news: Properties) -> tuple[Properties, list[Failure]]:
        given = {key: value for key, value in reveal(news).items() if not key.startswith("__")}
        return news, [Failure(path, why) for path, why in _problems(self._properties, given)]

    def diff(self, call: Call, id: str, state: Properties, news: Properties) -> Difference:
        # A changed input replaces: the table does not say which ones can be changed in place.
        found = structural.changes(call.old_inputs or {}, news)
        return Difference({path: f"{kind}_REPLACE" for path, kind in found.items()})

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        if call.preview:
            return "", _filled(self._properties, inputs, None)
        number = int.from_bytes(unique("").encode()[:3])
        return unique("crusoe-"), _filled(self._properties, inputs, number)

    def delete(self, call: Call, id: str, state: Properties) -> None:
        """Nothing exists outside the state."""


def _problems(
    properties: Mapping[str, Any], given: Mapping[str, Any], path: str = ""
) -> Iterator[tuple[str, str]]:
    known = {_camel(name): each for name, each in properties.items()}
    for name, each in known.items():
        if each["mode"] == "required" and given.get(name) is None:
            yield f"{path}{name}", "is required"
    for name, value in given.items():
        each = known.get(name)
        if each is None or each["mode"] == "read-only":
            yield f"{path}{name}", "is not an argument of this resource"
        elif not isinstance(value, Unknown) and value is not None:
            if not isinstance(value, _TYPES[each["type"]]) or (each["type"] == "Number" and value is True):
                yield f"{path}{name}", f"is not of the type {each['type']}"
                continue
            items: list[Any] = value if isinstance(value, list) else [value]
            for item in items:
                if "properties" in each and not isinstance(item, Unknown):
                    yield from _problems(each["properties"], item, f"{path}{name}.")


def _filled(properties: Mapping[str, Any], given: Any, number: int | None) -> dict[str, Any]:
    """The values with samples for those that only the provider knows; unknown without a number."""
    made = dict(given)
    for name, each in properties.items():
        key, inner = _camel(name), each.get("properties")
        if each["mode"] == "read-only" and each["type"] == "Attributes":
            made[key] = _filled(inner, {}, number)
        elif each["mode"] == "read-only" and key != "id":
            sample = f"10.0.{number % 200}.{number // 200 % 250 + 1}" if number is not None else UNKNOWN
            made[key] = sample if each["type"] == "String" else made.get(key)
        elif inner and isinstance(made.get(key), list):
            made[key] = [_filled(inner, item, number) for item in made[key]]
        elif inner and isinstance(made.get(key), dict):
            made[key] = _filled(inner, made[key], number)
    return {key: value for key, value in made.items() if value is not None}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each.title() for each in rest)


def _token(name: str, *, is_function: bool = False) -> str:
    kind = _camel(name)
    return f"crusoe:index/{kind}:{kind if is_function else kind[0].upper() + kind[1:]}"
