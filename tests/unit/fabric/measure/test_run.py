"""A run of a plan: what it creates, its verdict, and that nothing stays, however it ends."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from busbar.fabric.measure import CannotMeasure, LeftBehind, Plan, Request, plan, read_facts
from busbar.fabric.measure.run import UNTIL, Interrupted, clean, latest_end, measure, run
from busbar.kube.client import ApiError
from tests.support.kube_cluster import Clock, unreachable
from tests.unit.collect import launcher_log
from tests.unit.fabric.measure.foreign import MPIJOBS, SETTINGS, Foreign, gpu_node

FORBIDDEN = ApiError("POST /x", 403, 'violates PodSecurity "restricted:latest"', "nccl-run-1-worker-0")


@pytest.fixture
def cluster() -> Foreign:
    made = Foreign(*(gpu_node(name, gpus=1, product="") for name in ("gpu-1", "gpu-2")))
    made.add("/api/v1/namespaces/bench", {"metadata": {"name": "bench", "labels": {"team": "ml"}}})
    for path in ("/api/v1/namespaces/bench/configmaps", f"{MPIJOBS}/namespaces/bench/mpijobs"):
        made.add(f"{path}/theirs", {"metadata": {"name": "theirs", "namespace": "bench"}})
    return made


def planned(cluster: Foreign, namespace: str | None = None, run: str = "run-1", **settings: Any) -> Plan:
    request = Request(namespace=namespace, validation=SETTINGS | settings)
    return plan(read_facts(cluster, None), request, run)


def measured(cluster: Foreign, made: Plan, folder: Path, said: list[str] | None = None) -> str:
    progress = [] if said is None else said
    return measure(cluster, made, str(folder), Clock(), progress.append).verdict


@pytest.mark.parametrize(("namespace", "kinds"), [(None, ["Namespace", "MPIJob"]), ("bench", ["MPIJob"])])
def test_a_good_run_is_a_pass_and_only_what_it_made_is_removed(
    cluster: Foreign, tmp_path: Path, namespace: str | None, kinds: list[str]
) -> None:
    said: list[str] = []
    before = set(cluster.objects)
    assert measured(cluster, planned(cluster, namespace), tmp_path, said) == "pass"
    assert [body["kind"] for _, body in cluster.created] == kinds
    assert (tmp_path / "report.html").exists() and (tmp_path / "nccl.log.zst").exists()
    assert set(cluster.objects) == before
    assert said[0].startswith(f"created {kinds[0]} ") and said[-1].startswith(f"removed {kinds[0]} ")


def with_topology(cluster: Foreign, folder: Path) -> Plan:
    (folder / "h100.xml").write_text("<system/>")
    validation = {**SETTINGS, "topology_file": "h100.xml"}
    request = Request(namespace="bench", validation=validation, project=folder)
    return plan(read_facts(cluster, None), request, "run-1")


def test_a_topology_file_goes_with_the_run(cluster: Foreign, tmp_path: Path) -> None:
    measured(cluster, with_topology(cluster, tmp_path), tmp_path)
    assert cluster.created[0][1]["data"] == {"h100.xml": "<system/>"}
    assert cluster.left == []


@pytest.mark.parametrize("log", [launcher_log.text(busbw=1.0), None], ids=["slow", "never starts"])
def test_a_run_without_a_pass_is_removed_too(cluster: Foreign, tmp_path: Path, log: str | None) -> None:
    cluster.runs = lambda job: cluster.run_job(job, log) if log else None
    assert measured(cluster, planned(cluster), tmp_path) == ("fail" if log else "unknown")
    assert cluster.left == []


@pytest.mark.parametrize("namespace", [None, "bench"])
def test_a_namespace_that_does_not_admit_the_pods_is_refused_before_the_job_is_created(
    cluster: Foreign, tmp_path: Path, namespace: str | None
) -> None:
    cluster.refuse = lambda path, body: FORBIDDEN if body["kind"] == "Pod" else None
    with pytest.raises(CannotMeasure, match=r"does not admit the worker pods: .*restricted.* Fix: let what"):
        measured(cluster, planned(cluster, namespace), tmp_path)
    assert [body["kind"] for _, body in cluster.created] in ([], ["Namespace"])
    assert cluster.left == []


LATE = [
    'error looking up service account bench/default: serviceaccount "default" not found',
    "pods is forbidden: no PriorityClass with name busbar-run-1 was found",
]


@pytest.mark.parametrize("reason", LATE)
def test_what_an_api_server_has_not_seen_is_waited_for(cluster: Foreign, tmp_path: Path, reason: str) -> None:
    refused: list[str] = []

    def once(path: str, body: Any) -> ApiError | None:
        if body["kind"] != "Pod" or refused:
            return None
        refused.append(path)
        return ApiError("POST /pods", 403, reason, body["metadata"]["name"])

    cluster.refuse = once
    assert measured(cluster, planned(cluster), tmp_path) == "pass"
    assert refused


@pytest.mark.parametrize("user", ["system:serviceaccount:bench:serviceaccount", *LATE])
def test_the_refusal_of_an_authorizer_is_final(cluster: Foreign, tmp_path: Path, user: str) -> None:
    asked: list[str] = []

    def refuse(path: str, body: Any) -> ApiError | None:
        if body["kind"] != "Pod":
            return None
        asked.append(path)
        return ApiError("POST /pods", 403, f'pods is forbidden: User "{user}" cannot create resource "pods"')

    cluster.refuse = refuse
    with pytest.raises(
        CannotMeasure, match=r'resource "pods"\. Fix: grant this right: busbar docs measuring'
    ):
        measured(cluster, planned(cluster, "bench"), tmp_path)
    assert len(asked) == 1


def test_who_may_not_create_namespaces_is_told_of_the_option(cluster: Foreign, tmp_path: Path) -> None:
    said: list[str] = []
    cluster.refuse = lambda path, body: FORBIDDEN if body["kind"] == "Namespace" else None
    with pytest.raises(CannotMeasure, match=r"Namespace cannot be created: .* Fix: --namespace NAME"):
        measured(cluster, planned(cluster), tmp_path, said)
    assert (cluster.left, said) == ([], [])


@pytest.mark.parametrize(("run", "left"), [("run-1", 0), ("run-9", 1)])
def test_an_object_without_an_answer_is_removed(
    cluster: Foreign, tmp_path: Path, run: str, left: int
) -> None:
    def answer_lost(job: Any) -> None:
        job["metadata"]["labels"]["busbar/nccl-run"] = run
        raise unreachable()

    cluster.runs = answer_lost
    with pytest.raises(CannotMeasure, match="MPIJob cannot be created: "):
        measured(cluster, planned(cluster, "bench"), tmp_path)
    assert len(cluster.left) == left


def test_an_error_in_the_middle_removes_what_was_created(cluster: Foreign, tmp_path: Path) -> None:
    cluster.runs = lambda job: cluster.failures.extend([ApiError("GET /x", 401, "Unauthorized")])
    with pytest.raises(ApiError, match="Unauthorized"):
        measured(cluster, planned(cluster), tmp_path)
    assert cluster.left == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_and_removes_it(cluster: Foreign, tmp_path: Path, number: int) -> None:
    cluster.runs = lambda job: os.kill(os.getpid(), number)
    before, handler = set(cluster.objects), signal.getsignal(number)
    with pytest.raises(Interrupted) as raised:
        measured(cluster, planned(cluster), tmp_path)
    assert raised.value.exit_code == 128 + number
    assert set(cluster.objects) == before, "created at the moment of the signal, and removed"
    assert signal.getsignal(number) is handler


def lasting(cluster: Foreign, made: Plan, folder: Path, said: list[str]) -> str:
    return measure(cluster, made, str(folder), Clock(), said.append, outlives=True).verdict


@pytest.mark.parametrize("error", [Interrupted(signal.SIGTERM), ApiError("GET /x", 401, "Unauthorized")])
def test_a_run_that_outlives_its_process_stays_and_its_next_call_finds_it_by_its_label(
    cluster: Foreign, tmp_path: Path, error: BaseException
) -> None:
    said: list[str] = []
    made = planned(cluster)
    # A process that is killed before the job exists leaves the namespace only.
    cluster.create(*made.objects({})[0])
    cluster.runs = lambda job: None

    def follow() -> str:
        raise error

    with pytest.raises(type(error)):
        run(cluster, made, 60, follow, Clock(), said.append, outlives=True)
    assert said[-1] == "run-1 goes on without this process; busbar nccl clean run-1 ends it"
    (job,) = [path for path in cluster.left if "/mpijobs/" in path]
    uid = cluster.objects[job]["metadata"]["uid"]
    assert cleaned(cluster)[0] == [], "clean leaves it alone"
    cluster.run_job(cluster.objects[job])
    assert lasting(cluster, made, tmp_path, said) == "pass"
    assert json.loads((tmp_path / "source.json").read_text())["job_uid"] == uid
    assert cluster.left == []


def test_a_lasting_run_that_the_cluster_refuses_is_removed(cluster: Foreign, tmp_path: Path) -> None:
    cluster.refuse = lambda path, body: FORBIDDEN if body["kind"] == "MPIJob" else None
    with pytest.raises(CannotMeasure, match="MPIJob cannot be created"):
        lasting(cluster, planned(cluster), tmp_path, [])
    assert cluster.left == []


def never_deleted(cluster: Foreign, monkeypatch: pytest.MonkeyPatch, kind: str, error: ApiError) -> None:
    """The API does not delete objects of a kind."""

    def refuse(path: str, **query: str) -> Any:
        if f"/{kind}/" in path and path.count("/") >= 4:
            raise error
        return Foreign.delete(cluster, path, **query)

    monkeypatch.setattr(cluster, "delete", refuse)


def test_what_cannot_be_removed_keeps_nothing_else(
    cluster: Foreign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_deleted(cluster, monkeypatch, "mpijobs", ApiError("DELETE /x", 403, "forbidden"))
    made = with_topology(cluster, tmp_path)
    with pytest.raises(LeftBehind) as raised:
        measured(cluster, made, tmp_path)
    assert not [path for path in cluster.left if "/configmaps/" in path]
    [name] = [path.rpartition("/")[2] for path in cluster.left if "/mpijobs/" in path]
    assert str(raised.value) == (
        f"run-1 is not removed: MPIJob bench/{name}: DELETE /x: HTTP 403: forbidden. "
        "Fix: busbar nccl clean run-1 --namespace bench"
    )


def test_a_run_that_fails_and_stays_says_both(
    cluster: Foreign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    never_deleted(cluster, monkeypatch, "namespaces", ApiError("DELETE /x", 403, "forbidden"))
    cluster.runs = lambda job: cluster.failures.extend([ApiError("GET /x", 401, "Unauthorized")])
    with pytest.raises(ApiError, match="Unauthorized"):
        measured(cluster, planned(cluster), tmp_path, said)
    assert said[-1].startswith("error: run-1 is not removed: Namespace busbar-run-1: DELETE /x: HTTP 403")


def test_a_second_signal_leaves_the_run(
    cluster: Foreign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    cluster.runs = lambda job: os.kill(os.getpid(), signal.SIGINT)
    monkeypatch.setattr(cluster, "delete", lambda path, **_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted) as raised:
        measured(cluster, planned(cluster), tmp_path, said)
    assert raised.value.exit_code == 128 + signal.SIGTERM
    assert said[-1] == "error: run-1 is not removed: SIGTERM. Fix: busbar nccl clean run-1"


OVER = latest_end(-3601)


def killed(cluster: Foreign, until: str, run: str = "run-1", namespace: str | None = None) -> None:
    """What a process that was killed has left."""
    cluster.runs = lambda job: None
    for path, manifest in planned(cluster, namespace, run).objects({UNTIL: until}):
        cluster.create(path, manifest)


def cleaned(cluster: Foreign, *runs: str, namespace: str | None = None) -> tuple[list[str], list[str]]:
    said: list[str] = []
    kept = clean(cluster, runs, namespace, Clock(), said.append)
    return said, [str(each) for each in kept]


@pytest.mark.parametrize("namespace", [None, "bench"])
def test_only_what_a_killed_process_has_left_is_removed(cluster: Foreign, namespace: str | None) -> None:
    before = set(cluster.objects)
    killed(cluster, OVER, namespace=namespace)
    said, kept = cleaned(cluster)
    assert set(cluster.objects) == before
    where = namespace or "busbar-run-1"
    assert said[0].startswith(f"removed MPIJob {where}/nccl-run-1-") and kept == []
    assert said[1:] == ([] if namespace else ["removed Namespace busbar-run-1"])


def test_a_clock_that_is_half_an_hour_ahead_takes_no_run_from_its_process(cluster: Foreign) -> None:
    killed(cluster, latest_end(-1800))
    said, kept = cleaned(cluster)
    assert said == [] and kept


def test_a_named_run_is_removed_and_no_other(cluster: Foreign) -> None:
    killed(cluster, OVER, "run-1")
    killed(cluster, OVER, "run-2")
    cleaned(cluster, "run-2")
    assert cluster.left and not [path for path in cluster.left if "run-2" in path]


def test_a_job_is_removed_when_its_pods_have_ended_and_hold_no_gpus(cluster: Foreign) -> None:
    killed(cluster, OVER, namespace="bench")
    pod = "/api/v1/namespaces/bench/pods/ending"
    labels = {"busbar/nccl-run": "run-1"}
    cluster.add(pod, {"metadata": {"name": "ending", "namespace": "bench", "labels": labels}})
    clock, said = Clock(), list[str]()
    clock.at(20, lambda: cluster.objects.pop(pod))
    clean(cluster, (), None, clock, said.append)
    assert clock.now() >= 20 and "1 pods of MPIJob bench/nccl-run-1-" in said[0]


def test_an_object_that_somebody_made_meanwhile_stays(
    cluster: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(cluster, OVER, namespace="bench")
    [path] = cluster.left

    def replaced(where: str, **query: str) -> Any:
        found = Foreign.list(cluster, where, **query)
        if where.endswith("configmaps"):
            cluster.objects[path] = {"kind": "MPIJob", "metadata": {"uid": "another"}}
        return found

    monkeypatch.setattr(cluster, "list", replaced)
    cleaned(cluster)
    assert cluster.objects[path]["metadata"]["uid"] == "another"


def test_a_cluster_without_mpijobs_is_clean(cluster: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    def list_(path: str, **query: str) -> Any:
        if path.endswith("mpijobs"):
            raise ApiError(f"GET {path}", 404, "the server could not find the requested resource")
        return Foreign.list(cluster, path, **query)

    monkeypatch.setattr(cluster, "list", list_)
    assert cleaned(cluster) == ([], [])
