"""Workloads that hold the devices of a cluster, and how they are ended."""

from typing import Any

import pytest

from busbar.exits import Failed
from busbar.kube import gpus
from busbar.kube.gpus import IDLE_LABEL, MEASURED_BY
from busbar.kube.objects import OWNER
from tests.support.kube_cluster import Clock, Cluster

GPUS = {"nvidia.com/gpu": "8"}
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/ml/jobsets"
TRAIN_JOB = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/ml/trainjobs/llama"


def owned(version: str, kind: str, name: str) -> dict[str, Any]:
    return {"ownerReferences": [{"apiVersion": version, "kind": kind, "name": name, "controller": True}]}


def pod(name: str, requests: dict[str, str], **metadata: Any) -> dict[str, Any]:
    found = {"name": name, "namespace": "ml", "uid": f"uid-{name}", **metadata}
    return {"metadata": found, "spec": {"containers": [{"resources": {"requests": requests}}]}}


def cluster(*pods: dict[str, Any]) -> Cluster:
    """Pods of a TrainJob are those of a Job of a JobSet of it."""
    of_train_job = owned("trainer.kubeflow.org/v1alpha1", "TrainJob", "llama")
    of_jobset = owned("jobset.x-k8s.io/v1alpha2", "JobSet", "llama")
    jobset = {"metadata": {"name": "llama", "uid": "j", **of_train_job}}
    job = {"metadata": {"name": "llama-node", "uid": "j", **of_jobset}}
    return Cluster(
        {
            "/api/v1/pods": [*pods],
            "/apis/batch/v1/namespaces/ml/jobs/llama-node": job,
            f"{JOBSETS}/llama": jobset,
            TRAIN_JOB: {"metadata": {"name": "llama", "uid": "train"}},
        }
    )


def test_the_pods_of_a_training_are_the_object_that_a_person_has_made() -> None:
    of_job = owned("batch/v1", "Job", "llama-node")
    [found] = gpus.workloads(cluster(pod("a", GPUS, **of_job), pod("b", GPUS, **of_job)))
    assert (str(found), found.path) == ("TrainJob ml/llama", TRAIN_JOB)


GONE = owned("batch/v1", "Job", "other")


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/hostdev", "rdma/rails"])
@pytest.mark.parametrize("owner", [{}, GONE], ids=["no owner", "its owner is gone"])
def test_a_pod_that_holds_a_device_is_named(resource: str, owner: dict[str, Any]) -> None:
    assert [*map(str, gpus.workloads(cluster(pod("lone", {resource: "1"}, **owner))))] == ["Pod ml/lone"]


def test_an_owner_of_the_core_group_is_named() -> None:
    path = "/api/v1/namespaces/ml/replicationcontrollers/web"
    there = cluster(pod("web-a", GPUS, **owned("v1", "ReplicationController", "web")))
    there.objects[path] = {"metadata": {"name": "web", "uid": "rc"}}
    [found] = gpus.workloads(there)
    assert (str(found), found.path) == ("ReplicationController ml/web", path)


@pytest.mark.parametrize(
    "found",
    [
        pod("web", {"cpu": "1"}),
        pod("idle", GPUS, labels={IDLE_LABEL: "true"}),
        # Its jobs are asked for by their own scheduler.
        pod("slurmd", GPUS, annotations={MEASURED_BY: "busbar measure STACK"}),
    ],
)
def test_pods_without_devices_or_jobs_of_their_own_are_none(found: dict[str, Any]) -> None:
    assert gpus.workloads(cluster(found)) == []


def test_workloads_are_deleted_and_their_pods_waited_for_or_named() -> None:
    there, clock = cluster(pod("a", GPUS, **owned("batch/v1", "Job", "llama-node"))), Clock()
    clock.at(10, lambda: there.objects["/api/v1/pods"].clear())
    said: list[str] = []
    gpus.end(there, lambda: gpus.workloads(there), clock, said.append)
    assert {path for path, _ in there.deleted} == {TRAIN_JOB}
    assert 10 <= clock.time < 15
    assert "TrainJob ml/llama" in said[0]
    there = cluster(pod("lone", GPUS))
    with pytest.raises(Failed, match=r"Pod ml/lone; nothing was removed"):
        gpus.end(there, lambda: gpus.workloads(there), Clock(), lambda _: None)


def test_a_namespace_is_that_of_the_stack_whose_mark_it_has() -> None:
    def space(name: str, **annotations: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "annotations": annotations}}

    mark = {OWNER: "busbar-slurm_k8s/dev/slurm-namespace"}
    there = Cluster(
        {"/api/v1/namespaces": [space("slurm", **mark), space("site"), {"metadata": {"name": "bare"}}]}
    )
    assert gpus.owners(there) == {"slurm": "busbar-slurm_k8s/dev"}
