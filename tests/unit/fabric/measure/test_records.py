"""What is recorded of a measurement, by an update and by `busbar measure`, and where it is found again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from busbar.collect.collector import Collected, collect
from busbar.collect.spec import CollectSpec, collect_spec
from busbar.fabric.measure import plan_pool, read_facts, records
from busbar.fabric.measure.history import Run
from busbar.fabric.measure.records import read_cluster, read_folder, record, settings_of
from busbar.hosts.inventory import Inventory
from busbar.kube import wait
from busbar.kube.client import ApiError, JsonObject
from busbar.manifests import mpijob, nccljob
from busbar.manifests.nccljob import TopologyFile
from busbar.outputs.pool import PoolResult
from tests.support.cli import busbar
from tests.support.kube_cluster import Clock
from tests.unit.fabric.measure.foreign import SETTINGS, Foreign, gpu_node
from tests.unit.fabric.measure.test_stack import inventory

NAMESPACE = "busbar-validation"
JOBS = f"/apis/kubeflow.org/v2beta1/namespaces/{NAMESPACE}/mpijobs"


def stack(**validation: Any) -> Inventory:
    return inventory(2, validation={**SETTINGS, "slots_per_worker": 1, **validation})


def job_of(found: Inventory, topology: TopologyFile | None = None) -> tuple[JsonObject, CollectSpec]:
    """The MPIJob of an update and what is collected from it."""
    job = nccljob.resolve(found.cluster, "h100", ["gpu-1", "gpu-2"], topology=topology)
    manifest = mpijob.render(job)
    name = manifest["metadata"]["name"]
    # The GPUs of the log are a CPU.
    job = replace(job, gpu=None)
    spec = collect_spec(found.cluster.validation_of("h100"), job, name, folder=".busbar/site/h100")
    return manifest, CollectSpec.model_validate(spec)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Foreign:
    monkeypatch.chdir(tmp_path)
    return Foreign(gpu_node("gpu-1"), gpu_node("gpu-2"))


def collected(cluster: Foreign, manifest: JsonObject, spec: CollectSpec) -> Collected:
    cluster.create(JOBS, manifest)
    return collect(cluster, spec, Clock(), lambda text: None)


def recorded(cluster: Foreign, folder: Path = Path(".busbar/site/h100")) -> list[str]:
    """The record of an update's measurement; what was said."""
    said: list[str] = []
    manifest, spec = job_of(stack())
    record(cluster, "h100", folder, collected(cluster, manifest, spec), spec, said.append)
    return said


def test_the_record_is_in_the_cluster_without_an_owner_and_beside_the_log(cluster: Foreign) -> None:
    assert recorded(cluster) == []
    [here], there = read_folder(Path(".busbar/site")), read_cluster(cluster, NAMESPACE, "site")
    assert there == [here, here], "the record, and the job that is still there"
    assert (here.kind, here.pool, here.nodes, here.result.verdict) == (
        "update", "h100", ("gpu-1", "gpu-2"), "pass",
    )  # fmt: skip
    assert here.result.busbw_gbps == pytest.approx(2.0, rel=0.01)
    assert here.result.verdict_file == ".busbar/site/h100/verdict.json"
    [stored] = [body for _, body in cluster.created if body["metadata"]["name"].startswith("nccl-history-")]
    assert "ownerReferences" not in stored["metadata"], "it outlives the job"
    assert Path(".busbar/site/h100/history.jsonl").stat().st_mode & 0o777 == 0o600


