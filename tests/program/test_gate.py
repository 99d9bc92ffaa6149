"""The outputs are kept whatever happens; the update succeeds only after a pass."""

from typing import Any

import pulumi
import pytest
from pulumi.runtime.rpc import UNKNOWN

from busbar.components.engine.stack import INCOMPLETE, UNFINISHED
from busbar.outputs import ClusterOutputs
from tests.program.answers import Verdicts, healthy
from tests.program.harness import Run, run_program
from tests.support.clusters import site
from tests.support.verdicts import failing, passing, unknown


def run(verdict: Verdicts, preview: bool = False, **sections: Any) -> Run:
    cluster = site(**sections)
    return run_program(cluster, healthy(cluster, verdict), preview=preview)


def test_a_pass_is_exported_and_the_update_succeeds() -> None:
    done = run(lambda _: passing())
    assert done.error is None
    assert done.outputs["nccl_passed"] is True
    assert done.outputs["nccl_busbw_gbps"] == 390.28
    assert done.outputs["versions"]["nccl"] == "2.28.3"
    cluster = ClusterOutputs.from_dict(done.outputs)
    assert [node.gpus for node in cluster.nodes if node.role == "worker"] == [8, 8]
    assert cluster.nccl["h100"].verdict_file == ".busbar/test/h100/verdict.json"


UNREADABLE = "the output of `busbar nccl collect` cannot be read"


def one_pool_fails(job: str) -> dict[str, Any]:
    return failing("half of the rails are missing") if "-b-" in job else passing()


# The texts of the collectors, sections of the site, the only reason, and the measured bandwidth.
NO_PASS: list[tuple[Verdicts, dict[str, Any], str, float | None]] = [
    (lambda _: failing("GDRDMA is missing on 3 channels"), {}, "GDRDMA is missing on 3 channels", 46.9),
    (lambda _: unknown("the launcher never started"), {}, "the launcher never started", None),
    (one_pool_fails, {"workers": {"a": 2, "b": 2, "c": 2}}, "pool b: half of the rails are missing", 46.9),
    *((lambda _, text=text: text, {}, UNREADABLE, None)
      for text in ("", "Killed\n", "[]", "{}", '{"passed": "yes"}')),
    (lambda _: failing("slow"), {"validation": {"enforce": False}}, "slow", 46.9),
]  # fmt: skip


@pytest.mark.parametrize(("verdict", "sections", "reason", "busbw"), NO_PASS)
def test_what_is_no_pass_fails_the_update_if_that_is_enforced_and_keeps_the_outputs(
    verdict: Verdicts, sections: dict[str, Any], reason: str, busbw: float | None
) -> None:
    done = run(verdict, **sections)
    if "validation" in sections:
        assert done.error is None
    else:
        assert isinstance(done.error, pulumi.RunError) and reason in str(done.error)
    assert done.outputs["nccl_passed"] is False and "kubeconfig" in done.outputs
    assert done.outputs.get("nccl_busbw_gbps") == busbw
    [said] = done.outputs["nccl_reasons"]
    assert reason in said
    pools = sections.get("workers", {"h100": 2})
    assert reason == UNREADABLE or {*ClusterOutputs.from_dict(done.outputs).nccl} == {*pools}


@pytest.mark.parametrize("passed", [True, False])
def test_workers_that_are_not_configured_any_more_leave_only_a_cluster_that_has_passed(passed: bool) -> None:
    done = run(lambda _: passing() if passed else failing())
    steps = {resource.name for resource in done.custom}
    assert ("busbar-control-plane-stale-nodes" in steps) is passed


def test_the_preview_of_a_first_update_neither_fails_nor_warns() -> None:
    cluster = site()
    done = run_program(cluster, healthy(cluster), preview=True, answered=False)
    assert done.error is None
    assert done.messages == []
    assert len(done.custom) > 10


def test_a_preview_after_a_failed_validation_warns_and_succeeds_so_that_it_can_be_measured_again() -> None:
    done = run(lambda _: failing("a cable is broken"), preview=True)
    assert done.error is None
    assert any("a cable is broken" in message for message in done.messages)


STEPS = (
    *("busbar-load-balancer@lb-1", "busbar-nfs-server@lb-1", "busbar-worker@gpu-2"),
    *("busbar-control-plane-rejoin", "busbar-control-plane-nodes", "busbar-control-plane@server-3"),
    "busbar-control-plane-taints",
)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        *((step, INCOMPLETE) for step in STEPS),
        ("busbar-control-plane-stale-nodes", UNFINISHED),
        ("busbar-nfs-server-exports@lb-1", UNFINISHED),
    ],
)
def test_an_update_with_a_failed_step_is_an_error_and_uninstalls_nothing(step: str, reason: str) -> None:
    cluster = site(nfs_server={"host": "lb-1", "folder": "/srv/busbar"}, validation={"enabled": False})
    done = run_program(cluster, healthy(cluster, instead={step: {"stdout": UNKNOWN}}))
    assert reason in str(done.error)
    begun = {resource.name for resource in done.custom}
    assert ("busbar-control-plane-stale-nodes" in begun) is (reason == UNFINISHED)


def test_a_job_that_was_made_again_under_its_name_is_judged_again() -> None:
    """Such as in a cluster that was made anew, whose former verdict says nothing of it."""
    cluster = site()

    def triggers(uid: str) -> Any:
        made = {"busbar-nccl-h100-job": {"metadata": {"uid": uid}}}
        done = run_program(cluster, healthy(cluster, lambda _: "not read", instead=made))
        return done.named("busbar-nccl-h100-collect").inputs["triggers"]

    assert triggers("1") != triggers("2")
    assert triggers("1") == triggers("1")


def test_another_machine_under_the_name_of_a_worker_makes_its_pool_s_job_again() -> None:
    cluster = site(workers={"h100": 2, "other": 1})

    def triggers(**machines: str) -> list[Any]:
        done = run_program(cluster, healthy(cluster, machines=machines))
        jobs = [done.named(f"busbar-nccl-{pool}-job") for pool in ("h100", "other")]
        return [job.request.replacement_trigger for job in jobs]

    h100, other = triggers()
    replaced, same = triggers(**{"gpu-2": "another"})
    assert replaced != h100
    assert same == other
    assert triggers(**{"server-1": "another"}) == [h100, other]
