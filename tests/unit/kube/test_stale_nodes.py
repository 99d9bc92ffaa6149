"""Nodes of workers that are not configured any more: which are drained and deleted, and which stay."""

from copy import deepcopy

import pytest

from busbar.exits import Failed
from busbar.kube import drain, nodes
from busbar.kube.client import JsonObject
from busbar.kube.drain import DRAIN_SECONDS, VOLUMES, Hooks, StaleNodesSpec, no_hooks
from busbar.kube.gpus import IDLE_LABEL
from busbar.kube.nodes import CORDONED, LEASES, NODES
from busbar.kube.wait import TimedOut
from tests.support.kube_cluster import Cluster, unreachable
from tests.unit.kube.node_cluster import BUDGET, Nodes, asking, node, pod, volume

SERVER = node("s-1", "a", server=True)


def remove(cluster: Nodes, *names: str, said: list[str] | None = None, hooks: Hooks = no_hooks) -> list[str]:
    say = (said if said is not None else []).append
    spec = StaleNodesSpec(workers=list(names))
    return drain.remove_stale_nodes(cluster, spec, cluster.clock, say, hooks)


def interrupt() -> None:
    raise KeyboardInterrupt


W1, W2 = node("w-1", "b"), node("w-2", "c")
PODS = [pod("app", "w-1"), pod("other", "w-2"), pod("bare", "w-1", owner=""), pod("job", "w-1", "Job")]
EVICTED = ["app evicted", "bare evicted", "job evicted"]
# Pods that belong to the Node, or are over.
OWN = [pod("agent", "w-1", "DaemonSet"), pod("static", "w-1", "Node"), pod("done", "w-1", "Job", "Failed")]


@pytest.mark.parametrize(
    ("found", "pods", "configured", "log"),
    [
        ([SERVER, W1, W2], PODS, ["w-2"], ["w-1 cordoned", *EVICTED, "w-1 deleted"]),
        ([W1], OWN, [], ["w-1 cordoned", "w-1 deleted"]),
        ([SERVER, W1, node("w-2", "c", ready=False)], [], ["w-1", "w-2", "w-3"], []),
        ([W1], [], ["W-1"], []),
        ([node("w-1", "b", ready=False)], [pod("app", "w-1")], [], ["w-1 deleted"]),
        # Somebody else has added it.
        ([node("guest")], [], [], []),
        # The worker was renamed: its pods are not waited for.
        ([W1, node("w-9", "b")], [pod("app", "w-1")], ["w-9"], ["w-1 deleted"]),
    ],
    ids=["left", "pods of the Node", "configured", "capital letters", "gone", "of others", "renamed"],
)
def test_a_worker_that_left_the_configuration_is_drained_and_deleted_and_no_other_node(
    found: list[JsonObject], pods: list[JsonObject], configured: list[str], log: list[str]
) -> None:
    cluster = Nodes(*deepcopy(found), pods=(*pods,))
    assert remove(cluster, *configured) == [line.split()[0] for line in log if line.endswith(" deleted")]
    assert cluster.log == log


def test_a_worker_with_data_of_a_claim_on_its_disk_stays_until_the_claim_is_deleted() -> None:
    cluster = Nodes(*deepcopy([SERVER, W1, W2]), pods=(*PODS,))
    for each in (volume("prometheus-0", "w-1"), volume("nfs"), volume("other", "w-2")):
        cluster.objects[f"{VOLUMES}/{each['spec']['claimRef']['name']}"] = each
    # A volume of the policy Retain stays when its claim is deleted, and the worker with it.
    text = r"data on the disks of .*: w-1 \(site/prometheus-0\)\. Fix: copy .* pvc and the pv that stays"
    with pytest.raises(Failed, match=text):
        remove(cluster, "w-2")
    assert cluster.log == [], "nothing is drained"
    cluster.objects[f"{NODES}/w-1"]["status"]["conditions"][0]["status"] = "False"
    assert remove(cluster, "w-2") == ["w-1"], "nobody can save what is on a machine that is gone"


def test_a_worker_stays_until_the_jobs_with_its_gpus_have_ended() -> None:
    cluster = Nodes(*deepcopy([SERVER, W1, W2]))
    cluster.pods = [
        pod("llama", "w-1", "MPIJob", gpus="8"),
        pod("bare", "w-1", "", gpus="1"),
        pod("other", "w-2", "Job", gpus="8"),
        pod("again", "w-1", gpus="8"),
        pod("idle", "w-1", "MPIJob", gpus="8", label=IDLE_LABEL),
    ]
    text = r"jobs run on hosts .*: default/llama on w-1, default/bare on w-1\. Fix: wait for their end"
    with pytest.raises(Failed, match=text):
        remove(cluster, "w-2")
    assert cluster.log == [], "nothing is drained"
    del cluster.pods[:2]
    assert remove(cluster, "w-2") == ["w-1"]


def test_the_password_of_a_node_goes_with_it() -> None:
    cluster = Nodes(node("w-1", "b"))
    secret = "/api/v1/namespaces/kube-system/secrets/w-1.node-password.k3s"
    cluster.objects[secret] = {}
    remove(cluster)
    assert secret not in cluster.objects


