"""`busbar up` killed again and again at random points; each next one goes on, the last one completes.

The drills follow each other: the removal of hosts, a bring-up on hosts that have nothing, then an upgrade.
BUSBAR_DRILL_SEED repeats the random numbers of an earlier run.
"""

import json
import os
import random
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.mirror.artifacts import K3sRelease
from tests.support.api_load import ApiLoad
from tests.support.lab import KUBECONFIG, PROJECT, SERVERS, UP_SECONDS, WORKERS, Lab, eventually
from tests.support.own_stack import OwnStack

pytestmark = pytest.mark.drill

# Each update is killed so many seconds after its start. On a busy machine the engine needs ten of them until
# it changes a host, and the first server half a minute.
EARLIEST, LATEST = 5.0, 40.0
KILLS = {"removal": 8, "bring-up": 9, "upgrade": 8}

LEFT = "ls -d /var/lib/busbar /usr/local/bin/k3s /etc/rancher/k3s 2>/dev/null || true"


@pytest.fixture(scope="module")
def stack(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnStack]:
    made = OwnStack(PROJECT, tmp_path_factory.mktemp("killed") / "project", lab.environment)
    yield made
    lab.as_usual()


@pytest.fixture(scope="module")
def chance() -> random.Random:
    """The seeded source of all delays; the seed is printed."""
    seed = int(os.environ.get("BUSBAR_DRILL_SEED") or random.SystemRandom().randrange(10**6))
    print(f"BUSBAR_DRILL_SEED={seed}")
    return random.Random(seed)


