"""Watching an MPIJob: when the wait ends, and which reasons are reported."""

from __future__ import annotations

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
    return {
        "metadata": {"name": "nccl", "uid": "u-1"},
        "status": {
            "conditions": [
                {"type": kind, "status": "True", "reason": reason, "message": message}
                for kind, reason, message in conditions
            ]
        },
    }


def world(**pods_and_events: Any) -> Cluster:
    return Cluster(
        {
            JOB: pods_and_events.get("job", mpijob(("Created", "MPIJobCreated", ""))),
            PODS: pods_and_events.get("pods", []),
            EVENTS: pods_and_events.get("events", []),
        }
    )


def watch(api: Cluster, clock: Clock | None = None, said: list[str] | None = None) -> JobWatch:
    progress = said.append if said is not None else lambda _: None
    return JobWatch(api, "ns", "nccl", Deadline(clock or Clock(), 600), progress)


def waiting_worker(reason: str, message: str = "") -> Any:
    return pod(
        "nccl-worker-0",
        phase="Pending",
        containerStatuses=[container({"waiting": {"reason": reason, "message": message}})],
    )


def test_the_launcher_is_waited_for_while_workers_become_ready() -> None:
    clock, said, api = Clock(), list[str](), world(pods=[pod("nccl-worker-0", **READY), pod("nccl-worker-1")])
    clock.at(30, lambda: api.objects[PODS].append(RUNNING))
    assert watch(api, clock, said).first_pod() == RUNNING
    assert said[0] == "1/2 workers ready [0 s of 600 s]"
    assert 30 <= clock.time < 33


def test_an_image_that_cannot_be_pulled_ends_the_wait_after_three_minutes_with_its_events() -> None:
    clock = Clock()
    api = world(
        pods=[waiting_worker("ImagePullBackOff", "Back-off pulling image")],
        events=[warning("nccl-worker-0", "Failed", "registry.example/nccl:2: not found")],
    )
    with pytest.raises(JobNeverStarted) as nothing:
        watch(api, clock).first_pod()
    assert 180 <= clock.time < 185
    assert nothing.value.reasons == [
        "the job's pods cannot start",
        "nccl-worker-0: ImagePullBackOff: container nccl: Back-off pulling image",
        "nccl-worker-0: Failed: registry.example/nccl:2: not found",
    ]


def test_a_pull_that_recovers_in_time_does_not_end_the_wait() -> None:
    clock, api = Clock(), world(pods=[waiting_worker("ErrImagePull")])
    clock.at(150, lambda: api.objects.update({PODS: [waiting_worker("ContainerCreating")]}))
    clock.at(160, lambda: api.objects.update({PODS: [waiting_worker("ErrImagePull")]}))
    clock.at(300, lambda: api.objects.update({PODS: [RUNNING]}))
    assert watch(api, clock).first_pod() == RUNNING


def test_a_container_that_cannot_be_started_ends_the_wait_at_once() -> None:
    clock, api = Clock(), world(pods=[waiting_worker("StartError", "exec: /bin/bash: no such file")])
    with pytest.raises(JobNeverStarted, match="StartError: container nccl: exec: /bin/bash: no such file"):
        watch(api, clock).first_pod()
    assert clock.time < 2


def test_a_job_that_the_operator_refuses_ends_the_wait_though_it_has_no_condition() -> None:
    api = world(job=mpijob(), events=[warning("nccl", "ValidationError", "name is not a DNS label")])
    with pytest.raises(
        JobNeverStarted, match=r"refuses the job; nccl: ValidationError: name is not a DNS label"
    ):
        watch(api).first_pod()


def test_a_worker_that_was_killed_before_the_launcher_came_ends_the_wait() -> None:
    killed = container({"terminated": {"reason": "OOMKilled", "exitCode": 137}})
    api = world(pods=[pod("nccl-worker-0", phase="Failed", containerStatuses=[killed])])
    clock = Clock()
    with pytest.raises(JobNeverStarted, match="OOMKilled"):
        watch(api, clock).first_pod()
    assert clock.time == 0


def test_a_worker_that_ended_well_before_the_launcher_came_ends_the_wait_too() -> None:
    clock = Clock()
    with pytest.raises(JobNeverStarted, match="the job's pods cannot start"):
        watch(world(pods=[pod("nccl-worker-0", phase="Succeeded")]), clock).first_pod()
    assert clock.time == 0