def _of(names: list[str]) -> Nodes:
    """A server and these workers, with a pod on each of them that a budget keeps."""
    cluster = Nodes(
        SERVER,
        *(node(name, f"m-{name}") for name in names),
        pods=tuple(pod(f"p-{name}", name) for name in names),
    )
    cluster.refused = {f"p-{name}" for name in names}
    return cluster


@pytest.mark.parametrize("dead", [1, 10])
def test_a_worker_that_died_is_deleted_when_its_kubelet_was_silent_for_40_s(dead: int) -> None:
    names, said = [f"w-{number}" for number in range(dead)], list[str]()
    cluster = _of(names)
    cluster.died = dict.fromkeys(names, 0.0)
    assert remove(cluster, said=said) == names
    assert 40 <= cluster.clock.time <= 45, "its Node stays Ready for 50 s"
    assert f"Node {names[0]} is silent: its pods cannot be drained" in said[-dead]


def test_a_node_that_is_not_ready_any_more_while_its_kubelet_runs_is_deleted_and_not_silent() -> None:
    cluster = _of(["w-1"])

    def unready() -> None:
        cluster.objects[f"{NODES}/w-1"]["status"]["conditions"][0]["status"] = "False"

    cluster.clock.at(20, unready)
    assert remove(cluster) == ["w-1"]
    assert cluster.clock.time < 25


def test_a_kubelet_that_has_noted_no_lease_is_not_silent() -> None:
    leases = [
        {"metadata": {"name": "w-1"}, "spec": {"leaseDurationSeconds": 40}},
        {"metadata": {"name": "w-2"}, "spec": {}},
    ]
    assert nodes.silent(Cluster({LEASES: leases})) == set()


def test_a_drain_that_does_not_end_in_time_does_not_keep_the_node() -> None:
    said: list[str] = []
    cluster = Nodes(node("w-1", "b"), node("w-2", "c"), pods=(pod("app", "w-1"),))
    cluster.refused = {"app"}
    remove(cluster, said=said)
    assert cluster.log == ["w-1 cordoned", "w-2 cordoned", "w-2 deleted", "w-1 deleted"]
    left = f"remaining pods: default/app ({BUDGET})"
    assert said[-1] == f"drain of w-1 timed out after 300 s: {left}; deleting the Node anyway"
    assert cluster.clock.time <= DRAIN_SECONDS + 2


def test_what_is_stopped_is_uncordoned() -> None:
    pods = (pod("x", "w-1"), pod("y", "w-2"))
    cluster = Nodes(node("w-1", "b"), node("w-2", "c", cordoned=True), pods=pods)
    cluster.refused = {"x", "y"}
    cluster.clock.at(10, interrupt)
    with pytest.raises(KeyboardInterrupt):
        remove(cluster)
    for name in ("w-1", "w-2"):
        found = cluster.objects[f"{NODES}/{name}"]
        assert CORDONED not in found["metadata"]["annotations"]
        assert "unschedulable" not in found["spec"]


def test_a_node_that_somebody_else_has_cordoned_stays_so_after_a_stop() -> None:
    cordoned = node("w-1", "b")
    cordoned["spec"]["unschedulable"] = True
    cluster = Nodes(cordoned, pods=(pod("x", "w-1"),))
    cluster.refused, cluster.kept = {"x"}, {"w-1"}
    with pytest.raises(Failed):
        remove(cluster)
    assert cluster.objects[f"{NODES}/w-1"] == cordoned and "w-1 uncordoned" not in cluster.log


@pytest.mark.parametrize("leaving", [3, 23])
def test_a_node_that_cannot_be_deleted_is_named_after_all_others_have_gone(leaving: int) -> None:
    names = [f"w-{number}" for number in range(leaving)]
    cluster = Nodes(*(node(name, f"m-{name}") for name in names))
    cluster.kept = {"w-1"}
    with pytest.raises(Failed, match=r"could not be deleted: w-1 \(.*not allowed\)\. Fix: "):
        remove(cluster)
    assert [path for path in cluster.objects if path.startswith(NODES)] == [f"{NODES}/w-1"]
    assert "w-1 uncordoned" in cluster.log


def test_ten_nodes_are_drained_at_the_same_time() -> None:
    cluster = _of([f"w-{number}" for number in range(12)])
    remove(cluster)
    assert sum(line.endswith(" cordoned") for line in cluster.log[:11]) == 10
    assert cluster.clock.time < 2 * DRAIN_SECONDS + 10


def test_an_api_that_is_away_for_a_while_keeps_nothing_cordoned_and_without_it_nothing_changes() -> None:
    cluster = Nodes(node("w-1", "b"), pods=(pod("app", "w-1"),))
    cluster.failures = [None, None, *[unreachable()] * 10]
    assert remove(cluster) == ["w-1"]
    cluster = Nodes(node("w-1", "b"))
    cluster.failures = [unreachable()] * 1000
    with pytest.raises(TimedOut):
        remove(cluster)
    assert cluster.log == []


def test_schedulers_start_jobs_again_on_a_worker_whose_removal_was_interrupted() -> None:
    cluster = Nodes(node("w-1", "b"))
    cluster.clock.at(10, interrupt)
    with pytest.raises(KeyboardInterrupt):
        remove(cluster, hooks=asking(cluster, 1000))
    assert cluster.log[-2:] == ["w-1 uncordoned", "w-1 back in the scheduler"]
