"""`validation.when_busy` and `pools.NAME.validation` in the whole program: what changes with them."""

import json
from collections.abc import Mapping
from typing import Any

import pulumi
import pytest

from busbar.outputs import ClusterOutputs
from tests.program.answers import healthy
from tests.program.harness import Run, run_program
from tests.support.clusters import site
from tests.support.verdicts import passing

POLICY = "busbar/when-busy"
KEEP = {"deadline_seconds": 30, "keep": True}


def update(
    workers: int = 2, kept: str | None = None, quarantine: tuple[str, ...] = (), **validation: Any
) -> Run:
    """An update; its collector prints that the record KEPT stays, where there is one."""
    cluster = site(workers={"h100": workers}, validation=validation)
    for worker in cluster["hosts"]["workers"]:
        worker.update({"quarantine": "fan"} if worker["name"] in quarantine else {})
    return run_program(cluster, healthy(cluster, lambda _: passing() if kept is None else kept))


def kept(workers: int = 2, **validation: Any) -> str:
    """What a collector prints where the verdict of such an update stays."""
    cluster, printed = site(workers={"h100": workers}, validation=validation), list[str]()
    answers = healthy(cluster, lambda _: passing())

    def answer(args: Any) -> Any:
        found = answers(args)
        if args.name == "busbar-nccl-h100-collect":
            printed.append(found["stdout"])
        return found

    run_program(cluster, answer)
    return json.dumps({**json.loads(printed[0]), "kept": True})


def job(run: Run) -> Mapping[str, Any]:
    return run.named("busbar-nccl-h100-job").inputs


def collect(run: Run) -> Any:
    return run.named("busbar-nccl-h100-collect").raw


def policy(run: Run) -> Any:
    return json.loads(job(run)["metadata"]["annotations"].get(POLICY, "null"))


@pytest.mark.parametrize("when_busy", ["wait", "keep"])
def test_another_policy_measures_nothing_again(when_busy: str) -> None:
    default, changed = update(), update(when_busy=when_busy)
    assert job(changed)["metadata"]["name"] == job(default)["metadata"]["name"]
    assert job(changed)["spec"] == job(default)["spec"]
    assert collect(changed) == collect(default)


@pytest.mark.parametrize("quarantine", [(), ("gpu-2",)])
def test_a_written_default_and_an_omitted_key_are_the_same_program(quarantine: tuple[str, ...]) -> None:
    omitted, written = update(3, quarantine=quarantine), update(3, quarantine=quarantine, when_busy="fail")
    assert policy(written) == policy(omitted) == (KEEP if quarantine else None)
    first, second = ({urn: each.raw for urn, each in run.resources.items()} for run in (omitted, written))
    assert first == second


def test_a_quarantine_keeps_the_verdict_of_a_busy_pool() -> None:
    before, out = kept(12), ("gpu-3", "gpu-7")
    during = update(12, before, out)
    found = ClusterOutputs.from_dict(during.outputs)
    assert "no longer in the pool: gpu-3, gpu-7" in (found.nccl["h100"].stale or ())
    assert during.error is None and found.nccl_passed, "those in quarantine do not count"
    released = update(12, before, ("gpu-3",))
    assert released.error is None, "11 of 11 that are not in quarantine were measured"


def test_wait_gives_the_job_its_deadline_also_in_a_quarantine() -> None:
    run = update(quarantine=("gpu-2",), when_busy="wait", busy_deadline_seconds=7200)
    assert policy(run) == {"deadline_seconds": 7200, "keep": False}


def test_a_kept_verdict_passes_and_says_what_is_stale() -> None:
    run = update(kept=kept(), when_busy="keep", run=2)
    assert policy(run) == KEEP
    assert run.error is None
    result = ClusterOutputs.from_dict(run.outputs).nccl["h100"]
    assert (result.verdict, result.stale) == ("pass", ("run 1 -> 2",))


def test_one_more_worker_in_a_small_pool_fails_the_gate_until_it_is_measured() -> None:
    run = update(3, kept(), when_busy="keep")
    assert isinstance(run.error, pulumi.RunError)
    assert "2 of 3 workers are measured" in str(run.error)
    found = ClusterOutputs.from_dict(run.outputs)
    assert found.pools["h100"].workers == ("gpu-1", "gpu-2")
    assert found.nccl["h100"].stale is not None and "not measured: gpu-3" in found.nccl["h100"].stale


def two_pools(**own: Any) -> Run:
    """Of which `other` has a validation of its own."""
    cluster = site(workers={"h100": 2, "other": 2})
    cluster["pools"]["other"] |= {"validation": own} if own else {}
    return run_program(cluster, healthy(cluster))


def test_a_pool_is_measured_with_its_own_image_and_the_others_are_not_measured_again() -> None:
    same, changed = two_pools(), two_pools(image="example.com/nccl:1")
    assert "example.com/nccl:1" in json.dumps(changed.named("busbar-nccl-other-job").inputs)
    assert (job(changed), collect(changed)) == (job(same), collect(same))


def test_another_tolerance_of_a_pool_judges_its_log_again_and_changes_nothing_else() -> None:
    same, changed = two_pools(), two_pools(tolerance=0.3)
    assert changed.named("busbar-nccl-other-job").inputs == same.named("busbar-nccl-other-job").inputs
    differ = [name for name, each in changed.resources.items() if each.raw != same.resources[name].raw]
    assert [name.rpartition("::")[2] for name in differ] == ["busbar-nccl-other-collect"]