def test_a_job_that_just_does_not_start_ends_at_the_deadline_with_what_was_seen_last() -> None:
    clock, api = Clock(), world()
    with pytest.raises(JobNeverStarted, match="did not start: timed out after 600 s: no workers yet"):
        watch(api, clock).first_pod()
    assert 600 <= clock.time < 602


def test_a_suspended_job_says_how_to_measure_again_at_once() -> None:
    suspended = mpijob(("Suspended", "MPIJobSuspended", ""))
    for pods in ([], [waiting_worker("ContainerCreating")]):
        clock = Clock()
        with pytest.raises(JobNeverStarted, match=r"Fix: increase validation\.run"):
            watch(world(job=suspended, pods=pods), clock).first_pod()
        assert clock.time == 0


def test_a_job_that_is_not_there_is_said_so() -> None:
    with pytest.raises(JobNeverStarted, match="MPIJob ns/nccl does not exist"):
        watch(Cluster()).first_pod()


def test_an_api_that_is_away_until_the_deadline_is_no_finding_about_the_job() -> None:
    api = world(pods=[RUNNING])
    api.failures = [unreachable()] * 1000
    with pytest.raises(Unreachable, match="connection refused"):
        watch(api).first_pod()


def test_the_end_of_a_job_is_its_condition_which_may_come_a_little_later() -> None:
    clock, api = Clock(), world()
    clock.at(5, lambda: api.objects.update({JOB: mpijob(("Succeeded", "MPIJobSucceeded", ""))}))
    assert watch(api, clock).outcome().succeeded is True


def test_a_failed_job_ends_with_its_reason_and_the_troubles_of_its_pods() -> None:
    killed = container({"terminated": {"reason": "OOMKilled", "exitCode": 137}})
    api = world(
        job=mpijob(("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")),
        pods=[pod("nccl-worker-1", phase="Failed", containerStatuses=[killed])],
    )
    outcome = watch(api).outcome()
    assert outcome.succeeded is False
    assert outcome.reasons == [
        "the MPIJob failed: BackoffLimitExceeded: Job has reached the specified backoff limit",
        "nccl-worker-1: OOMKilled: container nccl: ended with exit code 137",
    ]


def test_a_job_that_neither_succeeds_nor_fails_in_time_has_no_known_end() -> None:
    clock = Clock()
    outcome = watch(world(), clock).outcome()
    assert outcome.succeeded is None
    assert outcome.reasons == ["the MPIJob has neither succeeded nor failed"]
    assert 60 <= clock.time < 61


def test_a_job_past_its_deadline_is_suspended_so_that_its_workers_release_their_gpus() -> None:
    said: list[str] = []
    api = world()
    watch(api, said=said).suspend()
    assert said == ["nccl: suspended; its workers release their GPUs"]
    assert api.patched == [(JOB, {"spec": {"runPolicy": {"suspend": True}}})]


def test_a_launcher_that_has_ended_already_is_returned_too() -> None:
    ended = pod("nccl-launcher-x", "launcher", containerStatuses=[container({"terminated": {}})])
    over = pod("nccl-launcher-x", "launcher", phase="Failed")
    for launcher in (ended, over):
        assert watch(world(pods=[launcher])).first_pod() == launcher


def test_the_newest_of_several_launchers_is_the_one_to_follow() -> None:
    older, newer = (pod(f"nccl-launcher-{n}", "launcher", phase="Failed") for n in "zb")
    newer["metadata"]["creationTimestamp"] = "2026-01-01T00:00:01Z"
    assert watch(world(pods=[newer, older])).first_pod() == newer
    assert watch(world(pods=[older, newer])).first_pod() == newer


def test_a_worker_that_runs_is_not_taken_for_a_launcher() -> None:
    clock = Clock()
    worker = pod("nccl-worker-0", containerStatuses=[container({"running": {}})])
    with pytest.raises(JobNeverStarted, match="0/1 workers ready"):
        watch(world(pods=[worker]), clock).first_pod()


def test_a_job_that_failed_before_its_launcher_started_ends_the_wait_with_its_reason() -> None:
    clock = Clock()
    failed = mpijob(("Failed", "DeadlineExceeded/", "Job was active longer than specified deadline: "))
    with pytest.raises(JobNeverStarted) as never:
        watch(world(job=failed), clock).first_pod()
    assert never.value.reasons == [
        "the MPIJob failed: DeadlineExceeded: Job was active longer than specified deadline"
    ]
    assert clock.time == 0


