"""Where workers are in the fabric: levels that a scheduler can use are named by all workers of a pool."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.config import load
from busbar.hosts.inventory import Inventory
from tests.support.clusters import H100_POOL, site
from tests.unit.config.edits import findings


def placed(*places: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """A site whose workers have these places."""
    data = site(workers={"h100": len(places)}, **sections)
    for worker, place in zip(data["hosts"]["workers"], places, strict=True):
        worker["topology"] = place
    return data


def test_a_worker_without_a_place_has_no_label_of_its_own() -> None:
    assert [worker.labels for worker in Inventory.of(load(site())).workers] == [(), ()]


def test_the_levels_of_a_worker_become_labels_of_its_node_the_farthest_first() -> None:
    place = {"nvlink_domain": "rack-7", "rail_group": "su03", "block": 1}
    [worker] = Inventory.of(load(placed(place))).workers
    assert worker.labels == (
        ("fabric.topograph.run/tier-1", "1"),
        ("fabric.topograph.run/tier-0", "su03"),
        ("accelerator.topograph.run/domain", "rack-7"),
    )


def test_a_level_that_some_workers_of_a_pool_lack_is_refused_because_schedulers_pass_over_them() -> None:
    assert findings(placed({"rail_group": "a"}, {}, {"rail_group": "b"})) == [
        "hosts.workers[1].topology.rail_group: missing: 2 of 3 workers of pool h100 have it, and schedulers "
        "pass over a Node without it. Fix: set it"
    ]


def test_workers_that_name_no_pool_are_compared_with_those_of_the_only_one() -> None:
    data = placed({"rail_group": "a"}, {})
    for worker in data["hosts"]["workers"]:
        worker.pop("pool", None)
    [found] = findings(data)
    assert found.startswith("hosts.workers[1].topology.rail_group: missing: 1 of 2 workers of pool h100")


def test_pools_may_have_different_levels() -> None:
    data = site(workers={"h100": 1, "a100": 1})
    data["hosts"]["workers"][0]["topology"] = {"rail_group": "a"}
    assert [bool(worker.labels) for worker in Inventory.of(load(data)).workers] == [True, False]


def test_a_label_of_the_topology_is_not_set_by_the_pool_too() -> None:
    pool = {**H100_POOL, "labels": {"fabric.topograph.run/tier-0": "x"}}
    assert findings(placed({"rail_group": "a"}, pools={"h100": pool})) == [
        "pools.h100.labels: 'fabric.topograph.run/tier-0' is the label of "
        "hosts.workers[0].topology.rail_group. Fix: remove it here"
    ]


@pytest.mark.parametrize("value", ["", "a b", "x" * 64])
def test_a_place_is_the_value_of_a_label(value: str) -> None:
    [found] = findings(placed({"rail_group": value}))
    assert found.startswith("hosts.workers[0].topology.rail_group: ")
