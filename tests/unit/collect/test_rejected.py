"""Workers that a kubelet rejects while it starts: the job starts once more, then the next update measures."""

import json
from pathlib import Path
from typing import Any

import pytest

from busbar.collect.jobwatch import is_worker
from busbar.exits import NoVerdict
from busbar.judge.collector import JobNeverStarted
from busbar.kube.client import ApiError, JsonObject
from tests.support.cli import busbar
from tests.support.kube_cluster import Clock, Cluster, connected, container, node, pod
from tests.support.rolled_out import NODE_LEASES as LEASES
from tests.support.rolled_out import TOOLKIT, operand, renewed
from tests.unit.collect import launcher_log
from tests.unit.collect.test_jobwatch import JOB, PODS, watch

CONFIG_MAPS = "/api/v1/namespaces/ns/configmaps"
NODES, ALL_PODS = "/api/v1/nodes", "/api/v1/pods"
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
    container = {"resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "2"}}}
    made["spec"] = {"nodeName": f"gpu-{number}", "containers": [container]}
    return made


def gpus(number: int, count: int = 2, **more: Any) -> JsonObject:
    made: JsonObject = node(f"gpu-{number}", nvidia_com__gpu=str(count), **more)
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
        found = {NODES: [gpus(0), gpus(1)], ALL_PODS: [], LEASES: []}
        super().__init__({**objects, **found, f"{PODS}/nccl-launcher-x": LAUNCHER})
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
        run = [each for each in pods if is_worker(each) and each["status"]["phase"] == "Running"]
        has_launcher = not all(map(is_worker, pods))
        if len(run) == 2 and not has_launcher and not job["spec"]["runPolicy"]["suspend"]:
            pods.append(LAUNCHER)
            job["status"]["conditions"] = [{"type": "Succeeded", "status": "True"}]


def test_rejected_workers_are_made_again_and_the_job_runs() -> None:
    said: list[str] = []
    api = Operator(worker(0), rejected(1))
    assert watch(api, said=said).first_pod() == LAUNCHER
    assert api.deleted == [(f"{PODS}/nccl-worker-1", {"uid": "uid-1"})]
    assert said[0].startswith(
        "nccl: the kubelet on gpu-1 has just started, and has rejected pods of the job: "
    )


@pytest.mark.parametrize("without", [gpus(1, 0), gpus(1, ready=False)])
def test_the_job_starts_again_when_the_devices_are_there(without: JsonObject) -> None:
    api, clock = Operator(worker(0), rejected(1)), Clock()
    api.objects[NODES] = [gpus(0), without]
    clock.at(60, lambda: api.objects.update({NODES: [gpus(0), gpus(1)]}))
    assert watch(api, clock=clock).first_pod() == LAUNCHER
    assert 60 < clock.time < 90


def test_the_job_starts_again_when_no_toolkit_may_restart_the_agent_any_more() -> None:
    api, clock, said = Operator(worker(0), rejected(1)), Clock(), list[str]()
    api.objects |= {ALL_PODS: [operand(TOOLKIT, "gpu-1")], LEASES: [renewed("gpu-1", "00:39")]}
    clock.at(50, lambda: api.objects.update({LEASES: [renewed("gpu-1", "00:41")]}))
    assert watch(api, clock, said).first_pod() == LAUNCHER
    assert clock.time > 50
    assert any("the agent on gpu-1, which nvidia-container-toolkit-ctr may restart" in line for line in said)


def test_who_may_not_see_the_toolkit_waits_for_as_long_as_it_restarts_agents() -> None:
    api, clock = Operator(worker(0), rejected(1)), Clock()
    listed = api.list

    def refused(path: str, **query: str) -> list[JsonObject]:
        if path == ALL_PODS:
            raise ApiError(f"GET {path}", 403, "pods is forbidden")
        return listed(path, **query)

    api.list = refused  # type: ignore[method-assign]
    assert watch(api, clock=clock).first_pod() == LAUNCHER
    assert clock.time > 30


def test_devices_that_do_not_come_back_end_the_wait_with_the_node_that_lacks_them() -> None:
    api = Operator(worker(0), rejected(1))
    api.objects[NODES] = [gpus(0), gpus(1, 0)]
    with pytest.raises(NoVerdict, match=r"gpu-1: 0 nvidia\.com/gpu allocatable, 2 requested"):
        watch(api).first_pod()
    assert api.deleted == []


def test_a_worker_that_is_rejected_while_the_kubelets_are_waited_for_is_made_again_too() -> None:
    api = Operator(worker(0), rejected(1))
    clock = Clock()
    clock.at(3, lambda: api.objects.update({PODS: [rejected(0), rejected(1)]}))
    assert watch(api, clock=clock).first_pod() == LAUNCHER


def test_a_worker_that_fails_for_another_reason_is_not_started_again() -> None:
    api = Operator(worker(0), worker(1, phase="Failed", reason="NodeAffinity"))
    with pytest.raises(JobNeverStarted):
        watch(api).first_pod()
    assert api.deleted == []


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
    with pytest.raises(NoVerdict, match=WHY):
        watch(api, said=said).first_pod()
    assert any("nccl-worker-1 could not be deleted: " in text and "is forbidden" in text for text in said)


def collected(api: Operator, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`busbar nccl collect`, as an update runs it."""
    connected(monkeypatch, api)
    request = {"namespace": "ns", "job": "nccl", "folder": str(folder), "deadline_seconds": 600}
    return busbar("nccl", "collect", stdin=json.dumps({**request, "expectation": launcher_log.EXPECTED}))


def test_a_job_that_was_rejected_twice_fails_the_update_without_a_verdict_and_the_next_one_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Operator(worker(0), rejected(1), rejections=1)
    done = collected(api, tmp_path, monkeypatch)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "on gpu-1 has just started, and has rejected pods of the job: nccl-worker-1: Unex" in done.stderr
    assert WHY in done.stderr and "Fix: " in done.stderr
    assert api.objects[JOB]["spec"]["runPolicy"]["suspend"], "its other workers release their GPUs"
    assert api.created == [], "nothing of it is kept in the cluster"

    done = collected(api, tmp_path, monkeypatch)
    assert (done.exit_code, json.loads(done.stdout)["verdict"]) == (0, "pass"), done.output
