"""The end of an update: whether every server serves and votes, as the cluster's API shows it."""

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


# What each server is said to lack; a server that an admin has cordoned serves.
SERVERS: dict[str, tuple[list[JsonObject], str]] = {
    "all serve and vote": ([], ""),
    "not ready": ([server("s-2", ready=False)], "s-2: the Node is not Ready"),
    "no voter": ([server("s-3", voter="False")], "s-3: the Node's condition EtcdIsVoter is not True"),
    "no voter yet": ([server("s-3", voter=None)], "s-3: the Node's condition EtcdIsVoter is not True"),
    "cordoned": ([server("s-2", cordoned=True)], ""),
    "two": (
        [server("s-1", voter="False"), server("s-2", ready=False)],
        "s-1: the Node's condition EtcdIsVoter is not True; s-2: the Node is not Ready",
    ),
}


@pytest.mark.parametrize(("changed", "says"), SERVERS.values(), ids=SERVERS)
def test_each_server_that_does_not_serve_and_vote_is_named(changed: list[JsonObject], says: str) -> None:
    assert end(Cluster(*changed)) == says


@pytest.mark.parametrize("names", [("s-1", "s-2"), ("S-1",)])
def test_only_servers_that_are_configured_count_also_in_capital_letters(names: tuple[str, ...]) -> None:
    assert end(Cluster(server("s-3", ready=False)), *names) == ""


def test_a_server_without_a_node_is_named_with_the_command_that_verify_prints() -> None:
    cluster = Cluster(without="s-2")
    assert nodes.server_problems(cluster, NAMES, cluster.clock) == [nodes.without_node("s-2")]
    assert str(nodes.without_node("s-2").fix) == "busbar up STACK --converge s-2"


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
