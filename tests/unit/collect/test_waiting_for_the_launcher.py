"""While the launcher does not start: how often the API is asked, how often it is told, when it is over."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from busbar.collect.jobwatch import JobWatch
from busbar.judge.collector import JobNeverStarted
from busbar.kube.client import JsonObject
from busbar.kube.wait import Deadline
from tests.support.kube_cluster import Clock, Cluster, pod

JOB = "/apis/kubeflow.org/v2beta1/namespaces/ns/mpijobs/nccl"
PODS = "/api/v1/namespaces/ns/pods"
EVENTS = "/api/v1/namespaces/ns/events"


class Watched(Cluster):
    """Notes when the MPIJob was asked for and when a line was told."""

    def __init__(self, pods: list[Any]) -> None:
        job = {"metadata": {"name": "nccl", "uid": "u-1"}, "status": {}}
        super().__init__({JOB: job, PODS: pods, EVENTS: []})
        self.clock = Clock()
        self.asked: list[float] = []
        self.told: list[float] = []

    def get(self, path: str, **query: str) -> JsonObject:
        self.asked.append(self.clock.time)
        return super().get(path, **query)

    def wait(self, deadline_seconds: float) -> None:
        deadline = Deadline(self.clock, deadline_seconds)
        watch = JobWatch(self, "ns", "nccl", deadline, lambda _: self.told.append(self.clock.time))
        with pytest.raises(JobNeverStarted):
            watch.first_pod()


def waiting(count: int) -> list[Any]:
    return [pod(f"nccl-worker-{index}", phase="Pending") for index in range(count)]


def steps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


def test_a_state_that_does_not_change_is_told_every_half_minute() -> None:
    api = Watched(waiting(2))
    api.wait(100)
    assert len(api.told) == 4
    assert all(30 <= step < 32 for step in steps(api.told))


def test_the_more_pods_a_job_has_the_less_often_they_are_asked_for() -> None:
    small, large = Watched(waiting(1)), Watched(waiting(500))
    small.wait(60)
    large.wait(60)
    # The last wait is as long as the deadline leaves.
    assert all(1 <= step < 1.1 for step in steps(small.asked)[:-1])
    assert all(5 <= step <= 7 for step in steps(large.asked)[:-1])


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_worker_that_has_ended_before_the_launcher_started_ends_the_waiting(phase: str) -> None:
    api = Watched([*waiting(1), pod("nccl-worker-1", phase=phase)])
    api.wait(600)
    assert api.clock.time < 10