def test_a_condition_that_is_not_true_is_not_one() -> None:
    job = mpijob(("Failed", "Old", ""), ("Suspended", "Old", ""))
    for condition in job["status"]["conditions"]:
        condition["status"] = "False"
    api = world(job=job, pods=[RUNNING])
    assert watch(api).first_pod() == RUNNING
    assert watch(api).outcome(wait_seconds=0).succeeded is None


def test_a_warning_about_a_job_that_has_pods_is_not_a_refusal() -> None:
    clock = Clock()
    api = world(pods=[pod("nccl-worker-0")], events=[warning("nccl", "ValidationError", "of last week")])
    clock.at(5, lambda: api.objects.update({PODS: [RUNNING]}))
    assert watch(api, clock).first_pod() == RUNNING


def test_many_pods_are_listed_less_often() -> None:
    class Counting(Cluster):
        lists = 0

        def list(self, path: str, **query: str) -> list[dict[str, Any]]:
            self.lists += path == PODS
            return super().list(path, **query)

    def lists(workers: int) -> int:
        api = Counting(world(pods=[pod(f"nccl-worker-{n}") for n in range(workers)]).objects)
        with pytest.raises(JobNeverStarted):
            watch(api).first_pod()
        return api.lists

    assert lists(1) > 500
    assert lists(400) < 130


def test_an_api_that_answers_again_does_not_lose_the_job() -> None:
    clock, said, api = Clock(), list[str](), world(pods=[RUNNING])
    api.failures = [unreachable()] * 5
    assert watch(api, clock, said).first_pod() == RUNNING
    assert said == ["waiting for the API: GET /: connection refused [0 s of 600 s]"]


def test_credentials_that_are_refused_end_the_wait_at_once() -> None:
    for ask in (JobWatch.uid, JobWatch.first_pod, JobWatch.outcome):
        clock, api = Clock(), world(pods=[RUNNING])
        api.failures = [ApiError("GET", 401, "Unauthorized")]
        with pytest.raises(ApiError, match="401"):
            ask(watch(api, clock))
        assert clock.time == 0


def test_events_that_cannot_be_listed_do_not_hide_what_the_pods_show() -> None:
    api = world(pods=[waiting_worker("StartError", "exec: no such file")])
    del api.objects[EVENTS]
    with pytest.raises(JobNeverStarted) as never:
        watch(api).first_pod()
    assert never.value.reasons[1] == "nccl-worker-0: StartError: container nccl: exec: no such file"
    assert never.value.reasons[2].startswith("the events cannot be listed: GET")


def test_pods_that_cannot_be_listed_do_not_change_how_the_job_ended() -> None:
    api = world(job=mpijob(("Failed", "BackoffLimitExceeded", "")))
    del api.objects[PODS]
    outcome = watch(api).outcome()
    assert outcome.succeeded is False
    assert outcome.reasons[0] == "the MPIJob failed: BackoffLimitExceeded"
    assert outcome.reasons[1].startswith("the pods cannot be listed: GET")


def test_an_event_that_repeats_the_condition_is_reported_once() -> None:
    api = world(
        job=mpijob(("Failed", "BackoffLimitExceeded", "limit")),
        events=[
            warning("nccl", "BackoffLimitExceeded", "limit"),
            warning("nccl-launcher", "FailedCreate", "quota exceeded"),
        ],
    )
    assert watch(api).outcome().reasons == [
        "the MPIJob failed: BackoffLimitExceeded: limit",
        "nccl-launcher: FailedCreate: quota exceeded",
    ]


def test_a_job_that_cannot_be_suspended_is_reported_as_keeping_its_gpus() -> None:
    said: list[str] = []
    api = world()
    api.failures = [ApiError("PATCH", 403, "forbidden")]
    watch(api, said=said).suspend()
    assert said == ["nccl: could not be suspended, its workers keep their GPUs: PATCH: HTTP 403: forbidden"]


@pytest.mark.parametrize("failure", [unreachable(), ApiError("GET", 503, "starting"), not_found("/x")])
def test_an_api_that_fails_while_the_end_is_recorded_is_asked_again(failure: ApiError) -> None:
    api = world(job=mpijob(("Succeeded", "MPIJobSucceeded", "")))
    api.failures = [failure] * 3
    assert watch(api).outcome().succeeded is True


def test_an_api_that_never_answers_raises_unreachable_at_the_deadline() -> None:
    for ask in (JobWatch.uid, JobWatch.first_pod):
        clock, api = Clock(), world(pods=[RUNNING])
        api.failures = [unreachable()] * 1000
        with pytest.raises(Unreachable, match="connection refused"):
            ask(watch(api, clock))
        assert clock.time == pytest.approx(600)
