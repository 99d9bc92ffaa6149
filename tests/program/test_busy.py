"""`validation.when_busy` in the whole program: what the engine is asked for, and what it leaves as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pulumi
import pytest

from busbar.outputs import ClusterOutputs
from tests.program.answers import healthy
from tests.program.harness import Resource, Run, run_program
from tests.support.clusters import site
from tests.support.verdicts import passing

CONFIG_MAP = "kubernetes:core/v1:ConfigMap"


def update(workers: int = 2, printed: str | None = None, **validation: Any) -> Run:
    cluster = site(workers={"h100": workers}, validation=validation)
    answer: Any = healthy(cluster, lambda _: passing() if printed is None else printed)
    return run_program(cluster, answer)


def job(run: Run) -> Mapping[str, Any]:
    return run.named("nccl-h100-job").inputs


def recorded(run: Run) -> Resource:
    return run.named("nccl-h100-last-result")


def printed(run: Run) -> str:
    return str(recorded(run).inputs["data"]["result.json"])


@pytest.mark.parametrize("policy", ["wait", "keep"])
def test_another_policy_measures_nothing_again(policy: str) -> None:
    default, changed = update(), update(when_busy=policy)
    assert job(changed)["metadata"]["name"] == job(default)["metadata"]["name"]
    assert job(changed)["spec"] == job(default)["spec"]
    assert changed.named("nccl-h100-collect").raw == default.named("nccl-h100-collect").raw


def test_by_default_there_is_no_policy_and_a_record_for_the_first_quarantine() -> None:
    run = update()
    assert "busbar/when-busy" not in job(run)["metadata"]["annotations"]
    assert list(recorded(run).inputs["data"]) == ["result.json"]
    assert ClusterOutputs.from_dict(run.outputs).nccl["h100"].nodes_measured == ("gpu-1", "gpu-2")


def test_where_fail_was_chosen_there_is_neither_a_policy_nor_a_record() -> None:
    run = update(when_busy="fail")
    assert "busbar/when-busy" not in job(run)["metadata"]["annotations"]
    assert not run.of_type(CONFIG_MAP)


def in_quarantine(*names: str, printed: str | None = None, **validation: Any) -> Run:
    """An update of twelve workers, of which these are in quarantine."""
    cluster = site(workers={"h100": 12}, validation=validation)
    for worker in cluster["hosts"]["workers"]:
        worker.update({"quarantine": "fan"} if worker["name"] in names else {})
    return run_program(cluster, healthy(cluster, lambda _: passing() if printed is None else printed))


def test_a_quarantine_keeps_the_verdict_of_a_busy_pool_and_notes_whose_it_is() -> None:
    before = in_quarantine()
    kept = in_quarantine("gpu-3", "gpu-7", printed=printed(before))
    policy = json.loads(job(kept)["metadata"]["annotations"]["busbar/when-busy"])
    assert policy == {"deadline_seconds": 30, "former": recorded(before).inputs["metadata"]["name"]}
    assert recorded(kept).inputs["data"]["quarantined"] == "gpu-3,gpu-7"
    found = ClusterOutputs.from_dict(kept.outputs)
    assert "no longer in the pool: gpu-3, gpu-7" in (found.nccl["h100"].stale or ())
    assert kept.error is None and found.nccl_passed, "those in quarantine do not count"
    released = in_quarantine("gpu-3", printed=recorded(kept).inputs["data"]["result.json"])
    assert released.error is None, "11 of 11 that are not in quarantine were measured"


@pytest.mark.parametrize("policy", ["fail", "wait"])
def test_a_policy_that_was_chosen_holds_for_a_quarantine_too(policy: str) -> None:
    run = in_quarantine("gpu-3", when_busy=policy)
    annotations = job(run)["metadata"]["annotations"]
    chosen = json.loads(annotations.get("busbar/when-busy", '{"former": null}'))
    assert chosen["former"] is None
    assert not run.of_type(CONFIG_MAP)


def test_a_record_under_a_policy_that_was_chosen_notes_no_quarantine() -> None:
    assert list(recorded(in_quarantine("gpu-3", when_busy="keep")).inputs["data"]) == ["result.json"]


def test_wait_gives_the_job_its_deadline_and_needs_no_record() -> None:
    run = update(when_busy="wait", busy_deadline_seconds=7200)
    policy = json.loads(job(run)["metadata"]["annotations"]["busbar/when-busy"])
    assert policy == {"deadline_seconds": 7200, "former": None}
    assert not run.of_type(CONFIG_MAP)


def test_keep_records_the_result_where_the_next_measurement_looks_for_it() -> None:
    run = update(when_busy="keep")
    policy = json.loads(job(run)["metadata"]["annotations"]["busbar/when-busy"])
    made = recorded(run)
    assert made.inputs["metadata"]["name"] == policy["former"]
    assert made.inputs["metadata"]["namespace"] == job(run)["metadata"]["namespace"]
    assert json.loads(printed(run))["nodes_measured"] == ["gpu-1", "gpu-2"]
    # The collector reads the former record before this one takes its place.
    assert run.waits_for(made, run.named("nccl-h100-collect"))


def test_a_kept_verdict_passes_says_what_is_stale_and_is_recorded_again_as_it_was() -> None:
    first = update(when_busy="keep")
    kept = update(when_busy="keep", run=2, printed=printed(first))
    assert kept.error is None
    result = ClusterOutputs.from_dict(kept.outputs).nccl["h100"]
    assert (result.verdict, result.stale) == ("pass", ("run 1 -> 2",))
    assert printed(kept) == printed(first)


def test_one_more_worker_in_a_small_pool_fails_the_gate_until_it_is_measured() -> None:
    first = update(when_busy="keep")
    kept = update(workers=3, when_busy="keep", printed=printed(first))
    assert isinstance(kept.error, pulumi.RunError)
    assert "2 of 3 workers are measured" in str(kept.error)
    found = ClusterOutputs.from_dict(kept.outputs)
    assert found.pools["h100"].workers == ("gpu-1", "gpu-2")
    assert found.nccl["h100"].stale is not None and "not measured: gpu-3" in found.nccl["h100"].stale
