"""What is recorded of a measurement, by an update and by `busbar measure`, and where it is found again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from busbar.collect.collector import Collected, collect
from busbar.collect.result import Results
from busbar.collect.spec import CollectSpec, collect_spec, settings_of
from busbar.fabric.measure import measure, plan_pool, read_facts
from busbar.fabric.measure.history import append, entries, read_cluster, read_folder
from busbar.hosts.inventory import Inventory
from busbar.kube.client import JsonObject
from busbar.manifests import mpijob, nccljob
from busbar.manifests.nccljob import TopologyFile
from busbar.outputs.contract import PoolResult
from tests.support.cli import busbar
from tests.support.kube_cluster import Clock, connected
from tests.unit.fabric.measure.foreign import SETTINGS, Foreign, gpu_node
from tests.unit.fabric.measure.test_stack import inventory

NAMESPACE = "busbar-validation"
MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
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
    return collect(cluster, spec, Clock(), lambda text: None, pool="h100")


def test_what_an_update_measures_is_recorded(cluster: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    connected(monkeypatch, cluster)
    manifest, spec = job_of(stack())
    cluster.create(JOBS, manifest)
    told: list[int] = []
    monkeypatch.setattr(
        "busbar.capability.notify", lambda *_: told.append(len(read_cluster(cluster, NAMESPACE)))
    )
    done = busbar("nccl", "collect", stdin=spec.model_dump_json())
    assert done.exit_code == 0, done.output
    assert told == [1], "capabilities are told of a verdict that is in the cluster"
    [here], there = read_folder(Path(".busbar/site")), read_cluster(cluster, NAMESPACE)
    assert there == [here], "one record"
    assert here.result == PoolResult.model_validate_json(done.stdout)
    assert (here.record.kind, here.record.pool, here.nodes) == ("update", "h100", ("gpu-1", "gpu-2"))
    assert here.result.verdict_file == ".busbar/site/h100/verdict.json"
    assert Path(".busbar/site/h100/history.jsonl").stat().st_mode & 0o777 == 0o600


def test_the_settings_are_those_of_the_job_and_of_its_expectation() -> None:
    topology = TopologyFile("h100", "h100.xml", "<system/>")
    manifest, spec = job_of(stack(env={"NCCL_IB_TC": "106"}), topology)
    found = settings_of(manifest, spec.expectation, 7, 3)
    expected = {
        "k3s": "v1.35.6+k3s1",
        "image": manifest["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["image"],
        "env NCCL_IB_TC": "106",
        "nvidia.com/gpu": "8",
        "iterations": "7", "warmup": "3", "max_bytes": str(SETTINGS["max_bytes"]), "transport": "socket",
        "collectives": '["all_reduce"]', "topology": topology.sha256[:10],
    }  # fmt: skip
    assert {key: found.get(key) for key in expected} == expected
    assert not {"hosts", "nodes"} & set(found)


@pytest.mark.parametrize(("idle", "kind"), [(False, "measure"), (True, "idle")])
def test_a_run_after_an_update_shows_no_change(
    cluster: Foreign, tmp_path: Path, idle: bool, kind: str
) -> None:
    """Else every first `busbar measure` would show changes that nobody made."""
    made = plan_pool(read_facts(cluster, None), stack(), "h100", "run-1", idle=idle)
    collected(cluster, *job_of(stack()))
    about = {"pool": "h100", "folder": "runs/1"}
    measure(cluster, made, str(tmp_path / "runs"), Clock(), lambda text: None, about=about)
    *_, last = entries(read_cluster(cluster, NAMESPACE))
    # The update was not asked for a GPU.
    assert (last.run.record.kind, last.changes) == (kind, ("gpu none -> H100",))


def test_a_line_that_is_no_measurement_is_named_with_its_file(cluster: Foreign) -> None:
    collected(cluster, *job_of(stack()))
    measured = Results(cluster, NAMESPACE).all()[0]
    append(Path("h100"), measured, print)
    append(Path("h100"), {**measured, "format": 3}, print)
    with Path("h100/history.jsonl").open("a") as file:
        file.write('cut in the mid\n[]\n{"record": 1}\n')
    said: list[str] = []
    assert len(read_folder(Path(), said.append)) == 1
    assert said == ["note: 4 lines of h100/history.jsonl cannot be read as a measurement"]
    cluster.add(f"{MAPS}/x", {"metadata": {"name": "x", "labels": {"busbar/history": "h100"}}})
    assert len(read_cluster(cluster, NAMESPACE)) == 1


def test_a_file_that_cannot_be_written_is_a_message_because_there_is_a_verdict(cluster: Foreign) -> None:
    Path(".busbar").write_text("a file")
    said: list[str] = []
    append(Path(".busbar/site/h100"), {}, said.append)
    [text] = said
    assert "for busbar history: " in text and "Not a directory" in text
