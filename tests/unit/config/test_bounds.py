"""The bounds of the schema: the last value that fits, and the next, with their place."""

from collections.abc import Iterator
from typing import Any

import pytest

from busbar.config import ConfigError, load
from busbar.config.stackfile import stack_schema
from tests.support.clusters import site
from tests.unit.config.edits import edited

SCHEMA = stack_schema()
CLUSTER = SCHEMA["properties"]["config"]["properties"]["busbar:cluster"]
SITE = site(load_balancers=2)
SIDES = {"minimum": -1, "maximum": 1, "exclusiveMinimum": 0, "exclusiveMaximum": 0}


def bounded(node: Any, place: str = "", inside: Any = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each place of the schema with a bound. Entries of lists and mappings are the first ones of SITE."""
    if "$ref" in node:
        node = SCHEMA["$defs"][node["$ref"].rpartition("/")[2]]
    if {*SIDES, "minItems", "maxItems"} & node.keys():
        yield place, node
    for part in node.get("anyOf", ()):
        yield from bounded(part, place, inside)
    below = dict(node.get("properties", {}))
    for part in node.get("patternProperties", {}).values():
        below |= dict.fromkeys(list(inside or {})[:1], part)
    for key, part in below.items():
        yield from bounded(part, f"{place}.{key}", inside.get(key, {}) if isinstance(inside, dict) else {})
    if inside and isinstance(inside, list):
        yield from bounded(node["items"], f"{place}[0]", inside[0])


PLACES = {place[1:]: node for place, node in bounded(CLUSTER, inside=SITE)}


def found(place: str, value: Any) -> list[str]:
    """What is found wrong at the place itself, where this value stands there."""
    try:
        load(edited({place: value}, load_balancers=2))
    except ConfigError as error:
        return [each for each in map(str, error.findings) if each.partition(":")[0].split()[0] == place]
    return []


def test_the_places_with_bounds_are_found() -> None:
    some = {"hosts.servers", "hosts.workers[0].port", "pools.h100.gpus", "validation.tolerance"}
    assert some <= PLACES.keys()


@pytest.mark.parametrize("place", PLACES)
def test_a_value_outside_of_its_bounds_is_refused_with_its_place(place: str) -> None:
    node = PLACES[place]
    for side, step in SIDES.items():
        if side in node:
            assert len(found(place, node[side] + step)) == 1
            assert not step or found(place, node[side]) == []
    if node.get("minItems"):
        assert len(found(place, [])) == 1
    if "maxItems" in node:
        entries = SITE["hosts"]["load_balancers"][:1] * (node["maxItems"] + 1)
        assert found(place, entries)
