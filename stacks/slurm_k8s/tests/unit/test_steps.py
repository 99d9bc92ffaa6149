"""Nothing of Slurm changes without slurmrestd, and nothing is removed while there are jobs."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.exits import Failed
from busbar.kube.client import ApiError
from busbar.kube.wait import TimedOut
from stacks.slurm_k8s.package import steps
from stacks.slurm_k8s.package.roll import RollSpec
from stacks.slurm_k8s.package.steps import StepSpec, await_removal, before_change, refuse_jobs
from stacks.slurm_k8s.tests.support import (
    NODES,
    NODESETS,
    PODS,
    REST,
    RESTD,
    REVISIONS,
    SlurmCluster,
    pod,
    pools,
    slurm,
)
from tests.support.kube_cluster import Clock


def change(objects: dict[str, Any]) -> list[str]:
    spec = RollSpec.of(slurm(), pools())
    return before_change(SlurmCluster(objects=objects), spec, Clock(), lambda _: None)


def test_a_first_installation_has_nothing_to_wait_for() -> None:
    assert change({}) == []


def test_a_first_installation_that_has_failed_can_be_mended() -> None:
    waiting = {**pod("h100-0", "gpu-1"), "status": {"phase": "Pending"}}
    assert change({RESTD: {"status": {}}, PODS: [waiting]}) == []


def test_one_ready_pod_of_slurmrestd_is_enough() -> None:
    found = {NODESETS: [], REVISIONS: [], NODES: [], RESTD: {"status": {"readyReplicas": 1}}}
    assert change(found) == []


def test_without_a_ready_slurmrestd_nothing_is_changed() -> None:
    running = {**pod("h100-0", "gpu-1"), "status": {"phase": "Running"}}
    with pytest.raises(TimedOut, match="nothing is changed"):
        change({RESTD: {"status": {}}, PODS: [running]})


def test_the_operator_stays_until_the_last_pod_of_slurm_is_gone() -> None:
    cluster, clock = SlurmCluster(objects={PODS: [pod("h100-0", "gpu-1")]}), Clock()

    def end() -> None:
        cluster.objects[PODS] = []

    clock.at(30, end)
    await_removal(cluster, StepSpec(namespace="slurm"), clock, lambda _: None)
    assert clock.time >= 30


def test_pods_that_do_not_end_are_named() -> None:
    cluster = SlurmCluster(objects={PODS: [pod("h100-0", "gpu-1")]})
    with pytest.raises(TimedOut, match="slurm-worker-h100-0"):
        await_removal(cluster, StepSpec(namespace="slurm"), Clock(), lambda _: None)


class Jobs(SlurmCluster):
    """Slurm with jobs that a cancellation ends."""

    def __init__(self, *jobs: tuple[int, str], ends: bool = True) -> None:
        super().__init__()
        self.jobs, self.ending, self.ends = dict(jobs), list[int](), ends
        self.objects[f"{REST}/jobs/"] = {}

    def get(self, path: str, **query: str) -> Any:
        if path == f"{REST}/jobs/" and not self.failures:
            found = [{"job_id": job, "job_state": state.split()} for job, state in self.jobs.items()]
            if self.ends:  # for the next question
                self.jobs.update(dict.fromkeys(self.ending, "CANCELLED"))
            return {"jobs": found}
        return super().get(path, **query)

    def delete(self, path: str, **preconditions: str) -> Any:
        job = int(path.rpartition("/")[2])
        assert job not in self.ending, "cancelled twice"
        self.ending.append(job)
        return {}


def removal(cluster: Jobs, *, cancel_jobs: bool = False) -> None:
    spec = StepSpec(namespace="slurm", cancel_jobs=cancel_jobs)
    refuse_jobs(cluster, spec, Clock(), lambda _: None)


def test_jobs_that_have_ended_keep_nothing() -> None:
    removal(Jobs((1, "COMPLETED"), (2, "FAILED"), (3, "CANCELLED")))


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "CANCELLED COMPLETING", "SUSPENDED"])
def test_a_job_that_runs_or_waits_is_named_and_nothing_is_removed(state: str) -> None:
    with pytest.raises(Failed, match=r"^job 4 of Slurm .*; nothing was removed.*removal\.cancel_jobs"):
        removal(Jobs((4, state)))


def test_jobs_are_cancelled_once_where_that_is_configured_and_waited_for() -> None:
    cluster = Jobs((4, "RUNNING"), (5, "PENDING"))
    removal(cluster, cancel_jobs=True)
    assert cluster.ending == [4, 5]


def test_a_job_whose_processes_do_not_end_keeps_its_node() -> None:
    cluster = Jobs((4, "RUNNING"), ends=False)
    with pytest.raises(Failed, match=r"ending: 4; nothing was removed\. Fix: sinfo"):
        removal(cluster, cancel_jobs=True)


def test_a_destroy_asks_the_slurm_clusters_of_busbar() -> None:
    cluster = Jobs((4, "RUNNING"))
    cluster.objects["/api/v1/pods"] = [pod("h100-0", "gpu-1")]
    assert steps.running_jobs(cluster, False) == ["job 4 of Slurm"]


def silent() -> Jobs:
    cluster = Jobs()
    cluster.failures = [ApiError("GET", 503, "no endpoints")] * 500
    return cluster


def test_where_slurm_cannot_be_asked_nothing_is_removed_unless_jobs_do_not_count() -> None:
    with pytest.raises(Failed, match="it is unknown whether jobs of Slurm run"):
        removal(silent())
    removal(silent(), cancel_jobs=True)
