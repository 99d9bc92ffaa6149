"""A launcher that failed is made again by the Job: only the newest one is the measurement."""

from __future__ import annotations

import pytest

from busbar.collect.jobwatch import JobWatch
from busbar.kube.wait import Deadline
from tests.support.kube_cluster import Clock, Cluster, container, pod

JOB = "/apis/kubeflow.org/v2beta1/namespaces/ns/mpijobs/nccl"
PODS = "/api/v1/namespaces/ns/pods"


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_launchers_the_newer_one_is_followed_in_whatever_order_they_are_listed(order: int) -> None:
    pods = [
        pod(name, "launcher", containerStatuses=[container({"running": {}})]) for name in ("first", "second")
    ]
    pods[1]["metadata"]["creationTimestamp"] = "2026-01-01T00:00:01Z"
    job = {"metadata": {"name": "nccl", "uid": "u-1"}, "status": {}}
    api = Cluster({JOB: job, PODS: pods[::order]})
    watch = JobWatch(api, "ns", "nccl", Deadline(Clock(), 100), lambda _: None)
    assert watch.first_pod()["metadata"]["name"] == "second"
