"""The bounds of the numbers and lists of the configuration: the last value that fits, and the next."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from busbar.config import ConfigError, load
from busbar.config.schema import stack_schema
from tests.support.clusters import site
from tests.unit.preflight.samples import HOST_KEY

ANY = math.inf
# Place -> the least and the greatest value.
BOUNDS: dict[str, tuple[float, float]] = {
    "gpu_operator.timeout_seconds": (1, ANY),
    "hosts.virtual_ip.router_id": (1, 255),
    "hosts.workers.0.port": (1, 65535),
    "k3s.rotate.agent_token": (0, ANY),
    "k3s.rotate.certificates": (0, ANY),
    "k3s.rotate.encryption_key": (0, ANY),
    "k3s.rotate.server_token": (0, ANY),
    "k3s.snapshots.retention": (1, ANY),
    "mpi_operator.timeout_seconds": (1, ANY),
    "network_operator.timeout_seconds": (1, ANY),
    "pools.h100.drain_timeout_seconds": (10, 3600),
    "pools.h100.gpus": (1, 64),
    "pools.h100.min_disk_gb": (1, ANY),
    "pools.h100.pause_seconds": (0, 3600),
    "pools.h100.rails": (1, 64),
    "pools.h100.rate_gbps": (1, 3200),
    "ssh.port": (1, 65535),
    "validation.busy_deadline_seconds": (30, ANY),
    "validation.deadline_seconds": (30, ANY),
    "validation.diagnose.deadline_seconds": (60, ANY),
    "validation.diagnose.group_seconds": (5, ANY),
    "validation.diagnose.node_minutes": (1, ANY),
    "validation.diagnose.parallel": (1, 1024),
    "validation.iterations": (1, ANY),
    "validation.min_nodes_fraction": (0.001, 1),
    "validation.run": (1, ANY),
    "validation.slots_per_worker": (1, ANY),
    "validation.step_factor": (2, ANY),
    "validation.tolerance": (0, 0.999),
    "validation.warmup": (0, ANY),
}
# Place -> how few and how many entries.
LENGTHS = {
    "hosts.load_balancers": (0, 2),
    "hosts.servers": (1, ANY),
    "hosts.workers": (1, ANY),
    "validation.collectives": (1, ANY),
}


def found(place: str, value: Any) -> list[str]:
    """What is found wrong at the place itself, where this value stands there."""
    data = copy.deepcopy(site(load_balancers=2))
    *above, last = [int(word) if word.isdigit() else word for word in place.split(".")]
    node: Any = data
    for step in above:
        node = node[step] if isinstance(step, int) else node.setdefault(step, {})
    node[last] = value
    path = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in place.split("."))[1:]
    try:
        load(data)
    except ConfigError as error:
        return [finding for finding in error.findings if finding.partition(":")[0].split()[0] == path]
    return []


@pytest.mark.parametrize(("place", "bounds"), BOUNDS.items())
def test_a_number_outside_of_its_bounds_is_refused_with_its_place(
    place: str, bounds: tuple[float, float]
) -> None:
    least, greatest = bounds
    step = 0.001 if isinstance(greatest, float) and greatest < 1 else 1
    assert found(place, least) == []
    assert len(found(place, least - 1)) == 1
    if greatest < ANY:
        assert found(place, greatest) == []
        assert len(found(place, greatest + step)) == 1


@pytest.mark.parametrize(("place", "lengths"), LENGTHS.items())
def test_a_list_with_too_few_or_too_many_entries_is_refused_with_its_place(
    place: str, lengths: tuple[float, float]
) -> None:
    assert len(found(place, [])) == (lengths[0] > 0)
    if lengths[1] < ANY:
        entry = {"name": "x", "address": "10.0.9.9", "host_key": HOST_KEY}
        assert len(found(place, [entry] * int(lengths[1] + 1))) >= 1


def test_the_table_has_every_bound_of_the_schema() -> None:
    """A new key with a bound needs its line above; the same key elsewhere (a port) needs none."""
    named = {place.rpartition(".")[2] for place in (*BOUNDS, *LENGTHS)}
    bounded: set[str] = set()

    def walk(name: str, node: Any) -> None:
        if isinstance(node, dict):
            if {"minimum", "maximum", "minItems", "maxItems"} & node.keys():
                bounded.add(name)
            for key, value in node.items():
                inner = (
                    name if key in ("anyOf", "additionalProperties", "properties", "$defs", "items") else key
                )
                walk(inner, value)
        elif isinstance(node, list):
            for value in node:
                walk(name, value)

    walk("", stack_schema())
    assert bounded - named == {"roles", "min_free_gb"}
