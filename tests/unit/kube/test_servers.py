"""The end of an update: whether every server serves and votes, as the cluster's API shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from busbar.kube import nodes
from busbar.kube.client import ApiError, JsonObject
from busbar.kube.nodes import NODES
from busbar.kube.wait import TimedOut
from tests.support.kube_cluster import unreachable
from tests.unit.kube.node_cluster import Nodes, node

NAMES = ("s-1", "s-2", "s-3")


def server(
    name: str, *, ready: bool = True, voter: str | None = "True", cordoned: bool = False
) -> JsonObject:
    made = node(name, "a", server=True, ready=ready, cordoned=cordoned)
    if voter:
        made["status"]["conditions"].append({"type": "EtcdIsVoter", "status": voter})
    return made


class Cluster(Nodes):
    """Three servers that serve, but for what a test changes. `readyz`: what each one's /readyz answers."""

    def __init__(self, *changed: JsonObject, without: str = "") -> None:
        made = {name: server(name) for name in NAMES} | {each["metadata"]["name"]: each for each in changed}
        super().__init__(*(each for name, each in made.items() if name != without))
        self.readyz: dict[str, bytes | ApiError] = {}

    def stream(self, path: str, **query: str) -> Iterator[bytes]:
        name = path.removeprefix(f"{NODES}/https:").removesuffix(":6443/proxy/readyz")
        assert name in NAMES, path
        answer = self.readyz.get(name, b"ok")
        if isinstance(answer, ApiError):
            raise answer
        yield answer


def end(cluster: Cluster, *names: str) -> str:
    """What is wrong at the end of an update with these servers, by default three; empty for nothing."""
    found = nodes.server_problems(cluster, names or NAMES, cluster.clock)
    return "; ".join(f"{each.host}: {each.what}" for each in found)


def test_servers_that_are_ready_and_vote_end_the_update_well() -> None:
    assert end(Cluster()) == ""


def test_a_server_without_a_node_is_named_with_the_command_that_verify_prints() -> None:
    cluster = Cluster(without="s-2")
    assert nodes.server_problems(cluster, NAMES, cluster.clock) == [nodes.without_node("s-2")]
    assert str(nodes.without_node("s-2").fix) == "busbar up STACK --converge s-2"


def test_a_server_that_is_not_ready_is_named() -> None:
    assert end(Cluster(server("s-2", ready=False))) == "s-2: the Node is not Ready"


@pytest.mark.parametrize("voter", ["False", None])
def test_a_server_that_is_no_voter_in_etcd_is_named(voter: str | None) -> None:
    assert end(Cluster(server("s-3", voter=voter))) == "s-3: the Node's condition EtcdIsVoter is not True"


@pytest.mark.parametrize(
    "answer",
    [
        ApiError("GET /readyz", 503, "error trying to reach service: connection refused"),
        ApiError("GET /readyz", 500, "[-]etcd failed"),
        b"",
    ],
)
def test_a_server_whose_node_still_says_that_all_is_well_is_asked_itself(answer: Any) -> None:
    cluster = Cluster()
    cluster.readyz["s-1"] = answer
    assert end(cluster).startswith("s-1: ")


def test_all_servers_are_named() -> None:
    found = end(Cluster(server("s-1", voter="False"), without="s-3"))
    assert [each.partition(":")[0] for each in found.split("; ")] == ["s-1", "s-3"]


def test_a_server_that_is_not_configured_any_more_does_not_count() -> None:
    assert end(Cluster(server("s-3", ready=False)), "s-1", "s-2") == ""


def test_a_server_that_an_admin_has_cordoned_serves() -> None:
    assert end(Cluster(server("s-2", cordoned=True))) == ""


def test_a_server_that_is_configured_in_capital_letters_is_found() -> None:
    assert end(Cluster(), "S-1") == ""


def test_a_server_that_is_coming_back_is_waited_for() -> None:
    cluster = Cluster(server("s-2", voter="False"))
    cluster.clock.at(20, lambda: cluster.objects.update({f"{NODES}/s-2": server("s-2")}))
    assert end(cluster) == ""


def test_an_api_that_does_not_answer_is_no_finding_about_a_server() -> None:
    cluster = Cluster()
    cluster.readyz["s-2"] = unreachable()
    with pytest.raises(TimedOut) as caught:
        end(cluster)
    assert caught.value.error
