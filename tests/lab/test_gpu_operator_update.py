"""Agents that restart around a measurement, as in a rollout of the GPU Operator's toolkit: `make drills`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from busbar.outputs import ClusterOutputs
from busbar.outputs.pool import PoolResult
from tests.support.lab import Lab, eventually

pytestmark = pytest.mark.drill

WORKERS = ("worker-1", "worker-2")
REJECTED = "UnexpectedAdmissionError"
BOUND_SECONDS = 90


def up(lab: Lab, run: int, **toolkit: str) -> tuple[bool, str]:
    """An update that measures: whether it succeeded, and what it printed. `toolkit`: values of the chart."""

    def change(cluster: dict[str, Any]) -> None:
        cluster["validation"]["run"] = run
        if toolkit:
            cluster["gpu_operator"]["values"] = {"toolkit": toolkit}

    done = lab.up("--config-file", str(lab.config_with(change)))
    print(done.stdout, done.stderr)
    return done.returncode == 0, done.stdout + done.stderr


def result(lab: Lab) -> PoolResult:
    return ClusterOutputs.from_dict(lab.outputs()).nccl["lab"]


def starts(lab: Lab) -> list[str]:
    return [lab.ssh(worker, "systemctl show -p InvocationID --value k3s-agent") for worker in WORKERS]


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Lab]:
    yield lab
    done = lab.up()
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_update_whose_toolkit_restarts_the_agents_measures_a_healthy_fabric(site: Lab) -> None:
    before = starts(site)
    succeeded, text = up(site, 101, version="drill")
    assert all(now != then for now, then in zip(starts(site), before, strict=True)), "the agents restarted"
    assert succeeded and result(site).verdict == "pass", text


class Rejecting:
    """Rejects pods of the measurement: the agent of worker-1 is off while they are bound to it."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._known = set(self._workers())

    def off(self) -> None:
        self._lab.ssh("worker-1", "systemctl stop k3s-agent")

    def reject(self) -> None:
        eventually(lambda: bool(self._new()), BOUND_SECONDS, "a pod of the job is bound to worker-1")
        new = self._new()
        self._known |= new
        self._lab.ssh("worker-1", "systemctl start k3s-agent")
        is_rejected: Callable[[], bool] = lambda: REJECTED in [self._workers().get(uid) for uid in new]  # noqa: E731
        eventually(is_rejected, BOUND_SECONDS, "the kubelet of worker-1 rejects it")

    def _new(self) -> set[str]:
        return set(self._workers()) - self._known

    def _workers(self) -> dict[str, str]:
        """The reason by uid of the jobs' pods on worker-1."""
        label = "training.kubeflow.org/job-role=worker"
        pods = json.loads(self._lab.kubectl(f"get pods -A -l {label} -o json"))["items"]
        return {
            pod["metadata"]["uid"]: pod["status"].get("reason", "")
            for pod in pods
            if pod["spec"].get("nodeName") == "worker-1"
        }


@pytest.fixture
def rejecting(site: Lab) -> Iterator[Rejecting]:
    yield Rejecting(site)
    site.ssh("worker-1", "systemctl start k3s-agent")


def during(update: Callable[[], Any], act: Callable[[], None]) -> list[Any]:
    """What `update` returned, while `act` went on."""
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(update()))
    thread.start()
    try:
        act()
    finally:
        thread.join()
    return done


def test_a_job_whose_pods_a_starting_kubelet_has_rejected_starts_once_more(
    site: Lab, rejecting: Rejecting
) -> None:
    rejecting.off()
    [(succeeded, text)] = during(lambda: up(site, 102), rejecting.reject)
    assert succeeded and "the job starts once more" in text and result(site).verdict == "pass", text


def test_an_update_whose_job_was_rejected_twice_fails_and_the_next_one_measures(
    site: Lab, rejecting: Rejecting
) -> None:
    def twice() -> None:
        rejecting.reject()
        rejecting.off()
        rejecting.reject()

    rejecting.off()
    [(succeeded, text)] = during(lambda: up(site, 103), twice)
    assert not succeeded and "has rejected pods of the job twice" in text, text
    measured_at = result(site).measured_at
    succeeded, text = up(site, 103)
    now = result(site)
    assert succeeded and now.verdict == "pass" and now.measured_at != measured_at, text
