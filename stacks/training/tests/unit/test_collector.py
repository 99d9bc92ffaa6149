"""From a job in a cluster to a verdict: followed logs, jobs that do not start, logs that are judged again."""

import json
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from busbar.capability import capabilities
from busbar.judge.archive import Archive
from stacks.training.package.collect import CollectSpec, RunCollector, judge_folder
from stacks.training.package.proof import JOB_LABEL, RUN_LABEL
from stacks.training.package.verdict import Verdict
from stacks.training.tests.unit.made import expected, first, lines, second
from tests.support.kube_cluster import Clock, Cluster, node, warning

JOB = "/apis/batch/v1/namespaces/train/jobs/run"
PODS = "/api/v1/namespaces/train/pods"
EVENTS = "/api/v1/namespaces/train/events"
FIRST = f"{PODS}/run-0-x"


def pod(index: str = "0", **status: Any) -> dict[str, Any]:
    annotations = {"batch.kubernetes.io/job-completion-index": index}
    metadata = {"name": f"run-{index}-x", "annotations": annotations}
    return {"metadata": metadata, "status": status or {"phase": "Succeeded"}}


def condition(kind: str, **more: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True", **more}]}


def cluster(job_status: dict[str, Any] | None = None, *pods: dict[str, Any]) -> Cluster:
    of_somebody = {"metadata": {"name": "debug"}, "status": {"phase": "Succeeded"}}
    listed = list(pods or (of_somebody, pod("1"), pod("0")))
    status = condition("Complete") if job_status is None else job_status
    created = "2026-01-01T00:00:00Z"
    job = {"metadata": {"name": "run", "uid": "u1", "creationTimestamp": created}, "status": status}
    return Cluster({JOB: job, PODS: listed, EVENTS: [], FIRST: listed[-1]})


def whole_log() -> list[bytes]:
    printed = lines([*first(), *second()])
    return [b"# busbar: launcher starts\n", *printed, b"# busbar: launcher ends with exit code 0\n"]


def serve(printed: list[bytes]) -> Any:
    def connection(query: Mapping[str, str]) -> Iterator[bytes]:
        for line in printed:
            yield b"2026-01-01T00:00:00Z " + line

    return connection


def run(api: Cluster, folder: Path, said: list[str] | None = None, clock: Clock | None = None) -> Verdict:
    asked: dict[str, Any] = {"namespace": "train", "job": "run", "folder": str(folder)}
    spec = CollectSpec(**asked, deadline_seconds=600, expectation=expected())
    progress = (said if said is not None else []).append
    return RunCollector(api, spec, clock or Clock(), progress).run()


@pytest.mark.parametrize(
    "status", [condition("Complete"), condition("Failed", reason="BackoffLimitExceeded")]
)
def test_a_kept_log_is_judged_again_from_its_folder_alone_with_the_same_verdict_byte_for_byte(
    tmp_path: Path, status: dict[str, Any]
) -> None:
    api = cluster(status)
    api.logs = [serve(whole_log())]
    found = run(api, tmp_path / "kept")
    assert json.loads((tmp_path / "kept/source.json").read_text())["measured_at"] == "2026-01-01T00:00:00Z"
    (training,) = [each for each in capabilities() if each.name == "training"]
    again = pkgutil.resolve_name(str(training.judge))(tmp_path / "kept")
    Archive(tmp_path / "again").save_verdict(again.model_dump(mode="json"))
    first, second = (tmp_path / name / "verdict.json" for name in ("kept", "again"))
    assert (first.read_bytes(), again.verdict) == (second.read_bytes(), found.verdict)


def test_a_log_whose_end_is_missing_is_no_pass_and_not_judged_again(tmp_path: Path) -> None:
    api = cluster()
    api.logs = [serve(whole_log()[:-1])]
    found = run(api, tmp_path)
    assert found.verdict == "unknown"
    assert any("the end of the launcher's log is missing" in reason for reason in found.reasons)
    assert judge_folder(tmp_path) is None


def test_a_job_that_failed_is_a_fail_with_its_reason(tmp_path: Path) -> None:
    api = cluster(condition("Failed", reason="BackoffLimitExceeded", message="too many"))
    api.logs = [serve(whole_log())]
    found = run(api, tmp_path)
    assert found.verdict == "fail"
    assert "job: the Job failed: BackoffLimitExceeded: too many" in found.reasons


PULLS = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
PENDING = pod("0", phase="Pending")
STUCK = pod("0", phase="Pending", containerStatuses=[{"name": "trainer", "state": PULLS}])


@pytest.mark.parametrize(
    ("api", "reasons"),
    [
        (Cluster({PODS: [], EVENTS: []}), ["job: Job train/run does not exist"]),
        (
            cluster(condition("Suspended"), PENDING),
            ["Fix: if Kueue runs, exclude train from it; raise proof.run"],
        ),
        (cluster({}, STUCK), ["job: the job's pods cannot start", "no such image"]),
    ],
    ids=["no job", "suspended", "image"],
)
def test_a_job_that_does_not_start_gives_no_verdict_but_the_reason(
    api: Cluster, reasons: list[str], tmp_path: Path
) -> None:
    found = run(api, tmp_path)
    assert found.verdict == "unknown"
    assert [each for each in reasons if each not in "\n".join(found.reasons)] == []


def test_a_job_that_ends_before_its_pods_start_names_what_they_lacked(tmp_path: Path) -> None:
    api, clock = cluster({}, PENDING), Clock()
    api.objects[EVENTS] = [warning("run-0-x", "FailedCreatePodSandBox", "Link not found")]

    def at_its_deadline() -> None:
        api.objects[PODS] = []
        api.objects[JOB]["status"] = condition("Failed", reason="DeadlineExceeded")

    clock.at(30, at_its_deadline)
    found = run(api, tmp_path, clock=clock)
    assert found.verdict == "unknown"
    assert found.reasons == [
        "job: the Job failed: DeadlineExceeded",
        "job: run-0-x: FailedCreatePodSandBox: Link not found",
    ]


def test_a_job_that_does_not_end_is_suspended_so_that_its_gpus_are_released(tmp_path: Path) -> None:
    running = {"phase": "Running", "containerStatuses": [{"name": "trainer", "state": {"running": {}}}]}
    api = cluster({}, pod("0", **running))
    api.logs = [serve(whole_log()[:10])] * 2000
    found = run(api, tmp_path)
    assert found.verdict != "pass"
    assert api.patched == [(JOB, {"spec": {"suspend": True}})]


class Controller(Cluster):
    """A Job of two pods on gpu-0 and gpu-1; the kubelet of gpu-1 rejects its first pod."""

    def __init__(self) -> None:
        found = [node(f"gpu-{index}", nvidia_com__gpu="8") for index in "01"]
        super().__init__({"/api/v1/nodes": found, "/api/v1/pods": [], EVENTS: []})
        self._made = 0
        template = {"metadata": {"labels": {"busbar/pool": "h100", JOB_LABEL: "run"}}, "spec": {}}
        metadata = {"name": "run", "namespace": "train", "labels": {"busbar/pool": "h100"}}
        spec = {"completions": 2, "selector": {"matchLabels": {RUN_LABEL: "u0"}}, "template": template}
        self._begin({"metadata": metadata, "spec": spec})

    def _begin(self, job: Mapping[str, Any]) -> None:
        self._made += 1
        is_rejected = self._made == 1
        status = condition("Failed", reason="BackoffLimitExceeded") if is_rejected else condition("Complete")
        metadata = {**job["metadata"], "uid": f"u{self._made}"}
        self.objects[JOB] = {**job, "metadata": metadata, "status": status}
        # The controller deletes the pods that run when the job fails.
        reason = "Allocate failed; Requested: 8, Available: 0"
        rejected = pod("1", phase="Failed", reason="UnexpectedAdmissionError", message=reason)
        self.objects[PODS] = [rejected] if is_rejected else [pod("1"), pod("0")]
        for each in self.objects[PODS]:
            index = each["metadata"]["name"][4]
            needs = {"resources": {"requests": {"nvidia.com/gpu": "8"}}}
            each["metadata"]["uid"] = f"{each['metadata']['name']} of u{self._made}"
            each["spec"] = {"nodeName": f"gpu-{index}", "containers": [needs]}
        self.objects[FIRST] = pod("0")

    def delete(self, path: str, **preconditions: str) -> dict[str, Any]:
        if path == JOB:
            del self.objects[path]  # its pods stay
        return super().delete(path, **preconditions)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        made = super().create(path, body)
        self._begin(body)
        return made


def test_a_job_whose_pod_a_starting_kubelet_has_rejected_is_created_once_more(tmp_path: Path) -> None:
    api = Controller()
    api.logs = [serve(whole_log())]
    said: list[str] = []
    assert run(api, tmp_path, said).verdict == "pass"
    assert {path for path, _ in api.deleted} == {JOB, f"{PODS}/run-1-x"}
    [(_, made)] = api.created
    template = {"metadata": {"labels": {"busbar/pool": "h100"}}, "spec": {}}
    assert made["spec"] == {"completions": 2, "template": template}
    assert any("the kubelet on gpu-1 has just started" in line for line in said)
