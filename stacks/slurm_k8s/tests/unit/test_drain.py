"""`busbar drain` of a worker with jobs of Slurm: Slurm drains first, then pods are evicted."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.kube.wait import Pending
from stacks.slurm_k8s.package.drain import SlurmDrain, hook, node_states
from stacks.slurm_k8s.package.rest import POD_CORDON
from stacks.slurm_k8s.package.values import JWT_KEY
from stacks.slurm_k8s.tests.support import PODS, REST, SlurmCluster, node, pod, slurm, values_of


def made(cluster: SlurmCluster, *, end_jobs: bool = False) -> SlurmDrain:
    cluster.objects["/api/v1/pods"] = [pod("h100-0", "gpu-1")]
    found = hook(cluster, "gpu-1", "driver 580", end_jobs=end_jobs)
    assert found
    return found


@pytest.mark.parametrize(
    "found",
    [
        node("h100-0"),
        node("h100-0", "ALLOCATED", reason="Not responding"),
        node("h100-0", "IDLE", reason="busbar: driver 580"),
        node("h100-0", "IDLE", "DRAIN", reason="busbar: quarantine: fan"),
        node("h100-0", "IDLE", "DRAIN", reason="slurm-operator: Node (gpu-1) was cordoned"),
    ],
)
def test_slurm_drains_the_node_with_busbar_s_reason(found: Any) -> None:
    cluster = SlurmCluster(found)
    made(cluster).begin()
    assert cluster.updates == [("h100-0", {"state": ["DRAIN"], "reason": "busbar: driver 580"})]


@pytest.mark.parametrize("reason", ["ticket 12", "busbar: driver 580"])
def test_a_drain_of_a_person_or_for_the_same_reason_is_left_as_it_is(reason: str) -> None:
    cluster = SlurmCluster(node("h100-0", "IDLE", "DRAIN", reason=reason))
    made(cluster).begin()
    assert cluster.updates == []


@pytest.mark.parametrize(
    ("found", "is_undone"),
    [
        (node("h100-0", "IDLE", "DRAIN", reason="busbar: quarantine: fan"), True),
        (node("h100-0", "IDLE", "DRAIN", reason="ticket 12"), False),
        (node("h100-0", "IDLE"), False),
    ],
)
def test_the_end_undoes_a_drain_of_busbar_and_no_other(found: Any, is_undone: bool) -> None:
    cluster = SlurmCluster(found)
    made(cluster).end()
    assert cluster.updates == [("h100-0", {"state": ["UNDRAIN"], "reason": ""})] * is_undone


def test_the_end_takes_away_the_mark_of_a_cordon_by_which_the_operator_would_drain_again() -> None:
    cluster = SlurmCluster(node("h100-0"), node("h100-1"))
    for each in cluster.objects[PODS]:
        each["metadata"]["annotations"] = {POD_CORDON: "true"}
    made(cluster).end()
    assert cluster.patched == [
        (f"{PODS}/slurm-worker-h100-0", {"metadata": {"annotations": {POD_CORDON: None}}})
    ]


@pytest.mark.parametrize(
    ("states", "says"),
    [
        (("IDLE",), "h100-0 of Slurm is IDLE, not drained yet"),
        (("ALLOCATED",), "not drained yet"),
        (("ALLOCATED", "DRAIN"), "remaining jobs of Slurm on h100-0"),
        (("MIXED", "DRAIN"), "remaining jobs"),
        (("IDLE", "COMPLETING", "DRAIN"), "remaining jobs"),
    ],
)
def test_pods_stay_until_slurm_has_drained_the_node_and_its_jobs_have_ended(
    states: tuple[str, ...], says: str
) -> None:
    found = made(SlurmCluster(node("h100-0", *states))).released()
    assert isinstance(found, Pending) and says in found.state


@pytest.mark.parametrize("states", [("IDLE", "DRAIN"), ("DOWN", "DRAIN"), ("DOWN", "NOT_RESPONDING")])
def test_a_node_without_jobs_is_released(states: tuple[str, ...]) -> None:
    assert made(SlurmCluster(node("h100-0", *states))).released() is True


def test_jobs_that_are_to_be_ended_are_not_waited_for_once_no_new_one_starts() -> None:
    draining = made(SlurmCluster(node("h100-0", "ALLOCATED", "DRAIN")), end_jobs=True)
    assert draining.released() is True
    running = made(SlurmCluster(node("h100-0", "ALLOCATED")), end_jobs=True)
    assert isinstance(running.released(), Pending)


def test_a_node_that_slurm_does_not_have_is_released() -> None:
    cluster = SlurmCluster(node("h100-0"))
    found = made(cluster)
    cluster.objects[f"{REST}/nodes/"] = {"nodes": []}
    assert found.released() is True


@pytest.mark.parametrize("pods", [[], [pod("h100-0", "gpu-1")]])
def test_without_a_pod_of_this_slurm_there_is_nothing_to_ask(pods: list[Any]) -> None:
    cluster = SlurmCluster()
    cluster.objects["/api/v1/pods"] = pods
    del cluster.objects[f"/api/v1/namespaces/slurm/secrets/{JWT_KEY}"]
    assert hook(cluster, "gpu-1", "x", end_jobs=False) is None


def test_busbar_nodes_names_what_starts_no_jobs_in_slurm_with_its_reason() -> None:
    drained = node("h100-1", "IDLE", "DRAIN", reason="ticket 12")
    cluster = SlurmCluster(node("h100-0", "ALLOCATED"), drained)
    cluster.objects["/api/v1/pods"] = cluster.objects[PODS]
    assert node_states(cluster) == {"gpu-2": "in Slurm: IDLE+DRAIN: ticket 12"}


def test_a_worker_that_slurm_lacks_is_named_however_many_replicas_its_nodeset_has() -> None:
    values_of_pool = values_of(slurm())["nodesets"]["h100"]
    spec = {"replicas": 1, "template": {"spec": values_of_pool["podSpec"]}}
    nodeset = {"metadata": {"name": "slurm-worker-h100", "namespace": "slurm"}, "spec": spec}
    cluster = SlurmCluster(node("h100-0"))
    cluster.objects["/api/v1/pods"] = cluster.objects[PODS]
    cluster.objects["/apis/slinky.slurm.net/v1beta1/nodesets"] = {"items": [nodeset]}
    assert node_states(cluster) == {"gpu-2": "no node of Slurm"}


def test_what_slurm_does_not_say_is_unknown() -> None:
    cluster = SlurmCluster(node("h100-0"))
    cluster.objects["/api/v1/pods"] = cluster.objects[PODS]
    del cluster.objects[f"{REST}/nodes/"]
    assert node_states(cluster)["gpu-1"].startswith("in Slurm: unknown: GET")


def test_without_slurm_nothing_is_said_of_nodes() -> None:
    cluster = SlurmCluster()
    cluster.objects["/api/v1/pods"] = []
    assert node_states(cluster) == {}
