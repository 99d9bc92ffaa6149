"""The stress by an image with DCGM: a pod per node, judged as the output of a host."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from busbar.exits import Misuse, NoVerdict
from busbar.kube.client import ApiError, JsonObject
from stacks.accept.package import commands
from stacks.accept.package.evidence import Evidence
from stacks.accept.package.running import Running, run_stage
from stacks.accept.package.subjects import stress
from stacks.accept.package.subjects.stress import DCGM_IMAGE
from stacks.accept.tests.unit import made
from tests.unit.collect import launcher_log
from tests.unit.fabric.measure.foreign import Foreign, gpu_node, holder
from tests.unit.hosts import bash

IMAGE, DIGEST = "registry.example.com/dcgm:4.6", "registry.example.com/dcgm@sha256:5d2c"
DIAG, CLOCKS = "stress.h100.diag", "stress.h100.clocks"


def ended(printed: dict[str, Any], code: int = 0) -> JsonObject:
    state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
    status = {"name": "dcgm", "imageID": DIGEST, "state": state}
    return {"phase": "Failed" if code else "Succeeded", "containerStatuses": [status], "printed": printed}


def waiting(reason: str, message: str) -> JsonObject:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "dcgm", "imageID": "", "state": state}]}


class Nodes(Foreign):
    """Two workers with eight GPUs; STATUS: node -> what becomes of its pod, None if it is deleted."""

    def __init__(self) -> None:
        super().__init__(*(gpu_node(name) for name in made.WORKERS))
        self.status: dict[str, JsonObject | None] = {}

    def create(self, path: str, body: Any) -> JsonObject:
        found = super().create(path, body)
        if body["kind"] != "Pod" or path.endswith("?dryRun=All"):
            return found
        affinity = body["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        [node] = affinity["nodeSelectorTerms"][0]["matchExpressions"][0]["values"]
        status = self.status.get(node, ended(made.stressed()))
        if status is None:
            del self.objects[f"{path}/{body['metadata']['name']}"]
        else:
            found["status"] = status
        if status and "printed" in status:
            # The sampler prints empty lines, so that no connection is silent.
            text = f"\n\n{json.dumps(status['printed'])}\n"
            self.logs.append(lambda query: iter([launcher_log.stamped(text)]))
        return found


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def on(nodes: Nodes, tmp_path: Path) -> Running:
    return made.running(tmp_path, api=nodes, more={"logs_in": False}, **{DCGM_IMAGE: IMAGE})


def test_without_a_login_each_node_runs_one_pod_with_all_of_its_gpus(on: Running, nodes: Nodes) -> None:
    run_stage(stress.STAGE, on)
    found = made.result(on.folder, DIAG)
    assert (found.result, found.reason) == ("pass", f"good on 2 nodes; image {DIGEST}")
    assert made.result(on.folder, CLOCKS).result == "pass"
    pods = [body for _, body in nodes.created if body["kind"] == "Pod"]
    [limits] = {str(pod["spec"]["containers"][0]["resources"]["limits"]) for pod in pods}
    assert (len(pods), limits) == (2, "{'nvidia.com/gpu': 8}")
    assert nodes.left == []


def fail(tests: Any) -> None:
    tests["memory"][3] |= {"status": "Fail", "warnings": [{"warning": "row remap", "error_severity": 2}]}


UNSCHEDULABLE = {
    "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
    "message": "0/2 nodes are available: 1 Insufficient nvidia.com/gpu",
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "result", "named"),
    [
        (ended(made.stressed(diag=made.diag(fail))), "fail", "worker-2: memory fails: row remap (GPU 3)"),
        (waiting("ImagePullBackOff", "Back-off pulling image"), "not run", "ImagePullBackOff"),
        (waiting("InvalidImageName", "couldn't parse image"), "not run", "InvalidImageName"),
        ({"phase": "Pending", "conditions": [UNSCHEDULABLE]}, "not run", "Unschedulable: 0/2 nodes are"),
        (ended({}, 128) | {"printed": "exec: /bin/bash: no such file"}, "not run", "exit code 128"),
        (None, "not run", "worker-2: its pod was deleted"),
    ],
)  # fmt: skip
def test_what_a_pod_has_not_shown_is_named_with_its_node(
    on: Running, nodes: Nodes, status: JsonObject | None, result: str, named: str
) -> None:
    nodes.status["worker-2"] = status
    run_stage(stress.STAGE, on)
    made.judged(on.folder, DIAG, result, named)
    assert nodes.left == []


def test_an_image_without_dcgmi_is_not_run(on: Running, nodes: Nodes) -> None:
    printed = json.loads(bash.output("accept/measure", "ENGINE=start PATH=/usr/bin:/bin; stress"))
    nodes.status = dict.fromkeys(made.WORKERS, ended(printed))
    run_stage(stress.STAGE, on)
    found = made.result(on.folder, DIAG)
    is_named = found.reason.startswith(f"no DCGM in {IMAGE}: dcgmi is not installed")
    assert (found.result, is_named) == ("not run", True), found.reason


@pytest.mark.parametrize(
    ("refused", "named"), [("create", "forbidden"), ("stream", "its pod is Succeeded, with no output")]
)
def test_a_pod_or_a_log_that_the_cluster_refuses_is_not_run(
    on: Running, nodes: Nodes, monkeypatch: pytest.MonkeyPatch, refused: str, named: str
) -> None:
    def refuse(path: str, *body: Any, **query: str) -> Any:
        raise ApiError(path, 403, "forbidden")

    if refused == "create":
        error = ApiError("POST pods", 403, "forbidden")
        nodes.refuse = lambda path, body: error if body["kind"] == "Pod" else None
    else:
        monkeypatch.setattr(nodes, refused, refuse)
    run_stage(stress.STAGE, on)
    found = made.result(on.folder, DIAG)
    assert (found.result, named in found.reason, nodes.left) == ("not run", True, []), found.reason


def test_while_pods_of_others_hold_gpus_nothing_is_created(on: Running, nodes: Nodes) -> None:
    nodes.hold(holder("worker-2", "train", 8))
    with pytest.raises(NoVerdict, match="pods hold GPUs"):
        run_stage(stress.STAGE, on)
    assert (nodes.created, Evidence(on.folder).stage("stress")) == ([], None)


def test_idle_pods_that_made_room_for_others_are_repeated_by_the_next_call(on: Running, nodes: Nodes) -> None:
    idle = replace(on, idle=True)
    idle.__dict__["api"] = nodes
    nodes.status["worker-1"] = None
    with pytest.raises(NoVerdict, match="pods on worker-1 made room for other pods"):
        run_stage(stress.STAGE, idle)
    [first, *_] = [body for _, body in nodes.created if body["kind"] == "PriorityClass"]
    assert (first["preemptionPolicy"], nodes.left) == ("Never", [])
    nodes.status.clear()
    run_stage(stress.STAGE, idle)
    assert made.result(on.folder, DIAG).result == "pass"


def test_what_a_killed_run_has_left_is_removed_first(on: Running, nodes: Nodes) -> None:
    run = f"{made.RUN_NAME}-stress0-ab12"
    metadata = {"name": f"busbar-{run}", "labels": {"busbar/nccl-run": run}}
    nodes.add(f"/api/v1/namespaces/busbar-{run}", {"kind": "Namespace", "metadata": metadata})
    run_stage(stress.STAGE, on)
    assert (made.result(on.folder, DIAG).result, nodes.left) == ("pass", [])


@pytest.mark.parametrize(("answers", "named"), [("true", "{}"), ("false", "nv-hostengine is not responding")])
def test_the_script_of_a_pod_starts_the_host_engine(tmp_path: Path, answers: str, named: str) -> None:
    programs = {
        "nv-hostengine": f"touch {tmp_path}/started",
        "dcgmi": f"[[ $1 == discovery ]] || exec echo '{{}}'; [[ -e {tmp_path}/started ]] && {answers}",
    }
    made.programs(tmp_path, programs)
    done = bash.run("accept/measure", f"PATH={tmp_path}:$PATH ENGINE=start ENGINE_SECONDS=0; stress")
    assert named in done.stdout + done.stderr


def test_an_image_that_no_registry_can_have_is_refused_before_anything_runs() -> None:
    with pytest.raises(Misuse, match="--dcgm-image 'bad image!' is not a container image"):
        commands._options(None, None, None, "bad image!")
    assert commands._options(None, None, None, IMAGE) == {DCGM_IMAGE: IMAGE}
