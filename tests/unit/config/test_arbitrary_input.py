"""Whatever stands in the configuration, the answer is a cluster or a list of findings: never a traceback."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.config import Cluster, ConfigError, load
from tests.support.clusters import site

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


FULL = site(
    load_balancers=2,
    k3s={
        "version": "v1.35.6+k3s1",
        "checksums_file": "s",
        "images": [{"url": "http://m/a.tar", "roles": ["worker"]}],
    },
    gpu_operator={"version": "v26.7.0", "values": {"driver": {"enabled": False}}},
    network_operator={"version": "26.7.0"},
    validation={"min_bytes": "1M", "max_bytes": "8G", "collectives": ["all_reduce"], "env": {"A": "b"}},
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(place=st.sampled_from(places(FULL)), value=ANYTHING)
def test_one_value_replaced_by_anything_gives_a_cluster_or_findings(
    place: tuple[Any, ...], value: Any
) -> None:
    data = copy.deepcopy(FULL)
    node: Any = data
    for step in place[:-1]:
        node = node[step]
    node[place[-1]] = value
    try:
        assert isinstance(load(data), Cluster)
    except ConfigError as error:
        assert error.findings
        assert all(": " in finding for finding in error.findings)
