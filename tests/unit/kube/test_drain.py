"""A worker that leaves for a repair and comes back: what happens to its Node and its pods."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from busbar.exits import Failed
from busbar.kube import nodes
from busbar.kube.allocatable import AllocatableSpec, wait
from busbar.kube.client import ApiError, JsonObject
from busbar.kube.drain import PodsRemain, drain, drain_for_restart, no_hooks, put_back, uncordon
from busbar.kube.nodes import CORDONED, NODES, QUARANTINE, Node
from tests.support.kube_cluster import unreachable
from tests.unit.kube.node_cluster import BUDGET, Contended, Nodes, Scheduler, asking, node, pod

GPU = "nvidia.com/gpu"


def need(**nodes: int) -> AllocatableSpec:
    """So many GPUs, by name of the Node with _ for -."""
    found = {name.replace("_", "-"): gpus for name, gpus in nodes.items()}
    return AllocatableSpec.model_validate(
        {"resource": GPU, "nodes": found, "deadline_seconds": 60, "stable_seconds": 0}
    )


def drained(
    cluster: Nodes,
    reason: str = "driver 580",
    *hooks: Scheduler,
    end_jobs: bool = False,
    said: list[str] | None = None,
) -> None:
    say = (said if said is not None else []).append
    drain(
        cluster, "w-1", reason, "anna@ops", end_jobs=end_jobs, seconds=60, clock=cluster.clock, progress=say,
        hooks=hooks,
    )  # fmt: skip


def back(cluster: Nodes, needs: list[AllocatableSpec] | None = None) -> bool:
    return uncordon(cluster, "w-1", needs or [], cluster.clock, lambda _: None)


def offering(gpus: int, *, ready: bool = True) -> JsonObject:
    found = node("w-1", "b", ready=ready)
    offered = {GPU: str(gpus)}
    found["status"] |= {"allocatable": offered, "capacity": offered}
    return found


def test_the_node_is_cordoned_with_the_reason_before_pods_are_evicted_and_stays_so() -> None:
    pods = (pod("app", "w-1"), pod("agent", "w-1", "DaemonSet"), pod("other", "w-2"))
    cluster = Nodes(node("w-1", "b"), node("w-2", "c"), pods=pods)
    drained(cluster)
    assert cluster.log == ["w-1 cordoned", "app evicted"]
    found = cluster.seen()
    assert found.unschedulable and found.drained.startswith("driver 580 (by anna@ops, since 20")
    assert found.drained.endswith("+00:00)")


def test_a_scheduler_drains_before_the_cordon_and_pods_are_evicted_when_its_jobs_have_ended() -> None:
    cluster, said = Nodes(node("w-1", "b"), pods=(pod("app", "w-1"),)), list[str]()
    drained(cluster, "driver 580", Scheduler(cluster, "w-1", "driver 580", 20), said=said)
    assert cluster.log == ["w-1 drained by the scheduler: driver 580", "w-1 cordoned", "app evicted"]
    assert any("jobs of the scheduler" in text for text in said)


@pytest.mark.parametrize(
    ("before", "told"),
    [(None, "w-1 back in the scheduler"), ("fan", "w-1 drained by the scheduler: quarantine: fan")],
)
def test_a_worker_that_comes_back_starts_jobs_unless_in_quarantine(before: str | None, told: str) -> None:
    cluster = Nodes(node("w-1", "b"))
    if before:
        nodes.take_out(cluster, "w-1", QUARANTINE, before, "me", datetime.now(UTC), cordon=False)
    drained(cluster)
    cluster.log.clear()
    assert uncordon(cluster, "w-1", [], cluster.clock, print, asking(cluster))
    assert cluster.log == ["w-1 uncordoned", told]


def before_restart(cluster: Nodes, hooks: Any = no_hooks, said: list[str] | None = None) -> None:
    say = (said if said is not None else []).append
    drain_for_restart(cluster, "w-1", hooks, 60, cluster.clock, say)


def test_an_agent_restarts_when_jobs_of_schedulers_have_ended_and_pods_have_left() -> None:
    staying = (pod("train", "w-1", "MPIJob"), pod("bare", "w-1", owner=""), pod("agent", "w-1", "DaemonSet"))
    cluster = Nodes(node("w-1", "b"), pods=(pod("app", "w-1"), *staying))
    before_restart(cluster, asking(cluster, 20))
    told = "w-1 drained by the scheduler: restart of K3s"
    assert cluster.log == [told, "w-1 cordoned", "app evicted"] and cluster.clock.now() >= 20
    assert cluster.seen().notes[CORDONED].why == "restart of K3s"
    put_back(cluster, "w-1", asking(cluster), cluster.clock)
    assert cluster.log[-2:] == ["w-1 uncordoned", "w-1 back in the scheduler"]
    assert not cluster.seen().notes


@pytest.mark.parametrize("cluster", [Nodes(node("w-1", "b")), Nodes()], ids=["not drained", "no Node"])
def test_a_worker_that_no_update_has_drained_is_left_alone_after_a_restart(cluster: Nodes) -> None:
    put_back(cluster, "w-1", asking(cluster), cluster.clock)
    assert cluster.log == []


def test_an_api_that_is_away_for_a_moment_is_waited_for_before_and_after_a_restart() -> None:
    cluster = Nodes(node("w-1", "b"))
    cluster.failures = [unreachable()] * 3
    before_restart(cluster)
    cluster.failures = [unreachable()] * 3
    put_back(cluster, "w-1", no_hooks, cluster.clock)
    assert cluster.log == ["w-1 cordoned", "w-1 uncordoned"]


def test_a_drain_before_a_restart_that_a_budget_blocks_names_pod_and_budget() -> None:
    cluster, said = Nodes(node("w-1", "b"), pods=(pod("app", "w-1"),)), list[str]()
    cluster.refused = {"app"}
    with pytest.raises(PodsRemain) as remain:
        before_restart(cluster, said=said)
    left = f"remaining pods: default/app ({BUDGET})"
    restarted = "its agent was not restarted. Fix: let the budget allow"
    assert str(remain.value).startswith(f"drain of w-1 timed out after 60 s: {left}; {restarted}")
    assert f"draining; w-1: {left}" in said[0]


def test_a_cordon_that_somebody_sets_at_the_same_moment_stays_when_the_worker_comes_back() -> None:
    cluster = Contended(node("w-1", "b"))
    drained(cluster)
    assert not back(cluster)
    assert cluster.seen().unschedulable


def test_pods_that_nothing_starts_again_are_waited_for_or_ended_on_demand() -> None:
    pods = (pod("train", "w-1", "MPIJob"), pod("bare", "w-1", owner=""), pod("app", "w-1"))
    cluster, said = Nodes(node("w-1", "b"), pods=pods), list[str]()
    cluster.clock.at(30, lambda: setattr(cluster, "pods", []))
    drained(cluster, said=said)
    assert cluster.log == ["w-1 cordoned", "app evicted"]
    text = "draining; w-1: remaining pods: default/train (of a job); default/bare (has no controller)"
    assert any(text in line for line in said)
    cluster.pods = [*pods[:2]]
    drained(cluster, end_jobs=True)
    assert cluster.log[-2:] == ["train evicted", "bare evicted"]


def test_a_pod_that_is_gone_before_its_eviction_is_one_that_ends() -> None:
    cluster, said = Nodes(node("w-1", "b"), pods=(pod("app", "w-1"),)), list[str]()

    def gone(path: str, body: Mapping[str, Any]) -> JsonObject:
        cluster.pods = []
        raise ApiError(f"POST {path}", 404, "not found")

    cluster.create = gone  # type: ignore[method-assign]
    drained(cluster, said=said)
    assert any("w-1: remaining pods: default/app (ending)" in line for line in said)


@pytest.mark.parametrize("died", [None, 10], ids=["before", "meanwhile"])
def test_the_pods_of_a_machine_that_does_not_answer_are_not_waited_for(died: float | None) -> None:
    both = node("w-1", "b", ready=bool(died)), node("w-2")
    cluster, said = Nodes(*both, pods=(pod("app", "w-1"),)), list[str]()
    cluster.refused = {"app"}
    cluster.died = {"w-1": died} if died else {}
    drained(cluster, said=said)
    assert said[-1] == "Node w-1 is silent: its pods cannot be drained, and start again elsewhere"
    assert cluster.seen().unschedulable


def test_a_change_of_somebody_else_and_an_api_that_is_away_are_retried() -> None:
    cluster = Nodes(node("w-1", "b"))
    conflict = ApiError("PATCH", 409, "the object has been modified")
    cluster.failures = [unreachable(), conflict, conflict]
    drained(cluster)
    assert cluster.seen().drained


def test_a_node_that_does_not_exist_is_an_error_at_once() -> None:
    cluster = Nodes()
    with pytest.raises(ApiError, match="404"):
        drained(cluster)
    assert cluster.clock.now() == 0


@pytest.mark.parametrize(
    ("cordoned", "says"),
    [
        (False, "Fix: see its state: busbar verify"),
        (True, "it is cordoned by somebody else. Fix: kubectl uncordon w-1"),
    ],
)
def test_a_node_that_was_not_drained_is_left_as_it_is(cordoned: bool, says: str) -> None:
    before: dict[str, Any] = node("w-1", "b")
    before["spec"]["unschedulable"] = cordoned
    cluster = Nodes(before)
    with pytest.raises(Failed, match=f"w-1 was not drained by `busbar drain`[.;] {says}"):
        back(cluster)
    assert cluster.log == []


def test_an_update_does_not_wait_for_the_gpus_of_a_drained_worker_and_names_it() -> None:
    cluster, said = Nodes(offering(0)), list[str]()
    drained(cluster)
    other = offering(8)
    other["metadata"]["name"] = "w-2"
    cluster.objects[f"{NODES}/w-2"] = other
    wait(cluster, need(w_1=8, w_2=8), cluster.clock, said.append)
    assert said[-1].startswith(f"{GPU}: 1/1 nodes ready; not waited for: w-1, drained: driver 580 (by")


def test_conditions_are_told_as_monitors_leave_them() -> None:
    found = node("w-1", "b")
    of_npd: dict[str, Any] = {"f:conditions": {'k:{"type":"KernelDeadlock"}': {"f:status": {}}}}
    found["metadata"]["managedFields"] = [
        {"manager": "k3s", "fieldsV1": {"f:status": {"f:conditions": {'k:{"type":"Ready"}': {}}}}},
        {"manager": "node-problem-detector", "fieldsV1": {"f:status": of_npd}, "subresource": "status"},
    ]
    down = "ErrorCode:DCGM_FR_NVLINK_DOWN GPU:3 link 4 is down Recommended Action=RESTART_VM"
    conditions = [
        ("Ready", "True", "", ""),
        ("EtcdIsVoter", "True", "", ""),
        ("GpuMemWatch", "False", "GpuMemWatchIsHealthy", "No Health Failures"),
        ("KernelDeadlock", "True", "DockerHung", "task docker:7 blocked\n for 300 s"),
        ("GpuNvlinkWatch", "True", "GpuNvlinkWatchIsNotHealthy", f"{down};"),
        ("OfSomebody", "True", "", ""),
    ]
    keys = ("type", "status", "reason", "message")
    found["status"]["conditions"] = [dict(zip(keys, each, strict=True)) for each in conditions]
    assert Node.of(found).reported == (
        "KernelDeadlock of node-problem-detector (task docker:7 blocked for 300 s)",
        f"GpuNvlinkWatch of NVSentinel ({down})",
        "OfSomebody",
    )


def test_who_has_cordoned_a_node_is_told_by_its_labels_else_by_the_api() -> None:
    found = node("w-1", "b")
    found["spec"]["unschedulable"] = True
    assert Node.of(found).cordoned_by == ""
    fields: dict[str, Any] = {"f:spec": {"f:unschedulable": {}}}
    found["metadata"]["managedFields"] = [
        {"manager": "k3s", "fieldsV1": {"f:metadata": {}}},
        {"manager": "kubectl", "fieldsV1": fields},
    ]
    assert (Node.of(found).owner, Node.of(found).cordoned_by) == ("", "kubectl")
    found["metadata"]["labels"] |= {"k8saas.nvidia.com/cordon-by": "NVSentinel"}
    assert Node.of(found).cordoned_by == "NVSentinel"
    found["metadata"]["labels"] |= {"k8saas.nvidia.com/cordon-reason": "GPU-fatal"}
    assert Node.of(found).owner == Node.of(found).cordoned_by == "NVSentinel (GPU-fatal)"
    with pytest.raises(Failed, match=r"it is cordoned by NVSentinel \(GPU-fatal\)"):
        back(Nodes(found))
