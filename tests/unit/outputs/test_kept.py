"""A verdict that stays while the GPUs are held: for which workers, what has changed since, and the gate."""

import json
from pathlib import Path
from typing import Any

import pytest

from busbar.collect.spec import collect_spec, settings_of
from busbar.config import load
from busbar.manifests import mpijob
from busbar.outputs import ClusterOutputs, build_outputs
from busbar.outputs.contract import current_result, read_result, summarize
from tests.support import kube_site
from tests.support.clusters import site
from tests.support.verdicts import failing, passing, record, unknown

PRINTED = json.dumps(summarize(passing(), config_map="ns/x"))


class Update:
    """One update of the site of four workers: what is wanted, and the result that its outputs get."""

    def __init__(self, folder: Path, printed: str, nodes: int = 4, **parts: Any) -> None:
        cluster, job = kube_site.cluster(**parts), kube_site.job(nodes=nodes, **parts)
        manifest = mpijob.render(job)
        name = manifest["metadata"]["name"]
        spec = collect_spec(cluster.validation, job, name, folder=str(folder))
        settings = settings_of(manifest, spec["expectation"], job.iterations, job.warmup)
        self.result = current_result(printed, settings, job.nodes)
        self.record = record(3, *job.nodes, settings=dict(settings), expectation=spec["expectation"])

    def kept(self, verdict: dict[str, Any] | None = None) -> str:
        """What the collector of a later update prints where the verdict of this one stays."""
        return json.dumps({**json.loads(self.printed(verdict)), "kept": True})

    def printed(self, verdict: dict[str, Any] | None = None) -> str:
        """The text that the collector of this update prints."""
        return json.dumps(summarize(verdict or passing(), record=self.record))


def k3s(version: str) -> dict[str, Any]:
    return {"version": version, "sha256": {"amd64": "ab" * 32}}


def test_a_job_that_never_started_has_measured_no_worker(tmp_path: Path) -> None:
    assert "nodes_measured" not in Update(tmp_path, json.dumps(summarize(unknown()))).result


@pytest.mark.parametrize("verdict", [passing(), failing("half of the rails are missing")])
def test_a_kept_verdict_says_which_version_was_measured(tmp_path: Path, verdict: dict[str, Any]) -> None:
    first = Update(tmp_path, json.dumps(summarize(verdict)), k3s=k3s("v1.35.5+k3s1"))
    kept = Update(tmp_path, first.kept(verdict), k3s=k3s("v1.35.6+k3s1")).result
    assert kept["stale"] == ["k3s v1.35.5+k3s1 -> v1.35.6+k3s1"]
    assert (kept["verdict"], kept["measured_at"]) == (verdict["verdict"], "2026-11-23T01:02:03Z")
    assert kept["nodes_measured"] == ["worker-1", "worker-2", "worker-3", "worker-4"]


@pytest.mark.parametrize(
    ("parts", "stale"),
    [
        ({}, []),
        ({"validation": {"run": 2}}, ["run 1 -> 2"]),
        ({"validation": {"tolerance": 0.05}}, ["tolerance 0.1 -> 0.05"]),
        ({"validation": {"env": {"NCCL_IB_QPS": "4"}}}, ["env NCCL_IB_QPS none -> 4"]),
        ({"pool": {"gpu_model": "H200"}}, ["gpu H100 -> H200"]),
        ({"nodes": 2}, ["no longer in the pool: worker-3, worker-4"]),
    ],
)
def test_every_change_since_is_named(tmp_path: Path, parts: dict[str, Any], stale: list[str]) -> None:
    assert Update(tmp_path, Update(tmp_path, PRINTED).kept(), **parts).result["stale"] == stale


def test_a_verdict_that_a_targeted_update_left_is_not_one_of_the_worker_that_it_added(tmp_path: Path) -> None:
    first = Update(tmp_path, PRINTED, nodes=3)
    assert "stale" not in Update(tmp_path, first.printed(), nodes=3).result
    left = Update(tmp_path, first.printed()).result
    assert left["nodes_measured"] == ["worker-1", "worker-2", "worker-3"]
    assert left["stale"] == ["not measured: worker-4"]


def test_a_job_that_differs_in_nothing_that_has_a_name_is_named_itself(tmp_path: Path) -> None:
    former = json.loads(Update(tmp_path, PRINTED).kept())
    former["record"]["settings"]["job"] = "nccl-h100-0"
    [stale] = Update(tmp_path, json.dumps(former)).result["stale"]
    assert stale.startswith("job nccl-h100-0 -> nccl-h100-")


def outputs(workers: int, measured: int, **validation: Any) -> ClusterOutputs:
    """The outputs of a site with a pool of so many workers, of which the first `measured` were measured."""
    names = [f"gpu-{index}" for index in range(1, measured + 1)]
    result = {**read_result(PRINTED), "nodes_measured": names, "stale": ["run 1 -> 2"]}
    cluster = load(site(workers={"h100": workers}, validation=validation))
    built = build_outputs(cluster, versions={"k3s": "v1.35.6+k3s1"}, facts={}, results={"h100": result})
    return ClusterOutputs.from_dict(built)


def test_a_worker_that_was_never_measured_is_not_offered_to_jobs() -> None:
    found = outputs(10, 9)
    assert found.nccl_passed
    assert found.pools["h100"].workers == tuple(f"gpu-{index}" for index in range(1, 10))
    assert found.nccl["h100"].stale == ("run 1 -> 2",)


def test_a_pool_of_which_too_few_workers_are_measured_has_not_passed() -> None:
    found = outputs(3, 2)
    assert not found.nccl_passed
    assert found.nccl_reasons == (
        "2 of 3 workers are measured, validation.min_nodes_fraction is 0.9; not measured: gpu-3. Fix: raise "
        "validation.run when the GPUs of the pool are free",
    )


@pytest.mark.parametrize(("fraction", "passed"), [(0.55, True), (0.56, False)])
def test_the_site_decides_how_many_are_enough(fraction: float, passed: bool) -> None:
    assert outputs(20, 11, min_nodes_fraction=fraction).nccl_passed is passed


def test_a_pool_without_a_measured_worker_is_not_offered_at_all() -> None:
    found = outputs(2, 0)
    assert not found.nccl_passed and found.pools == {}
