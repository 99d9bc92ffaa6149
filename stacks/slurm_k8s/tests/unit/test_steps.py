"""Nothing of Slurm changes without slurmrestd, and nothing is removed while there are jobs."""

from collections.abc import Mapping
from typing import Any

import pytest

from busbar.exits import Failed, NoVerdict
from busbar.kube.client import ApiError, JsonObject
from busbar.kube.wait import TimedOut
from stacks.slurm_k8s.package import steps
from stacks.slurm_k8s.package.roll import RollSpec
from stacks.slurm_k8s.package.steps import StepSpec, await_removal, await_webhook, before_change, refuse_jobs
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


def pods(phase: str) -> list[Any]:
    return [{**pod("h100-0", "gpu-1"), "status": {"phase": phase}}]


@pytest.mark.parametrize(
    "objects",
    [
        {},
        # An installation that has failed can be mended.
        {RESTD: {"status": {}}, PODS: pods("Pending")},
        {NODESETS: [], REVISIONS: [], NODES: [], RESTD: {"status": {"readyReplicas": 1}}},
    ],
    ids=["first installation", "failed one", "one ready pod of two"],
)
def test_a_change_waits_for_slurmrestd_where_slurm_runs(objects: dict[str, Any]) -> None:
    assert change(objects) == []


def test_without_a_ready_slurmrestd_nothing_is_changed() -> None:
    with pytest.raises(TimedOut, match="nothing is changed"):
        change({RESTD: {"status": {}}, PODS: pods("Running")})


def test_the_operator_stays_until_the_last_pod_of_slurm_is_gone_and_one_that_does_not_end_is_named() -> None:
    cluster, clock = SlurmCluster(objects={PODS: pods("Running")}), Clock()
    with pytest.raises(TimedOut, match="slurm-worker-h100-0"):
        await_removal(cluster, StepSpec(namespace="slurm"), Clock(), lambda _: None)
    clock.at(30, lambda: cluster.objects.update({PODS: []}))
    await_removal(cluster, StepSpec(namespace="slurm"), clock, lambda _: None)
    assert clock.time >= 30


CONTROLLERS = "/apis/slinky.slurm.net/v1beta1/controllers"


class Jobs(SlurmCluster):
    def __init__(self, *jobs: tuple[int, str], ends: bool = True) -> None:
        super().__init__()
        self.jobs, self.ending, self.ends = dict(jobs), list[int](), ends
        self.objects[f"{REST}/jobs/"] = {}

    def get(self, path: str, **query: str) -> Any:
        if path == CONTROLLERS:
            return self.objects.get(path, {})
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


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "CANCELLED COMPLETING", "SUSPENDED"])
def test_a_job_that_runs_or_waits_is_named_and_nothing_is_removed(state: str) -> None:
    ended = ((1, "COMPLETED"), (2, "FAILED"), (3, "CANCELLED"), (5, "PREEMPTED"))
    removal(Jobs(*ended))
    with pytest.raises(Failed, match=r"^job 4 of Slurm .*; nothing was removed.*removal\.cancel_jobs"):
        removal(Jobs(*ended, (4, state)))


def test_jobs_are_cancelled_once_where_that_is_configured_and_waited_for() -> None:
    cluster = Jobs((4, "RUNNING"), (5, "PENDING"))
    removal(cluster, cancel_jobs=True)
    assert cluster.ending == [4, 5]
    with pytest.raises(Failed, match=r"ending: 4; nothing was removed\. Fix: sinfo"):
        removal(Jobs((4, "RUNNING"), ends=False), cancel_jobs=True)


def test_a_destroy_asks_the_slurm_clusters_of_busbar() -> None:
    cluster = Jobs((4, "RUNNING"))
    cluster.objects["/api/v1/pods"] = [pod("h100-0", "gpu-1")]
    assert steps.running_jobs(cluster, False) == ["job 4 of Slurm"]


def test_where_slurm_cannot_be_asked_nothing_is_removed_unless_jobs_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Jobs()
    cluster.failures = [ApiError("GET", 503, "no endpoints")] * 500
    monkeypatch.setenv("BUSBAR_CANCEL_JOBS", "false")
    with pytest.raises(NoVerdict, match="it is unknown whether jobs of Slurm run"):
        removal(cluster)
    removal(cluster, cancel_jobs=True)
    # A destroy says so to steps that the last update gave another value.
    monkeypatch.setenv("BUSBAR_CANCEL_JOBS", "true")
    removal(cluster)


SLICES = "/apis/discovery.k8s.io/v1/namespaces/slinky/endpointslices"


class Webhook(SlurmCluster):
    """A cluster whose webhook refuses `refusals` times."""

    def __init__(self, ready: bool, refusals: int = 0) -> None:
        super().__init__()
        self.objects[SLICES] = [{"endpoints": [{"conditions": {"ready": ready}}]}]
        self.refusals, self.asked = refusals, list[str]()

    def create(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        self.asked.append(path)
        if len(self.asked) <= self.refusals:
            raise ApiError(f"POST {path}", 500, "x509: certificate signed by unknown authority")
        return dict(body)


def wait(cluster: Webhook) -> None:
    await_webhook(cluster, StepSpec(namespace="slurm"), Clock(), lambda _: None)


def test_a_webhook_with_a_new_certificate_is_waited_for_and_nothing_is_stored() -> None:
    cluster = Webhook(ready=True, refusals=3)
    wait(cluster)
    assert len(cluster.asked) == 4
    assert all(path.endswith("?dryRun=All") for path in cluster.asked)


def test_without_a_ready_endpoint_an_accepted_object_says_nothing() -> None:
    cluster = Webhook(ready=False)
    with pytest.raises(TimedOut, match="has no ready endpoint"):
        wait(cluster)
    assert cluster.asked == []


def test_the_crds_of_slurm_clusters_of_others_stay_and_no_job_is_cancelled_before() -> None:
    def controller(namespace: str, key: str) -> JsonObject:
        return {"metadata": {"namespace": namespace, "name": "slurm"}, "spec": {"slurmKeyRef": {"name": key}}}

    cluster = Jobs((4, "RUNNING"))
    cluster.objects["/api/v1/pods"] = [pod("h100-0", "gpu-1")]
    ours, theirs = controller("slurm", "busbar-slurm-key"), controller("ada", "slurm-auth-slurm")
    cluster.objects[CONTROLLERS] = {"items": [ours, theirs]}
    for ask in (lambda: removal(cluster, cancel_jobs=True), lambda: steps.running_jobs(cluster, True)):
        with pytest.raises(
            Failed, match=r"ada/slurm .* end with its CRDs; nothing was removed\. Fix: .*kubectl -n ada"
        ):
            ask()
    assert cluster.ending == []
    cluster.objects[CONTROLLERS] = {"items": [ours]}
    removal(cluster, cancel_jobs=True)
