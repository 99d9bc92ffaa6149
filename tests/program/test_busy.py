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
    [text] = recorded(run).inputs["data"].values()
    return str(text)


@pytest.mark.parametrize("policy", ["wait", "keep"])
def test_another_policy_measures_nothing_again(policy: str) -> None:
    default, changed = update(), update(when_busy=policy)
    assert job(changed)["metadata"]["name"] == job(default)["metadata"]["name"]
    assert job(changed)["spec"] == job(default)["spec"]
    assert changed.named("nccl-h100-collect").raw == default.named("nccl-h100-collect").raw


def test_by_default_there_is_neither_a_policy_nor_a_record() -> None:
    run = update()
    assert "busbar/when-busy" not in job(run)["metadata"]["annotations"]
    assert not run.of_type(CONFIG_MAP)
    assert ClusterOutputs.from_dict(run.outputs).nccl["h100"].nodes_measured == ("gpu-1", "gpu-2")


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
