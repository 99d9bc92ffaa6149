"""A measurement whose GPUs pods of others hold: it fails with their names, waits, or keeps a verdict."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from busbar.collect.busy import Kept, WhenBusy, holders
from busbar.collect.jobwatch import JobWatch
from busbar.collect.result import KEY, RECORD
from busbar.collect.watch import Unreachable
from busbar.judge.collector import JobNeverStarted
from busbar.kube.client import JsonObject
from busbar.kube.wait import Deadline
from busbar.manifests import mpijob
from tests.support.kube_cluster import Clock, Cluster, container, pod, unreachable, unschedulable
from tests.support.kube_site import job as configured
from tests.support.verdicts import passing, record, unknown
from tests.unit.fabric.measure.foreign import gpu_node, holder

NODES = configured().nodes
JOB = mpijob.render(configured())
MESSAGE = "0/5 nodes are available: 2 Insufficient nvidia.com/gpu."
WAIT = WhenBusy(3600)
KEEP = WhenBusy(30, keep=True)


class Site(Cluster):
    """Four workers with a job; `train` holds GPUs until it `ends`. The operator does as it is told."""

    def __init__(self, policy: WhenBusy | None) -> None:
        made = mpijob.render(configured())
        self.job: dict[str, Any] = made
        made["metadata"] |= {"uid": "u-1"}
        made["metadata"]["annotations"] |= policy.annotations if policy else {}
        made["status"] = {"conditions": []}
        name, self.namespace = made["metadata"]["name"], made["metadata"]["namespace"]
        self.path = f"/apis/kubeflow.org/v2beta1/namespaces/{self.namespace}/mpijobs/{name}"
        self.pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self.maps = f"/api/v1/namespaces/{self.namespace}/configmaps"
        super().__init__(
            {
                self.path: made,
                self.pods: [pod("w-0", phase="Pending", conditions=[unschedulable(MESSAGE)])],
                f"/api/v1/namespaces/{self.namespace}/events": [],
                "/api/v1/nodes": [gpu_node(node) for node in configured().nodes],
                "/api/v1/pods": [],
                self.maps: [],
            }
        )
        self.clock = Clock()
        self.told: list[str] = []

    def train(self, *names: str, units: int = 8) -> None:
        nodes = configured().nodes
        self.objects["/api/v1/pods"] = [
            holder(node, name, units) for node, name in zip(nodes, names, strict=False)
        ]

    def ends(self) -> None:
        self.objects["/api/v1/pods"] = []

    def merge(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        self.job["spec"]["runPolicy"] |= body["spec"]["runPolicy"]
        suspended = self.job["spec"]["runPolicy"]["suspend"]
        self.job["status"]["conditions"] = [{"type": "Suspended", "status": str(suspended)}]
        if not suspended:
            self.starts()
        return super().merge(path, body)

    def starts(self) -> None:
        self.objects[self.pods] = [pod("l", "launcher", containerStatuses=[container({"running": {}})])]

    @property
    def suspensions(self) -> list[bool]:
        return [body["spec"]["runPolicy"]["suspend"] for _, body in self.patched]

    def watch(self) -> JobWatch:
        name = self.job["metadata"]["name"]
        watch = JobWatch(self, self.namespace, name, Deadline(self.clock, 600), self.told.append)
        watch.uid()
        return watch

    def record(self, *nodes: str, verdict: dict[str, Any] | None = None) -> None:
        """A record of an update, newer than those before, on these Nodes."""
        number = len(self.objects[self.maps]) + 1
        data = {RECORD: record(number, *nodes).model_dump_json(), KEY: json.dumps(verdict or passing())}
        self.objects[self.maps].append({"metadata": {"name": f"record-{number}"}, "data": data})


def test_without_a_policy_workers_that_fit_nowhere_end_the_wait_with_the_pods_that_hold_the_gpus() -> None:
    site = Site(None)
    site.train("llama-0")
    with pytest.raises(JobNeverStarted) as never:
        site.watch().log()
    assert 180 <= site.clock.time < 185
    assert never.value.reasons[:2] == ["the job's pods cannot start", f"w-0: Unschedulable: {MESSAGE}"]
    node = configured().nodes[0]
    assert never.value.reasons[-1] == f"{node}: 0 of 8 nvidia.com/gpu are free, held by ml/llama-0 (8)"


def test_a_worker_that_was_drained_is_named_with_its_reason_and_makes_the_former_verdict_stay() -> None:
    for policy, error in ((None, JobNeverStarted), (KEEP, Kept)):
        site = Site(policy)
        site.record(*NODES)
        node = site.objects["/api/v1/nodes"][1]
        node["metadata"]["annotations"] = {"busbar/drained": '{"why": "driver 580"}'}
        with pytest.raises(error) as raised:
            site.watch().log()
        why = str(raised.value) if policy is None else "\n".join(site.told)
        name = node["metadata"]["name"]
        assert f"{name}: drained: driver 580. Fix: put it in quarantine, or when its repair is done: " in why
        assert f"busbar uncordon STACK {name}" in why


OTHER_MACHINE = {"creationTimestamp": "2099-01-01T00:00:00Z"}


def kept(site: Site) -> JsonObject:
    """The former result that stays."""
    with pytest.raises(Kept) as found:
        site.watch().log()
    return dict(found.value.found)


def test_at_the_end_of_a_quarantine_the_former_verdict_stays_without_a_policy() -> None:
    site = Site(None)
    site.train("llama-0")
    site.record(*NODES)
    site.record(*NODES[1:])
    assert kept(site)["record"]["nodes"] == list(NODES[1:])
    assert site.clock.time < 300


def test_a_former_verdict_that_stays_is_not_of_machines_that_joined_since() -> None:
    site = Site(KEEP)
    site.train("llama-0")
    site.record(*NODES)
    site.objects["/api/v1/nodes"][1]["metadata"] |= OTHER_MACHINE
    others = [node for node in NODES if node != site.objects["/api/v1/nodes"][1]["metadata"]["name"]]
    assert kept(site)["nodes_measured"] == others


@pytest.mark.parametrize(
    ("trains", "records", "machine", "reason"),
    [
        (["llama-0"], [NODES], {}, "ml/llama-0"),
        (["llama-0"], [NODES, NODES[1:]], OTHER_MACHINE, "ml/llama-0"),
        ([], [NODES, NODES[1:]], {}, "Insufficient"),
    ],
    ids=["no quarantine has ended", "a worker is another machine", "nobody runs on the released worker"],
)
def test_any_other_measurement_without_a_policy_fails(
    trains: list[str], records: list[list[str]], machine: dict[str, str], reason: str
) -> None:
    site = Site(None)
    site.train(*trains)
    for nodes in records:
        site.record(*nodes)
    site.objects["/api/v1/nodes"][1]["metadata"] |= machine
    with pytest.raises(JobNeverStarted, match=reason):
        site.watch().log()


def test_pods_that_may_not_be_listed_leave_the_schedulers_message() -> None:
    site = Site(None)
    del site.objects["/api/v1/pods"]
    with pytest.raises(JobNeverStarted, match=r"2 Insufficient .*which pods hold the GPUs is not known"):
        site.watch().log()


def test_wait_begins_when_the_last_pod_has_ended_and_holds_no_gpus_meanwhile() -> None:
    site = Site(WAIT)
    site.train("llama-0", "llama-1")
    site.clock.at(1000, lambda: site.train("llama-0"))
    site.clock.at(2000, site.ends)
    watch = site.watch()
    watch.log()
    assert 2000 <= site.clock.time < 2020
    assert site.suspensions == [True, False]
    assert watch.deadline.elapsed < 10, "the measurement has its whole time"
    assert any("the GPUs are held: " in line and "ml/llama-0 (8) and 1 more" in line for line in site.told)


OWN = {"namespace": JOB["metadata"]["namespace"], "labels": {mpijob.JOB_LABEL: JOB["metadata"]["name"]}}


@pytest.mark.parametrize(
    ("gpus", "pod", "is_held"),
    [
        (8, {}, True),
        # The scheduler ends those of a measurement of idle nodes.
        (8, {"labels": {"busbar/idle": "true"}}, False),
        (8, OWN, False),
        (16, {}, False),
    ],
    ids=["of others", "of idle nodes", "the job's own", "beside what the job needs"],
)
def test_gpus_are_held_if_too_few_are_left_for_the_job(gpus: int, pod: dict[str, Any], is_held: bool) -> None:
    site = Site(WAIT)
    site.objects["/api/v1/nodes"] = [gpu_node(node, gpus=gpus) for node in NODES]
    site.train("llama-0")
    site.objects["/api/v1/pods"][0]["metadata"] |= pod
    site.objects["/api/v1/pods"].append(holder("elsewhere", "llama-1", 8))
    assert bool(holders(site, site.job)) is is_held


def test_a_node_that_lost_a_gpu_is_held_by_nobody() -> None:
    site = Site(WAIT)
    site.objects["/api/v1/nodes"][0] = gpu_node(NODES[0], gpus=7)
    assert holders(site, site.job) == []


def test_pods_that_end_within_their_grace_period_do_not_suspend_the_job() -> None:
    site = Site(KEEP)
    site.train("llama-0")
    site.clock.at(15, site.ends)
    site.clock.at(15, site.starts)
    site.watch().log()
    assert site.suspensions == []


def test_wait_ends_at_its_deadline_with_the_pods_and_the_cure() -> None:
    site = Site(WAIT)
    site.train("llama-0", "llama-1", "llama-2", "llama-3")
    with pytest.raises(JobNeverStarted) as never:
        site.watch().log()
    assert 3600 <= site.clock.time < 3611
    first, *named, fix = never.value.reasons
    assert first == "pods of others held the GPUs for 3600 s"
    assert [f"ml/llama-{n} (8)" in line for n, line in enumerate(named)] == [True] * 4
    assert fix.startswith("Fix: raise validation.run when these pods have ended")
    assert site.suspensions == [True]


def test_a_pod_that_fits_nowhere_has_three_minutes_after_each_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(WAIT)
    monkeypatch.setattr(site, "starts", lambda: None)
    pending, site.objects[site.pods] = site.objects[site.pods], [pod("w-0", phase="Pending")]
    site.clock.at(100, lambda: site.train("llama-0"))
    site.clock.at(100, lambda: site.objects.update({site.pods: pending}))
    site.clock.at(1000, site.ends)
    with pytest.raises(JobNeverStarted, match="Insufficient"):
        site.watch().log()
    assert 1180 <= site.clock.time < 1210


def test_keep_hands_out_the_former_verdict_and_leaves_no_pod_of_the_job() -> None:
    site = Site(KEEP)
    site.train("llama-0")
    site.record(*NODES)
    found = kept(site)
    assert (found["verdict"], found["record"]["nodes"]) == ("pass", list(NODES))
    assert 30 <= site.clock.time < 35
    assert site.suspensions == [True]
    assert any("ml/llama-0 (8): the former verdict stays" in line for line in site.told)


@pytest.mark.parametrize("is_recorded", [False, True])
def test_keep_without_a_former_verdict_fails_and_says_so(is_recorded: bool) -> None:
    site = Site(KEEP)
    site.train("llama-0")
    if is_recorded:
        site.record(*NODES, verdict=unknown())
    with pytest.raises(JobNeverStarted, match="there is no former verdict to keep") as never:
        site.watch().log()
    assert "ml/llama-0 (8)" in str(never.value)


def test_a_suspended_job_runs_when_the_command_is_repeated_and_the_gpus_are_free() -> None:
    site = Site(KEEP)
    site.merge(site.path, {"spec": {"runPolicy": {"suspend": True}}})
    site.watch().log()
    assert site.suspensions == [True, False]


@pytest.mark.parametrize("conditions", [[], [{"type": "Succeeded", "status": "True"}]])
@pytest.mark.parametrize("policy", [WAIT, KEEP])
def test_a_job_that_has_run_is_collected_in_any_case(policy: WhenBusy, conditions: list[JsonObject]) -> None:
    site = Site(policy)
    site.train("llama-0")
    site.objects[site.pods] = [pod("l", "launcher", phase="Succeeded")]
    site.job["status"]["conditions"] = conditions
    site.watch().log()
    assert (site.suspensions, site.clock.time) == ([], 0)


def test_an_operator_that_does_not_resume_the_job_ends_the_wait() -> None:
    site = Site(KEEP)
    site.job["status"]["conditions"] = [{"type": "Suspended", "status": "True"}]
    with pytest.raises(JobNeverStarted, match="does not resume: timed out after 60 s"):
        site.watch().log()


def test_an_api_that_does_not_answer_says_nothing_about_the_gpus() -> None:
    site = Site(KEEP)
    watch = site.watch()
    site.failures = [unreachable()] * 1000
    with pytest.raises(Unreachable):
        watch.log()
