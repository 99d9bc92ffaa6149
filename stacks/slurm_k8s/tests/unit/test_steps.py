"""Nothing of Slurm changes without slurmrestd, and nothing is removed while there are jobs."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.exits import Failed
from busbar.kube.client import ApiError
from busbar.kube.wait import TimedOut
from stacks.slurm_k8s.package.steps import StepSpec, run
from stacks.slurm_k8s.tests.support import NODES, NODESETS, PODS, REST, RESTD, REVISIONS, SlurmCluster, pod
from tests.support.kube_cluster import Clock


def step(name: str, cluster: SlurmCluster, clock: Clock | None = None, **more: Any) -> Any:
    spec = StepSpec.model_validate({"step": name, "namespace": "slurm", **more})
    return run(cluster, spec, clock or Clock(), lambda _: None)


def change(objects: dict[str, Any]) -> str:
    return str(step("before-change", SlurmCluster(objects=objects)))


def test_a_first_installation_has_nothing_to_wait_for() -> None:
    assert change({}) == "not running"


def test_a_first_installation_that_has_failed_can_be_mended() -> None:
    waiting = {**pod("h100-0", "gpu-1"), "status": {"phase": "Pending"}}
    assert change({RESTD: {"status": {}}, PODS: [waiting]}) == "not running"


def test_one_ready_pod_of_slurmrestd_is_enough() -> None:
    found = {NODESETS: [], REVISIONS: [], NODES: [], RESTD: {"status": {"readyReplicas": 1}}}
    assert change(found) == "[]"


def test_without_a_ready_slurmrestd_nothing_is_changed() -> None:
    running = {**pod("h100-0", "gpu-1"), "status": {"phase": "Running"}}
    with pytest.raises(TimedOut, match="nothing is changed"):
        change({RESTD: {"status": {}}, PODS: [running]})


def test_the_operator_stays_until_the_last_pod_of_slurm_is_gone() -> None:
    cluster, clock = SlurmCluster(objects={PODS: [pod("h100-0", "gpu-1")]}), Clock()

    def end() -> None:
        cluster.objects[PODS] = []

    clock.at(30, end)
    step("after-removal", cluster, clock)
    assert clock.time >= 30


def test_pods_that_do_not_end_are_named() -> None:
    cluster = SlurmCluster(objects={PODS: [pod("h100-0", "gpu-1")]})
    with pytest.raises(TimedOut, match="slurm-worker-h100-0"):
        step("after-removal", cluster)


class Jobs(SlurmCluster):
    """Slurm with jobs that a cancellation ends."""

    def __init__(self, *jobs: tuple[int, str]) -> None:
        super().__init__()
        self.jobs = dict(jobs)
        self.objects[f"{REST}/jobs/"] = {}

    def get(self, path: str, **query: str) -> Any:
        if path == f"{REST}/jobs/" and not self.failures:
            return {"jobs": [{"job_id": job, "job_state": [state]} for job, state in self.jobs.items()]}
        return super().get(path, **query)

    def delete(self, path: str, **preconditions: str) -> Any:
        self.jobs.pop(int(path.rpartition("/")[2]))
        return {}


def removal(cluster: Jobs, *, cancel_jobs: bool = False) -> int:
    return int(step("before-removal", cluster, cancel_jobs=cancel_jobs))


def test_jobs_that_have_ended_keep_nothing() -> None:
    assert removal(Jobs((1, "COMPLETED"), (2, "FAILED"), (3, "CANCELLED"))) == 0


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "COMPLETING", "SUSPENDED"])
def test_a_job_that_runs_or_waits_is_named_and_nothing_is_removed(state: str) -> None:
    with pytest.raises(Failed, match=r"running or pending: 4; nothing was removed.*removal\.cancel_jobs"):
        removal(Jobs((4, state)))


def test_jobs_are_cancelled_where_that_is_configured() -> None:
    cluster = Jobs((4, "RUNNING"), (5, "PENDING"))
    assert removal(cluster, cancel_jobs=True) == 2
    assert cluster.jobs == {}


def silent() -> Jobs:
    cluster = Jobs()
    cluster.failures = [ApiError("GET", 503, "no endpoints")] * 500
    return cluster


def test_where_slurm_cannot_be_asked_nothing_is_removed_unless_jobs_do_not_count() -> None:
    with pytest.raises(Failed, match="it is unknown whether jobs of Slurm run"):
        removal(silent())
    assert removal(silent(), cancel_jobs=True) == 0
