"""Whatever stands in the configuration, the answer is a cluster or a list of findings: never a traceback."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.config import Cluster, ConfigError, load
from tests.support.arbitrary import ANYTHING, places, replaced
from tests.support.clusters import site

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


@settings(max_examples=300)
@given(place=st.sampled_from(places(FULL)), value=ANYTHING)
def test_any_value_in_any_place_gives_a_cluster_or_findings(place: tuple[Any, ...], value: Any) -> None:
    try:
        assert isinstance(load(replaced(FULL, place, value)), Cluster)
    except ConfigError as error:
        assert error.findings
        assert all(": " in finding for finding in map(str, error.findings))
