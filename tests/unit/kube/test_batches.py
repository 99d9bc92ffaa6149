"""Which agents are updated together."""

from collections.abc import Collection
from typing import Any

import pytest

from busbar.kube.batches import Nodes, ask, batches, read
from busbar.kube.client import JsonObject
from tests.support.kube_cluster import Cluster
from tests.unit.kube.node_cluster import node, pod

WORKERS = [f"w-{number}" for number in range(1, 8)]


def nodes(*, ready: Collection[str] = WORKERS, down: Collection[str] = (), **more: Any) -> Nodes:
    return Nodes(names=frozenset([*ready, *down]), ready=frozenset(ready), **more)


DOWN = nodes(ready=WORKERS[:2], down=["w-3", "w-4"])
BATCHES: dict[str, tuple[int, Nodes | None, list[list[str]]]] = {
    "all run": (3, nodes(), [WORKERS[:3], WORKERS[3:6], WORKERS[6:]]),
    "one has a Node": (3, nodes(ready=["w-7", "server-1"]), [["w-7"]]),
    "none has a Node": (3, nodes(ready=()), []),
    "no answer": (4, None, [WORKERS[:4], WORKERS[4:]]),
    "those with jobs come last": (
        *(3, nodes(with_jobs=frozenset(["w-1", "w-3"]))),
        [["w-2", "w-4", "w-5"], ["w-6", "w-7", "w-1"], ["w-3"]],
    ),
    "what an interrupted update has cordoned comes first": (
        *(3, nodes(cordoned=frozenset(["w-6"]), with_jobs=frozenset(["w-6"]))),
        [["w-6", "w-1", "w-2"], ["w-3", "w-4", "w-5"], ["w-7"]],
    ),
    "one that is down counts, and is in no batch while others may restart": (
        *(3, nodes(ready=WORKERS[:6], down=["w-7"])),
        [WORKERS[:2], WORKERS[2:4], WORKERS[4:6]],
    ),
    "as many are down as may be": (2, DOWN, [["w-3", "w-4"], ["w-1", "w-2"]]),
    "more are down than may be": (1, DOWN, [["w-3", "w-4"], ["w-1"], ["w-2"]]),
}


@pytest.mark.parametrize(("limit", "found", "expected"), BATCHES.values(), ids=BATCHES)
def test_agents_that_run_are_in_batches_in_the_order_of_the_configuration(
    limit: int, found: Nodes | None, expected: list[list[str]]
) -> None:
    assert batches(WORKERS, limit, found) == expected


def test_a_worker_that_preflight_did_not_reach_is_in_no_batch_with_others() -> None:
    assert batches(WORKERS[:4], 2, nodes(), ["w-1"]) == [["w-2", "w-3"], ["w-4"], ["w-1"]]
    found = nodes(ready=WORKERS[1:4], down=["w-1"])
    assert batches(WORKERS[:4], 1, found, ["w-1"]) == [["w-2"], ["w-3"], ["w-4"]]


def cluster(*found: JsonObject, pods: Collection[JsonObject] = ()) -> Cluster:
    """Its Nodes and running pods."""
    return Cluster({"/api/v1/nodes": [*found], "/api/v1/pods": [*pods]})


def test_the_nodes_say_which_agents_run_and_which_workers_are_cordoned_or_drained() -> None:
    drained = node("w-2", ready=False)
    drained["metadata"]["annotations"] = {"busbar/drained": '{"why": "fan", "by": "anna@ops"}'}
    assert read(cluster(node("w-1"), drained, node("w-3", cordoned=True)), jobs=True) == Nodes(
        names=frozenset(["w-1", "w-2", "w-3"]), ready=frozenset(["w-1", "w-3"]), cordoned=frozenset(["w-3"]),
        drained={"w-2": "fan (by anna@ops)"},
    )  # fmt: skip


def test_pods_of_jobs_of_any_kind_are_found_and_read_only_where_they_matter() -> None:
    owners = ("MPIJob", "Job", "StatefulSet", "")
    pods = [pod("p", f"w-{number}", owner) for number, owner in enumerate(owners, 1)]
    api, asked = cluster(pods=pods), dict[str, dict[str, str]]()
    listed = api.list

    def noted(path: str, **query: str) -> list[JsonObject]:
        asked[path] = query
        return listed(path, **query)

    api.list = noted  # type: ignore[method-assign]
    assert read(api, jobs=True).with_jobs == {"w-1", "w-2"}
    assert asked["/api/v1/pods"]["fieldSelector"] == "status.phase=Running"
    assert read(Cluster({"/api/v1/nodes": []}), jobs=False).with_jobs == frozenset()


def test_a_kubeconfig_that_cannot_be_used_is_an_error_at_once() -> None:
    with pytest.raises(ValueError, match="kubeconfig"):
        ask("{}", jobs=False)
