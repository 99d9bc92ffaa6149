"""Workers that a kubelet rejects while it starts: the job starts once more, then the next update measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from busbar.collect.jobwatch import JobWatch, Rejected
from busbar.judge.collector import JobNeverStarted
from busbar.kube import wait
from busbar.kube.client import ApiError, JsonObject
from busbar.kube.wait import Deadline
from tests.support.cli import busbar
from tests.support.kube_cluster import Clock, Cluster, container, pod
from tests.unit.collect import launcher_log

JOB = "/apis/kubeflow.org/v2beta1/namespaces/ns/mpijobs/nccl"
PODS = "/api/v1/namespaces/ns/pods"
CONFIG_MAPS = "/api/v1/namespaces/ns/configmaps"
WHY = "Allocate failed due to no healthy devices present; Requested: 2, Available: 0"
LAUNCHER = pod(
    "nccl-launcher-x",
    "launcher",
    phase="Succeeded",
    containerStatuses=[container({"terminated": {"exitCode": 0}})],
)


def worker(number: int, **status: Any) -> JsonObject:
    made: JsonObject = pod(f"nccl-worker-{number}", **status)
    made["metadata"]["uid"] = f"uid-{number}"
    return made


def rejected(number: int) -> JsonObject:
    return worker(number, phase="Failed", reason="UnexpectedAdmissionError", message=WHY)


class Operator(Cluster):
    """A job of two workers. One that is deleted is made again; `rejections` is how often that is in vain.

    When both run, the launcher does, and has ended.
    """

    def __init__(self, *pods: JsonObject, rejections: int = 0, suspended: bool = False) -> None:
        job: JsonObject = {
            "metadata": {"name": "nccl", "uid": "u-1", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"runPolicy": {"suspend": suspended}},
            "status": {"conditions": []},
        }
        objects = {JOB: job, PODS: [*pods], "/api/v1/namespaces/ns/events": [], CONFIG_MAPS: []}
        super().__init__({**objects, f"{PODS}/nccl-launcher-x": LAUNCHER})
        self.rejections = rejections
        self.logs = [lambda _: iter([launcher_log.stamped(launcher_log.text())])]
        self._suspend(suspended)

    def delete(self, path: str, **preconditions: str) -> JsonObject:
        super().delete(path, **preconditions)
        number = int(path[-1])
        pods = [each for each in self.objects[PODS] if each["metadata"]["name"] != f"nccl-worker-{number}"]
        self.objects[PODS] = [*pods, rejected(number) if self.rejections else worker(number)]
        self.rejections -= bool(self.rejections)
        self._start()
        return {}

    def merge(self, path: str, body: Any) -> JsonObject:
        self._suspend(body["spec"]["runPolicy"]["suspend"])
        return super().merge(path, body)

    def _suspend(self, value: bool) -> None:
        job = self.objects[JOB]
        job["spec"]["runPolicy"]["suspend"] = value
        status = "True" if value else "False"
        job["status"]["conditions"] = [{"type": "Suspended", "status": status}]
        self._start()

    def _start(self) -> None:
        job, pods = self.objects[JOB], self.objects[PODS]
        run = [each for each in pods if each["status"]["phase"] == "Running"]
        if len(run) == 2 and not job["spec"]["runPolicy"]["suspend"]:
            pods.append(LAUNCHER)
            job["status"]["conditions"] = [{"type": "Succeeded", "status": "True"}]


def watch(api: Cluster, said: list[str] | None = None) -> JobWatch:
    progress = said.append if said is not None else lambda _: None
    return JobWatch(api, "ns", "nccl", Deadline(Clock(), 600), progress)


def test_rejected_workers_are_made_again_and_the_job_runs() -> None:
    said: list[str] = []
    api = Operator(worker(0), rejected(1))
    assert watch(api, said).first_pod() == LAUNCHER
    assert api.deleted == [(f"{PODS}/nccl-worker-1", {"uid": "uid-1"})]
    assert said[0] == "nccl: a starting kubelet has rejected workers; the job starts once more"


def test_a_worker_that_is_rejected_while_the_kubelets_are_waited_for_is_made_again_too() -> None:
    api = Operator(worker(0), rejected(1))
    clock = Clock()
    clock.at(10, lambda: api.objects.update({PODS: [rejected(0), rejected(1)]}))
    assert JobWatch(api, "ns", "nccl", Deadline(clock, 600), lambda _: None).first_pod() == LAUNCHER


def test_a_second_rejection_ends_the_wait_with_its_reason() -> None:
    with pytest.raises(Rejected, match=f"nccl-worker-1: UnexpectedAdmissionError: {WHY}"):
        watch(Operator(worker(0), rejected(1), rejections=1)).first_pod()


def test_a_worker_that_fails_for_another_reason_is_not_started_again() -> None:
    api = Operator(worker(0), worker(1, phase="Failed", reason="NodeAffinity"))
    with pytest.raises(JobNeverStarted) as never:
        watch(api).first_pod()
    assert not isinstance(never.value, Rejected) and api.deleted == []


def test_a_worker_that_is_gone_already_is_no_error() -> None:
    api = Operator(worker(0), rejected(1))
    delete = api.delete

    def gone(path: str, **preconditions: str) -> JsonObject:
        delete(path, **preconditions)
        raise ApiError(f"DELETE {path}", 404, "not found")

    api.delete = gone  # type: ignore[method-assign]
    assert watch(api).first_pod() == LAUNCHER


def test_without_the_right_to_delete_pods_the_refusal_is_said_and_the_rejection_is_the_reason() -> None:
    api, said = Operator(worker(0), rejected(1)), list[str]()

    def refused(path: str, **preconditions: str) -> JsonObject:
        raise ApiError(f"DELETE {path}", 403, "pods is forbidden")

    api.delete = refused  # type: ignore[method-assign]
    with pytest.raises(Rejected, match=WHY):
        watch(api, said).first_pod()
    assert "nccl-worker-1 could not be deleted: " in said[1] and "pods is forbidden" in said[1]


def collected(api: Operator, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`busbar nccl collect`, as an update runs it."""
    api.server = "https://10.0.0.1:6443"  # type: ignore[attr-defined]
    monkeypatch.setattr("busbar.kube.access.connect", lambda: api)
    monkeypatch.setattr(wait, "SystemClock", Clock)
    expected = {
        "nodes": 2, "gpus_per_node": 1, "rails": 1, "rate_gbps": 400, "transport": "socket",
        "collectives": ["all_reduce"], "min_bytes": launcher_log.SIZES[0],
        "max_bytes": launcher_log.SIZES[-1], "step_factor": 2, "expected_busbw_gbps": 2.0,
    }  # fmt: skip
    request = {
        "namespace": "ns", "job": "nccl", "folder": str(folder), "deadline_seconds": 600,
        "expectation": expected,
    }  # fmt: skip
    return busbar("nccl", "collect", stdin=json.dumps(request))


def test_a_job_that_was_rejected_once_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = collected(Operator(rejected(0), rejected(1)), tmp_path, monkeypatch)
    assert (done.exit_code, json.loads(done.stdout)["verdict"]) == (0, "pass"), done.output


def test_a_job_that_was_rejected_twice_fails_the_update_without_a_verdict_and_the_next_one_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Operator(worker(0), rejected(1), rejections=1)
    done = collected(api, tmp_path, monkeypatch)
    assert (done.exit_code, done.stdout) == (1, "")
    assert WHY in done.stderr and "Fix: " in done.stderr
    assert api.objects[JOB]["spec"]["runPolicy"]["suspend"], "its other workers release their GPUs"
    assert api.created == [], "nothing of it is kept in the cluster"

    done = collected(api, tmp_path, monkeypatch)
    assert (done.exit_code, json.loads(done.stdout)["verdict"]) == (0, "pass"), done.output
