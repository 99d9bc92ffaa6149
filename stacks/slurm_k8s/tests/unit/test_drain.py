"""`busbar drain` of a worker with jobs of Slurm: Slurm drains first, then pods are evicted."""

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
    ("states", "reason", "is_drained"),
    [
        (["IDLE"], "", True),
        (["ALLOCATED"], "Not responding", True),
        (["IDLE"], "busbar: driver 580", True),
        (["IDLE", "DRAIN"], "busbar: quarantine: fan", True),
        (["IDLE", "DRAIN"], "slurm-operator: Node (gpu-1) was cordoned", True),
        (["IDLE", "DRAIN"], "ticket 12", False),
        (["IDLE", "DRAIN"], "busbar: driver 580", False),
    ],
)
def test_slurm_drains_the_node_with_busbar_s_reason_unless_a_person_or_the_same_one_did(
    states: list[str], reason: str, is_drained: bool
) -> None:
    cluster = SlurmCluster(node("h100-0", *states, reason=reason))
    made(cluster).begin()
    drain = ("h100-0", {"state": ["DRAIN"], "reason": "busbar: driver 580"})
    assert cluster.updates == [drain] * is_drained


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
    ("states", "end_jobs", "says"),
    [
        ("IDLE", False, "h100-0 of Slurm is IDLE, not drained yet"),
        ("ALLOCATED", False, "not drained yet"),
        ("ALLOCATED DRAIN", False, "remaining jobs of Slurm on h100-0"),
        ("MIXED DRAIN", False, "remaining jobs"),
        ("IDLE COMPLETING DRAIN", False, "remaining jobs"),
        ("IDLE DRAIN", False, None),
        ("DOWN DRAIN", False, None),
        ("DOWN NOT_RESPONDING", False, None),
        # Jobs that are to be ended are not waited for once no new one starts.
        ("ALLOCATED DRAIN", True, None),
        ("ALLOCATED", True, "not drained yet"),
    ],
)
def test_pods_stay_until_slurm_has_drained_the_node_and_its_jobs_have_ended(
    states: str, end_jobs: bool, says: str | None
) -> None:
    found = made(SlurmCluster(node("h100-0", *states.split())), end_jobs=end_jobs).released()
    assert found is True if says is None else isinstance(found, Pending) and says in found.state


@pytest.mark.parametrize(("nodes", "waits"), [("h100-[00-02]", True), ("h100-[02-10]", False), ("", False)])
def test_a_suspended_job_is_waited_for_although_slurm_shows_its_node_as_idle(nodes: str, waits: bool) -> None:
    cluster = SlurmCluster(node("h100-01", "IDLE", "DRAIN"))
    cluster.objects[f"{REST}/jobs/"] = {"jobs": [{"job_id": 9, "job_state": ["SUSPENDED"], "nodes": nodes}]}
    cluster.objects["/api/v1/pods"] = [pod("h100-01", "gpu-1")]
    found = hook(cluster, "gpu-1", "driver 580", end_jobs=False)
    assert found and isinstance(found.released(), Pending) is waits


@pytest.mark.parametrize("pods", [[], [pod("h100-0", "gpu-1")]])
def test_without_a_pod_of_this_slurm_there_is_nothing_to_ask(pods: list[Any]) -> None:
    cluster = SlurmCluster()
    cluster.objects["/api/v1/pods"] = pods
    del cluster.objects[f"/api/v1/namespaces/slurm/secrets/{JWT_KEY}"]
    assert hook(cluster, "gpu-1", "x", end_jobs=False) is None
    assert pods or node_states(cluster) == {}


def test_a_node_that_slurm_does_not_have_is_released() -> None:
    cluster = SlurmCluster(node("h100-0"))
    found = made(cluster)
    cluster.objects[f"{REST}/nodes/"] = {"nodes": []}
    assert found.released() is True


def test_busbar_nodes_names_what_starts_no_jobs_in_slurm_with_its_reason() -> None:
    drained = node("h100-1", "IDLE", "DRAIN", reason="ticket 12")
    cluster = SlurmCluster(node("h100-0", "ALLOCATED"), drained)
    cluster.objects["/api/v1/pods"] = cluster.objects[PODS]
    assert node_states(cluster) == {"gpu-2": "in Slurm: IDLE+DRAIN: ticket 12"}
    del cluster.objects[f"{REST}/nodes/"]
    assert node_states(cluster)["gpu-1"].startswith("in Slurm: unknown: GET")


def test_a_worker_that_slurm_lacks_is_named_however_many_replicas_its_nodeset_has() -> None:
    values_of_pool = values_of(slurm())["nodesets"]["h100"]
    spec = {"replicas": 1, "template": {"spec": values_of_pool["podSpec"]}}
    nodeset = {"metadata": {"name": "slurm-worker-h100", "namespace": "slurm"}, "spec": spec}
    cluster = SlurmCluster(node("h100-0"))
    cluster.objects["/api/v1/pods"] = cluster.objects[PODS]
    cluster.objects["/apis/slinky.slurm.net/v1beta1/nodesets"] = {"items": [nodeset]}
    assert node_states(cluster) == {"gpu-2": "no node of Slurm"}