def test_busbar_nccl_collect_records_what_an_update_measures(
    cluster: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.server = "https://10.0.0.1:6443"  # type: ignore[attr-defined]
    monkeypatch.setattr("busbar.kube.access.connect", lambda *_: cluster)
    monkeypatch.setattr(wait, "SystemClock", Clock)
    manifest, spec = job_of(stack())
    cluster.create(JOBS, manifest)
    done = busbar("nccl", "collect", stdin=spec.model_dump_json())
    assert done.exit_code == 0, done.output
    [run] = read_folder(Path(".busbar/site"))
    printed = PoolResult.model_validate_json(done.stdout)
    [map_] = cluster.list(f"/api/v1/namespaces/{NAMESPACE}/configmaps", labelSelector="busbar/job")
    stored = {"config_map": f"{NAMESPACE}/{map_['metadata']['name']}", "nodes_measured": None}
    assert (run.pool, run.result.model_copy(update=stored)) == ("h100", printed)


def test_the_settings_are_those_of_the_job_and_of_its_expectation(cluster: Foreign) -> None:
    topology = TopologyFile("h100", "h100.xml", "<system/>")
    manifest, spec = job_of(stack(iterations=7, warmup=3, env={"NCCL_IB_TC": "106"}), topology)
    found = settings_of(manifest, collected(cluster, manifest, spec).verdict["expectation"])
    expected = {
        "k3s": "v1.35.6+k3s1",
        "image": manifest["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["image"],
        "env NCCL_IB_TC": "106",
        "nvidia.com/gpu": "8",
        "iterations": "7",
        "warmup": "3",
        "max_bytes": str(SETTINGS["max_bytes"]),
        "collectives": '["all_reduce"]',
        "transport": "socket",
        "topology": topology.sha256[:10],
    }
    assert {key: found.get(key) for key in expected} == expected
    assert not {"hosts", "nodes"} & set(found)


def test_a_measurement_of_a_run_has_the_settings_of_the_update_before_it(cluster: Foreign) -> None:
    """Else every first `busbar measure` would show changes that nobody made."""
    found = stack()
    made = plan_pool(read_facts(cluster, None), found, "h100", "run-1")
    of_run = settings_of(made.objects({})[-1][1], made.collect_spec("folder").expectation)
    manifest, spec = job_of(found)
    assert of_run == {**settings_of(manifest, spec.expectation), "gpu": "H100"}


@pytest.mark.parametrize(("idle", "kind"), [(False, "measure"), (True, "idle")])
def test_the_kind_of_a_run_is_recorded(cluster: Foreign, idle: bool, kind: str) -> None:
    made = plan_pool(read_facts(cluster, None), stack(), "h100", "run-1", idle=idle)
    spec = made.collect_spec("runs/1")
    found = collected(cluster, made.objects({})[-1][1], spec)
    record(cluster, "h100", Path(".busbar/site/h100"), found, spec, print)
    [run] = read_folder(Path(".busbar/site"))
    assert run.kind == kind


def test_what_is_judged_again_replaces_its_record_in_the_cluster(cluster: Foreign) -> None:
    manifest, spec = job_of(stack())
    found = collected(cluster, manifest, spec)
    for _ in range(2):
        record(cluster, "h100", Path("h100"), found, spec, print)
    [(path, body)] = cluster.patched
    assert path.rpartition("/")[2].startswith("nccl-history-")
    assert Run.read(body["data"]["run.json"])


def test_of_a_pool_the_newest_records_stay_in_the_cluster(
    cluster: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "RECORDS", 2)
    monkeypatch.setattr(records, "_of_updates", lambda *_: ())
    other = {"metadata": {"name": "nccl-history-b200", "labels": {"busbar/history": "b200"}}}
    cluster.add(f"/api/v1/namespaces/{NAMESPACE}/configmaps/nccl-history-b200", other)
    for number in range(4):
        manifest, spec = job_of(stack(run=number + 1))
        record(cluster, "h100", Path("h100"), collected(cluster, manifest, spec), spec, print)
    times = sorted(str(run.at) for run in read_cluster(cluster, NAMESPACE, "site"))
    assert len(times) == 2 and len(read_folder(Path())) == 4
    assert times == sorted(str(run.at) for run in read_folder(Path()))[-2:]
    assert f"/api/v1/namespaces/{NAMESPACE}/configmaps/nccl-history-b200" in cluster.objects


def test_what_an_earlier_release_has_measured_is_found_by_its_job_and_verdict(cluster: Foreign) -> None:
    manifest, spec = job_of(stack())
    collected(cluster, manifest, spec)
    labels = {"busbar/job": manifest["metadata"]["name"]}
    first = {"name": "first", "labels": labels, "creationTimestamp": "2026-11-24T05:00:00Z"}
    verdict = json.dumps({**json.loads(_verdict(cluster)), "verdict": "fail", "passed": False})
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/first"
    cluster.add(path, {"metadata": first, "data": {"verdict.json": verdict}})  # of another expectation
    [before] = read_cluster(cluster, NAMESPACE, "site")
    del cluster.objects[path]
    assert (before.pool, before.kind, before.result.verdict) == ("h100", "update", "pass")
    recorded_later = Collected(json.loads(_verdict(cluster)), measured_at=str(before.at), job=job(cluster))
    record(cluster, "h100", Path(".busbar/site/h100"), recorded_later, spec, print)
    assert read_cluster(cluster, NAMESPACE, "site") == [before, before], "the same record, under the same id"


def job(cluster: Foreign) -> JsonObject:
    [found] = cluster.list(JOBS)
    return found


def _verdict(cluster: Foreign) -> str:
    [found] = cluster.list(f"/api/v1/namespaces/{NAMESPACE}/configmaps", labelSelector="busbar/job")
    return str(found["data"]["verdict.json"])


def test_a_job_that_is_no_update_or_has_no_verdict_of_busbar_is_no_record(cluster: Foreign) -> None:
    made = plan_pool(read_facts(cluster, None), stack(), "h100", "run-1")
    collected(cluster, made.objects({})[-1][1], made.collect_spec("runs/1"))
    manifest, _ = job_of(stack(run=2))
    cluster.create(JOBS, manifest)
    labels = {"busbar/job": manifest["metadata"]["name"]}
    theirs = {"metadata": {"name": "theirs", "labels": labels}, "data": {"verdict.json": "{}"}}
    cluster.add(f"/api/v1/namespaces/{NAMESPACE}/configmaps/theirs", theirs)
    assert read_cluster(cluster, NAMESPACE, "site") == []


def refuse_maps(path: str, body: Any) -> ApiError | None:
    is_record = body["metadata"]["name"].startswith("nccl-history-")
    return ApiError(f"POST {path}", 403, "exceeded quota") if is_record else None


@pytest.mark.parametrize(
    ("break_", "why"),
    [
        (lambda cluster: setattr(cluster, "refuse", refuse_maps), "exceeded quota"),
        (lambda cluster: Path(".busbar").write_text("a file"), "Not a directory"),
    ],
    ids=["in the cluster", "on the disk"],
)
def test_what_cannot_be_recorded_is_a_message_because_there_is_a_verdict(
    cluster: Foreign, break_: Callable[[Foreign], Any], why: str
) -> None:
    manifest, spec = job_of(stack())
    spec = spec.model_copy(update={"folder": "elsewhere"})
    found = collected(cluster, manifest, spec)
    break_(cluster)
    said: list[str] = []
    record(cluster, "h100", Path(".busbar/site/h100"), found, spec, said.append)
    [text] = said
    assert text.startswith("the measurement has no record for busbar history: ") and why in text


def test_a_job_that_does_not_exist_leaves_no_record(cluster: Foreign) -> None:
    _, spec = job_of(stack())
    record(cluster, "h100", Path("h100"), Collected({"verdict": "unknown"}), spec, print)
    assert read_folder(Path()) == []


def test_what_others_wrote_is_not_read_as_a_record(cluster: Foreign) -> None:
    recorded(cluster)
    with Path(".busbar/site/h100/history.jsonl").open("a", encoding="utf-8") as file:
        file.write("cut in the mid\n")
    labels = {"busbar/history": "h100"}
    cluster.add(
        f"/api/v1/namespaces/{NAMESPACE}/configmaps/theirs", {"metadata": {"name": "x", "labels": labels}}
    )
    assert len(read_folder(Path(".busbar/site"))) == 1
    assert len({run.id for run in read_cluster(cluster, NAMESPACE, "site")}) == 1
