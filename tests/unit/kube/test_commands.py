"""The commands that work on a cluster as the engine runs them: stdin, stdout, exit codes, secrets."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from busbar.collect.busy import Kept
from busbar.kube import wait
from busbar.kube.client import ApiError, RestApi
from busbar.outputs.contract import summarize
from tests.support import cli
from tests.support.kube_cluster import Clock, Cluster, connected, node, unreachable
from tests.support.prepared_api import dropped, running, status
from tests.support.verdicts import failing, unknown
from tests.unit.kube.node_cluster import Nodes, pod
from tests.unit.kube.node_cluster import node as kube_node

PULL = {"pool": "h100", "namespace": "ns", "image": "nccl:1", "nodes": ["w1", "w2"], "deadline_seconds": 1800}
JOBS = "/apis/batch/v1/namespaces/ns/jobs"
QUESTION = {"resource": "nvidia.com/gpu", "nodes": {"w1": 8}, "deadline_seconds": 60, "stable_seconds": 0}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The command finds this cluster, and time that only passes while it waits."""
    api = Cluster({"/api/v1/nodes": [node("w1", nvidia_com__gpu="8")]})
    connected(monkeypatch, api)
    return api


def collection(folder: Path) -> dict[str, Any]:
    """The request of `busbar nccl collect`."""
    job = {"namespace": "ns", "job": "nccl", "folder": str(folder)}
    return {**job, "deadline_seconds": 30, "expectation": {}}


def busbar(*words: str, stdin: Any) -> Any:
    text = stdin if isinstance(stdin, str) else json.dumps(stdin)
    return cli.busbar(*words, stdin=text)


def failed(*words: str, stdin: Any, code: int = 1) -> str:
    """What a command says that prints nothing and ends with this code."""
    done = busbar(*words, stdin=stdin)
    assert (done.exit_code, done.stdout) == (code, ""), done.output
    return str(done.stderr)


def test_the_progress_goes_to_stderr(cluster: Cluster) -> None:
    done = busbar("wait", "allocatable", stdin=QUESTION)
    assert (done.exit_code, done.stdout) == (0, ""), done.output
    assert done.stderr.startswith("nvidia.com/gpu: 1/1 nodes ready")


def test_an_endpoint_is_waited_for_whatever_it_answers_or_ends_with_1_and_the_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wait, "SystemClock", Clock)
    question = {"setting": "api_endpoint", "fix": "repair it", "deadline_seconds": 10}
    with running() as server:
        monkeypatch.setattr("busbar.kube.client.connect", lambda: RestApi(server.kubeconfig))
        server.answers += [dropped, status(404), status(401), status(503), status(200, b"ok")]
        assert busbar("wait", "api", stdin=question).exit_code == 0
        assert {request[:2] for request in server.requests} == {("GET", "/readyz")}
        server.answers += [status(502)] * 9
        said = failed("wait", "api", stdin=question)
    assert "api_endpoint: timed out after 10 s: " in said and "HTTP 502" in said and "Fix: repair it" in said


@pytest.mark.parametrize(
    ("stdin", "complaint"),
    [
        ("not json", "stdin: Invalid JSON"),
        ({**QUESTION, "nodes": {}}, "stdin: nodes: Dictionary should have at least 1 item"),
        ({**QUESTION, "node": {"w1": 1}}, "stdin: node: Extra inputs are not permitted"),
    ],
)
def test_a_question_that_is_not_valid_is_bad_usage(cluster: Cluster, stdin: Any, complaint: str) -> None:
    assert complaint in failed("wait", "allocatable", stdin=stdin, code=64)


def test_a_collection_without_an_answer_says_where_the_log_is(cluster: Cluster, tmp_path: Any) -> None:
    cluster.failures = [unreachable()] * 1000
    said = failed("nccl", "collect", stdin=collection(tmp_path))
    assert "The log is still in the launcher's pod. Fix: run the same command again" in said


