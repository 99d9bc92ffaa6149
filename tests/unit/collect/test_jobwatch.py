"""Watching an MPIJob: when the wait ends, and which reasons are reported."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from busbar.collect.jobwatch import JobWatch
from busbar.collect.watch import Unreachable
from busbar.judge.collector import JobNeverStarted
from busbar.kube.client import ApiError
from busbar.kube.wait import Deadline
from tests.support.kube_cluster import Clock, Cluster, container, not_found, pod, unreachable, warning

JOB = "/apis/kubeflow.org/v2beta1/namespaces/ns/mpijobs/nccl"
PODS = "/api/v1/namespaces/ns/pods"
EVENTS = "/api/v1/namespaces/ns/events"
READY: dict[str, Any] = {"conditions": [{"type": "Ready", "status": "True"}]}
RUNNING = pod("nccl-launcher-x", "launcher", containerStatuses=[container({"running": {}})])


def mpijob(*conditions: tuple[str, str, str]) -> Any:
    found = [
        {"type": kind, "status": "True", "reason": reason, "message": message}
        for kind, reason, message in conditions
    ]
    return {"metadata": {"name": "nccl", "uid": "u-1"}, "status": {"conditions": found}}


def world(
    *pods: dict[str, Any], job: Any = None, events: tuple[dict[str, Any], ...] = (), failures: Any = ()
) -> Cluster:
    created = mpijob(("Created", "MPIJobCreated", ""))
    api = Cluster({JOB: job or created, PODS: [*pods], EVENTS: [*events]})
    api.failures = [*failures]
    return api


def watch(api: Cluster, clock: Clock | None = None, said: list[str] | None = None) -> JobWatch:
    progress = said.append if said is not None else lambda _: None
    return JobWatch(api, "ns", "nccl", Deadline(clock or Clock(), 600), progress)


def waiting_worker(reason: str, message: str = "") -> Any:
    state = container({"waiting": {"reason": reason, "message": message}})
    return pod("nccl-worker-0", phase="Pending", containerStatuses=[state])


def test_the_launcher_is_waited_for_while_workers_become_ready() -> None:
    clock, said, api = Clock(), list[str](), world(pod("nccl-worker-0", **READY), pod("nccl-worker-1"))
    clock.at(30, lambda: api.objects[PODS].append(RUNNING))
    assert watch(api, clock, said).first_pod() == RUNNING
    assert said[0] == "1/2 workers ready [0 s of 600 s]"
    assert 30 <= clock.time < 33


KILLED = container({"terminated": {"reason": "OOMKilled", "exitCode": 137}})
HELD = r"Fix: if Kueue runs, exclude \S+ from it; raise validation\.run"
SUSPENDED = mpijob(("Suspended", "MPIJobSuspended", ""))
TOO_LATE = mpijob(("Failed", "DeadlineExceeded/", "Job was active longer than specified deadline: "))
PULLED = warning("nccl-worker-0", "Failed", "registry.example/nccl:2: not found")
REFUSED = warning("nccl", "ValidationError", "name is not a DNS label")
SCRIPT = "exec: /bin/bash: no such file"


@pytest.mark.parametrize(
    ("api", "seconds", "reasons"),
    [
        (
            world(waiting_worker("ImagePullBackOff", "Back-off"), events=(PULLED,)),
            180,
            r"^the job's pods cannot start; nccl-worker-0: ImagePullBackOff: container nccl: Back-off; "
            r"nccl-worker-0: Failed: registry\.example/nccl:2: not found$",
        ),
        (world(waiting_worker("StartError", SCRIPT)), 0, f"StartError: container nccl: {SCRIPT}"),
        (world(pod("nccl-worker-0", phase="Failed", containerStatuses=[KILLED])), 0, "OOMKilled"),
        (world(pod("nccl-worker-0", phase="Succeeded")), 0, "the job's pods cannot start"),
        (world(pod("w", containerStatuses=[container({"running": {}})])), 600, "0/1 workers ready"),
        (world(), 600, "did not start: timed out after 600 s: no workers yet"),
        # The operator sets no condition.
        (
            world(job=mpijob(), events=(REFUSED,)),
            0,
            "refuses the job; nccl: ValidationError: name is not a DNS",
        ),
        (world(job=TOO_LATE), 0, "^the MPIJob failed: DeadlineExceeded: .* longer than specified deadline$"),
        (world(job=SUSPENDED), 0, HELD),
        (world(waiting_worker("ContainerCreating"), job=SUSPENDED), 0, HELD),
        (Cluster(), 0, "MPIJob ns/nccl does not exist"),
    ],
)
def test_a_job_that_cannot_start_ends_the_wait_and_says_why(api: Cluster, seconds: int, reasons: str) -> None:
    clock = Clock()
    with pytest.raises(JobNeverStarted, match=reasons):
        watch(api, clock).first_pod()
    assert seconds <= clock.time < seconds + 5


def test_a_pull_that_recovers_in_time_does_not_end_the_wait() -> None:
    clock, api = Clock(), world(waiting_worker("ErrImagePull"))
    later = {150: waiting_worker("ContainerCreating"), 160: waiting_worker("ErrImagePull"), 300: RUNNING}
    for seconds, found in later.items():
        clock.at(seconds, partial(api.objects.update, {PODS: [found]}))
    assert watch(api, clock).first_pod() == RUNNING


LIMIT = mpijob(("Failed", "BackoffLimitExceeded", "limit"))
FAILED = "the MPIJob failed: BackoffLimitExceeded: limit"
OF_POD = pod("nccl-worker-1", phase="Failed", containerStatuses=[KILLED])
EVENTS_OF_JOB = [
    warning("nccl", "BackoffLimitExceeded", "limit"),
    warning("nccl-launcher", "FailedCreate", "quota"),
]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({PODS: [OF_POD]}, "nccl-worker-1: OOMKilled: container nccl: ended with exit code 137"),
        # An event that repeats the condition is reported once.
        ({EVENTS: EVENTS_OF_JOB}, "nccl-launcher: FailedCreate: quota"),
    ],
)
def test_a_failed_job_has_the_reasons_of_its_pods_and_events(found: dict[str, Any], reason: str) -> None:
    api = world(job=LIMIT)
    api.objects |= found
    outcome = watch(api).outcome()
    assert (outcome.succeeded, outcome.reasons) == (False, [FAILED, reason])


def test_it_is_said_whether_the_workers_of_a_suspended_job_release_their_gpus() -> None:
    said, api = list[str](), world(failures=[None, ApiError("PATCH", 403, "forbidden")])
    watch(api, said=said).suspend()
    watch(api, said=said).suspend()
    refused = "nccl: could not be suspended, its workers keep the GPUs: PATCH: HTTP 403: forbidden"
    assert said == ["nccl: suspended; its workers release their GPUs", refused]
    assert api.patched == [(JOB, {"spec": {"runPolicy": {"suspend": True}}})]


OLDER, NEWER = (pod(f"nccl-launcher-{n}", "launcher", phase="Failed") for n in "zb")
NEWER["metadata"]["creationTimestamp"] = "2026-01-01T00:00:01Z"
ENDED = pod("nccl-launcher-x", "launcher", containerStatuses=[container({"terminated": {}})])


@pytest.mark.parametrize(
    ("pods", "launcher"),
    [([ENDED], ENDED), ([OLDER], OLDER), ([NEWER, OLDER], NEWER), ([OLDER, NEWER], NEWER)],
    ids=["its container has ended", "it is over", "the newest is first", "the newest is last"],
)
def test_the_newest_launcher_is_followed_though_it_has_ended(pods: list[Any], launcher: Any) -> None:
    assert watch(world(*pods)).first_pod() == launcher


def test_a_condition_that_is_not_true_is_not_one() -> None:
    job = mpijob(("Failed", "Old", ""), ("Suspended", "Old", ""))
    for condition in job["status"]["conditions"]:
        condition["status"] = "False"
    api = world(RUNNING, job=job)
    assert watch(api).first_pod() == RUNNING
    assert watch(api).outcome(wait_seconds=0).succeeded is None


def test_a_warning_about_a_job_that_has_pods_is_not_a_refusal() -> None:
    clock = Clock()
    api = world(pod("nccl-worker-0"), events=(warning("nccl", "ValidationError", "of last week"),))
    clock.at(5, lambda: api.objects.update({PODS: [RUNNING]}))
    assert watch(api, clock).first_pod() == RUNNING


def test_many_pods_are_listed_less_often() -> None:
    class Counting(Cluster):
        lists = 0

        def list(self, path: str, **query: str) -> list[dict[str, Any]]:
            self.lists += path == PODS
            return super().list(path, **query)

    def lists(workers: int) -> int:
        api = Counting(world(*(pod(f"nccl-worker-{n}") for n in range(workers))).objects)
        with pytest.raises(JobNeverStarted):
            watch(api).first_pod()
        return api.lists

    assert lists(1) > 500
    assert lists(400) < 130


@pytest.mark.parametrize("ask", [JobWatch.uid, JobWatch.first_pod, JobWatch.outcome])
def test_credentials_that_are_refused_end_the_wait_at_once(ask: Callable[[JobWatch], object]) -> None:
    clock, api = Clock(), world(RUNNING, failures=[ApiError("GET", 401, "Unauthorized")])
    with pytest.raises(ApiError, match="401"):
        ask(watch(api, clock))
    assert clock.time == 0


def test_events_that_cannot_be_listed_do_not_hide_what_the_pods_show() -> None:
    api = world(waiting_worker("StartError", SCRIPT))
    del api.objects[EVENTS]
    with pytest.raises(JobNeverStarted, match=f"StartError: .* {SCRIPT}; the events cannot be listed: GET"):
        watch(api).first_pod()


def test_pods_that_cannot_be_listed_do_not_change_how_the_job_ended() -> None:
    api = world(job=LIMIT)
    del api.objects[PODS]
    outcome = watch(api).outcome()
    assert (outcome.succeeded, outcome.reasons[0]) == (False, FAILED)
    assert outcome.reasons[1].startswith("the pods cannot be listed: GET")


@pytest.mark.parametrize("failure", [unreachable(), ApiError("GET", 503, "starting"), not_found("/x")])
def test_an_api_that_fails_while_the_end_is_recorded_is_asked_again(failure: ApiError) -> None:
    api = world(job=mpijob(("Succeeded", "MPIJobSucceeded", "")), failures=[failure] * 3)
    assert watch(api).outcome().succeeded is True


@pytest.mark.parametrize("ask", [JobWatch.uid, JobWatch.first_pod])
def test_an_api_that_never_answers_is_no_finding_about_the_job(ask: Callable[[JobWatch], object]) -> None:
    clock, api = Clock(), world(RUNNING, failures=[unreachable()] * 1000)
    with pytest.raises(Unreachable, match="connection refused"):
        ask(watch(api, clock))
    assert clock.time == pytest.approx(600)