def state(lab: Lab, stack: OwnStack) -> dict[str, Any]:
    done = lab.pulumi("stack", "export", "--stack", "dev", cwd=stack.folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["deployment"]
    return found


def etcd(lab: Lab, server: str) -> tuple[str, frozenset[str]] | None:
    """The id of the server's etcd cluster, and the names of its members; None if etcd is not responding."""
    answer = lab.etcd(server, "/v3/cluster/member/list")
    if not answer.startswith('{"header"'):
        return None
    found = json.loads(answer)
    # K3s names a member after the server, and a random number.
    names = [each.get("name", "").rpartition("-")[0] for each in found["members"]]
    assert len(names) == len(set(names)), names
    return found["header"]["cluster_id"], frozenset(names)


def kill_again_and_again(lab: Lab, stack: OwnStack, chance: random.Random, what: str) -> set[str]:
    """Start and kill updates, then let one complete; returns the ids of the etcd clusters of server 1."""
    clusters, killed = set(), 0
    for number in range(1, KILLS[what] + 1):
        seconds = chance.uniform(EARLIEST, LATEST)
        update = stack.start_up()
        ended = update.ended_within(seconds)
        update.kill()
        killed += not ended
        found = state(lab, stack)
        steps = [each["resource"]["urn"] for each in found.get("pending_operations") or []]
        print(
            f"{what} {number}: {'ended by itself before' if ended else 'killed after'} {seconds:.1f} s; "
            f"{len(found.get('resources') or [])} resources, in the middle of: "
            f"{', '.join(step.rpartition('::')[2] for step in steps) or 'none'}"
        )
        if member := etcd(lab, "server-1"):
            clusters.add(member[0])
    began = time.monotonic()
    stack.up()
    print(f"{what}: {killed} updates killed; the one after them: {time.monotonic() - began:.0f} s")
    assert killed, "every update ended before it was killed"
    return clusters


def assert_whole(lab: Lab, stack: OwnStack, servers: Collection[str], workers: Collection[str]) -> str:
    """One cluster of exactly these hosts, and a state that says so; returns the id of the etcd cluster."""
    nodes = json.loads(lab.kubectl("get nodes -o json"))["items"]
    assert {each["metadata"]["name"] for each in nodes} == {*servers, *workers}
    for node in nodes:
        name = node["metadata"]["name"]
        assert lab.conditions(name)["Ready"] == "True", name
        assert not node["spec"].get("unschedulable"), name
    clusters = {etcd(lab, server) for server in servers}
    assert len(clusters) == 1, clusters
    [only] = clusters
    assert only is not None and only[1] == frozenset(servers)
    assert lab.voters() == set(servers)

    found = state(lab, stack)
    assert not found.get("pending_operations")
    urns = [each["urn"] for each in found["resources"]]
    assert len(urns) == len(set(urns)), "a resource is twice in the state"
    assert not [each["urn"] for each in found["resources"] if each.get("delete")]
    status = stack.busbar("status", "dev")
    # Without a measurement its exit code is 1.
    assert "update succeeded" in status.stdout and "could not be cleaned" not in status.stdout, status.stdout
    verified = stack.busbar("verify", "dev")
    assert verified.returncode == 0, verified.stdout
    assert stack.no_changes()
    return only[0]


def test_a_node_that_comes_back_behind_a_killed_removal_goes_with_its_host(lab: Lab, stack: OwnStack) -> None:
    def has_node() -> bool:
        return "node/worker-2" in lab.kubectl("get nodes -o name").split()

    def fewer(cluster: dict[str, Any]) -> None:
        del cluster["hosts"]["workers"][1:]

    stack.configure(fewer)
    update = stack.start_up()
    eventually(lambda: not has_node(), UP_SECONDS, "the update has deleted the Node")
    update.kill()
    # The toolkit of the GPU Operator leaves, and restarts K3s.
    eventually(has_node, 120, "the kubelet has registered again")
    stack.up()
    assert not has_node()
    assert lab.ssh("worker-2", LEFT) == ""


def test_a_killed_removal_is_completed_and_loses_nothing(
    lab: Lab, stack: OwnStack, chance: random.Random
) -> None:
    def fewer(cluster: dict[str, Any]) -> None:
        del cluster["hosts"]["servers"][1:]
        del cluster["hosts"]["workers"][1:]

    stack.configure(fewer)
    with ApiLoad(KUBECONFIG) as load:
        clusters = kill_again_and_again(lab, stack, chance, "removal")
    print(load.account)
    assert {assert_whole(lab, stack, SERVERS[:1], WORKERS[:1])} == clusters
    for host in (*SERVERS[1:], *WORKERS[1:]):
        assert lab.ssh(host, LEFT) == "", host
    assert not load.account.lost
    assert load.account.acknowledged <= load.account.watched


def test_a_killed_bring_up_is_completed_as_one_cluster(
    lab: Lab, tmp_path: Path, stack: OwnStack, chance: random.Random
) -> None:
    done = stack.busbar("destroy", "dev", "--yes")
    assert done.returncode == 0, done.stdout
    for host in ("lb-1", *SERVERS, *WORKERS):
        assert lab.ssh(host, LEFT) == "", host
    usual = OwnStack(PROJECT, tmp_path / "project", lab.environment)
    clusters = kill_again_and_again(lab, usual, chance, "bring-up")
    assert {assert_whole(lab, usual, SERVERS, WORKERS)} == clusters


@pytest.mark.drill(needs="two releases of a real K3s")
@pytest.mark.usefixtures("next_k3s")
def test_a_killed_upgrade_is_completed_and_loses_nothing(
    lab: Lab,
    tmp_path: Path,
    chance: random.Random,
    upgrade: Callable[[dict[str, Any]], None],
    next_k3s: K3sRelease,
) -> None:
    upgraded = OwnStack(PROJECT, tmp_path / "project", lab.environment)
    upgraded.configure(upgrade)
    with ApiLoad(KUBECONFIG) as load:
        clusters = kill_again_and_again(lab, upgraded, chance, "upgrade")
    print(load.account)
    assert {assert_whole(lab, upgraded, SERVERS, WORKERS)} == clusters
    versions = lab.kubectl("get nodes -o jsonpath='{.items[*].status.nodeInfo.kubeletVersion}'")
    assert set(versions.split()) == {next_k3s.version}
    assert not load.account.lost
    assert load.account.acknowledged <= load.account.watched