def test_a_result_outlives_its_job(cluster: Cluster, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.objects["/api/v1/namespaces/ns/configmaps"] = []
    printed = json.dumps(summarize(failing()) | {"record": {}})
    monkeypatch.setenv("PULUMI_COMMAND_STDOUT", printed)
    done = busbar("nccl", "collect", stdin=collection(tmp_path))
    assert (done.exit_code, json.loads(done.stdout)) == (0, json.loads(printed))
    for useless in (json.dumps(summarize(unknown())), "Killed", ""):
        monkeypatch.setenv("PULUMI_COMMAND_STDOUT", useless)
        done = busbar("nccl", "collect", stdin=collection(tmp_path))
        assert "does not exist" in json.loads(done.stdout)["reasons"][0]


def test_a_kept_verdict_is_printed(cluster: Cluster, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(*_: Any, **__: Any) -> None:
        raise Kept({"format": 3, "verdict": "pass", "kept": True})

    monkeypatch.setattr("busbar.collect.collector.collect", kept)
    done = busbar("nccl", "collect", stdin=collection(tmp_path))
    assert (done.exit_code, done.stdout) == (0, '{"format":3,"kept":true,"verdict":"pass"}\n')


@pytest.mark.parametrize("command", ["wait allocatable", "nccl collect"])
def test_a_refusal_of_the_api_is_shown_with_its_server(cluster: Cluster, tmp_path: Any, command: str) -> None:
    cluster.failures = [ApiError("GET /x", 403, "not allowed")]
    request = QUESTION if command.startswith("wait") else collection(tmp_path)
    said = failed(*command.split(), stdin=request)
    assert said == "error: GET /x: HTTP 403: not allowed (server https://10.0.0.1:6443)\n"


def test_an_api_that_never_answers_ends_the_command_with_1_and_the_server(cluster: Cluster) -> None:
    cluster.failures = [unreachable()] * 1000
    said = failed("set-taints", stdin={"taints": {}})
    assert said.splitlines()[-1].startswith("error: timed out after 300 s: ")
    fix = "see what does not run: busbar verify STACK"
    assert said.endswith(f"(server https://10.0.0.1:6443). Fix: {fix}\n")


def nodes_of(cluster: Cluster) -> list[str]:
    found = []
    for job in (job for path, job in cluster.created if path == JOBS):
        affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        found += term["matchExpressions"][0]["values"]
    return found


def pulled(*nodes: str) -> dict[str, Any]:
    """The facts of a pull, which are one line; it says nothing else."""
    done = busbar("nccl", "pull-image", stdin={**PULL, "nodes": nodes})
    assert (done.exit_code, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_pull_is_one_job_per_node_that_has_none(cluster: Cluster) -> None:
    assert pulled("w1") == {"image": "nccl:1", "nodes": 1, "created": 1, "existing": 0}
    assert pulled("w1", "w2") == {"image": "nccl:1", "nodes": 2, "created": 1, "existing": 1}
    assert nodes_of(cluster) == ["w1", "w2"]


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        ([ApiError(f"POST {JOBS}", 403, "exceeded quota")], "POST [^ ]+/jobs: HTTP 403: exceeded quota"),
        ([unreachable(JOBS)] * 1000, "timed out after 60 s: .*connection refused"),
    ],
    ids=["refused", "silent"],
)
def test_a_pull_that_the_api_does_not_take_fails_no_update_and_says_what_is_missing(
    cluster: Cluster, failures: list[ApiError], reason: str
) -> None:
    pulled("w0")
    cluster.failures = [None, None, *failures]
    done = busbar("nccl", "pull-image", stdin={**PULL, "nodes": ["w0", "w1", "w2"]})
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {"image": "nccl:1", "nodes": 3, "created": 1, "existing": 1}
    note = done.stderr.splitlines()[-1]
    assert note.startswith("note: image nccl:1 is not pulled ahead on 1 of 3 nodes of pool h100: ")
    assert re.search(reason, note)


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """The command finds these; removing them sets a handler of SIGTERM, which ends with the test."""
    api = Nodes(*(kube_node(name, name) for name in ("w-1", "w-2")))
    monkeypatch.setattr("busbar.kube.client.connect", lambda: api)
    monkeypatch.setattr(wait, "SystemClock", lambda: api.clock)
    former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield api
    signal.signal(signal.SIGTERM, former)


def test_a_removal_of_nodes_that_the_engine_stops_uncordons_them(two_nodes: Nodes) -> None:
    two_nodes.pods, two_nodes.refused = [pod("app", "w-1")], {"app"}
    two_nodes.clock.at(10, lambda: os.kill(os.getpid(), signal.SIGTERM))
    done = busbar("remove", "nodes", stdin={"workers": ["w-2"]})
    assert done.exit_code != 0
    assert two_nodes.log == ["w-1 cordoned", "w-1 uncordoned"]
