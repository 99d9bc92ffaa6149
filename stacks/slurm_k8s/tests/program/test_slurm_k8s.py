"""stacks/slurm_k8s under mocks: what it puts on a cluster that passed, in which order, and its gate."""

import json
from itertools import pairwise
from typing import Any

import pulumi
import pytest

from busbar.components import frame
from busbar.outputs.contract import FORMAT
from stacks.slurm_k8s.package.outputs import summary
from stacks.slurm_k8s.package.values import DATABASE_KEY, JWT_KEY, SLURM_KEY
from stacks.slurm_k8s.tests.support import SlurmCluster, configured, node
from tests.program.harness import RELEASE, Run, texts
from tests.program.on_cluster import NAMESPACE, PASSWORD, created, run_on_cluster
from tests.support import cli
from tests.support.measured import outputs

SECRET = "kubernetes:core/v1:Secret"
PROBED = {"passed_at": "2026-11-29T08:00:00+00:00", "nodes": 2, "skipped": ""}
READY = {
    "passed": True, "reasons": [], "nodes": {"gpu-1": "h100-0", "gpu-2": "h100-1"}, "drained": {},
    "probes": {"h100": PROBED},
}  # fmt: skip
PASSED = {
    "format": FORMAT, "verdict": "pass", "busbw_gbps": 480.0, "expected_gbps": 450.0,
    "nodes_measured": ["h100-0", "h100-1"],
}  # fmt: skip
NOT_READY = {**READY, "passed": False, "reasons": ["gpu-2: no node of Slurm"]}


def up(*, printed: Any = READY, measured: Any = PASSED, **given: Any) -> Run:
    """Run the program; `printed` by the step `ready`, `measured` by the step `measure`.

    `given`: the configuration, and arguments of run_on_cluster.
    """
    commands = {"slurm-ready": json.dumps(printed), "slurm-nccl-h100": json.dumps(measured)}
    about = {name: given.pop(name) for name in ("of_cluster", "uid", "secrets") if name in given}
    return run_on_cluster("slurm_k8s", configured(**given), commands, **about)


def test_nothing_is_made_before_the_survey_and_each_part_after_the_one_that_it_needs() -> None:
    run = up()
    assert run.error is None
    survey = run.named("survey")
    assert [each.name for each in created(run) if each != survey and not run.waits_for(each, survey)] == []
    order = [
        "slurm-crds-release", "slurm-operator-release", "slurm-webhook", "slurm-change", "slurm-release",
        "slurm-roll", "slurm-ready", "slurm-nccl-h100",
    ]  # fmt: skip
    for earlier, later in pairwise(order):
        assert run.waits_for(run.named(later), run.named(earlier)), later


def test_the_three_charts_have_one_version_which_charts_of_a_folder_have_not() -> None:
    names = {"slurm-operator-crds", "slurm-operator", "slurm"}
    published = "oci://ghcr.io/slinkyproject/charts"
    for run, folder, version in ((up(), published, "1.2.1"), (up(charts="./charts"), "./charts", None)):
        found = {each.inputs["name"]: each.inputs for each in run.of_type(RELEASE)}
        charts = {name: (each["chart"], each.get("version")) for name, each in found.items()}
        assert charts == {name: (f"{folder}/{name}", version) for name in names}


def test_keys_and_password_are_in_secrets_that_the_pods_wait_for_and_nowhere_in_clear() -> None:
    run = up(accounting={"host": "db"}, secrets=("databasePassword",))
    assert run.error is None
    found = {each.inputs["metadata"]["name"]: each for each in run.of_type(SECRET)}
    written = {name: [*each.inputs["stringData"]] for name, each in found.items()}
    assert written == {SLURM_KEY: ["slurm.key"], JWT_KEY: ["jwt.key"], DATABASE_KEY: ["password"]}
    for secret in found.values():
        assert run.waits_for(secret, run.named("slurm-namespace"))
        assert run.waits_for(run.named("slurm-ready"), secret)
    of_password = [
        (each, hidden) for each in run.custom for _, text, hidden in texts(each.raw) if PASSWORD in text
    ]
    assert of_password and [each.name for each, hidden in of_password if not hidden] == []
    without = up(accounting={"host": "db"})
    assert "Fix: pulumi config set --secret busbar-slurm_k8s:databasePassword" in str(without.error)


def test_a_destroy_asks_for_jobs_first_removes_the_operator_last_and_keeps_the_volume_of_slurmctld() -> None:
    run = up(removal={"cancel_jobs": True})
    guard, gone = run.named("slurm-removal"), run.named("slurm-gone")
    for each, step in ((guard, "before-removal"), (gone, "after-removal")):
        assert "create" not in each.inputs
        assert str(each.inputs["delete"]).endswith(f"-m busbar step slurm_k8s {step}")
    assert json.loads(guard.inputs["stdin"]) == {"namespace": "slurm", "cancel_jobs": True}
    for each in (run.named("slurm-release"), *run.of_type(SECRET)):
        assert run.waits_for(guard, each), each.name
    assert run.waits_for(run.named("slurm-release"), gone)
    assert run.waits_for(gone, run.named("slurm-operator-release"))
    kept = [each.name for each in run.of_type(NAMESPACE) if each.request.retainOnDelete]
    assert kept == ["slurm-namespace"]


def test_the_steps_of_an_update_know_the_workers_and_what_is_configured_of_it() -> None:
    run = up(update={"max_unavailable": 2, "job_seconds": 0})
    for name, step in (("slurm-change", "before-change"), ("slurm-roll", "roll")):
        found = json.loads(run.named(name).inputs["stdin"])
        assert str(run.named(name).inputs["create"]).endswith(f"-m busbar step slurm_k8s {step}")
        assert found["workers"] == {"h100": ["gpu-1", "gpu-2"]}
        assert (found.get("max_unavailable"), found.get("job_seconds", 0)) == (2, 0)
        assert found["gres_conf"] == "AutoDetect=nvidia\n"


def test_a_step_runs_again_when_what_it_depends_on_changes_and_not_otherwise() -> None:
    def triggers(name: str, **changes: Any) -> Any:
        return up(**changes).named(name).inputs["triggers"]

    assert triggers("slurm-ready") == triggers("slurm-ready", timeout_seconds=900)
    for name, changes in (
        ("slurm-ready", {"probe": {"run": 2}}),
        ("slurm-ready", {"slurm_conf": {"DefMemPerCPU": "100"}}),
        ("slurm-change", {"image_tag": "x"}),
        # slurmdbd reads its password when it starts.
        ("slurm-roll", {"accounting": {"host": "db"}, "secrets": ("databasePassword",)}),
        # A cluster that was made anew.
        ("slurm-nccl-h100", {"uid": "2"}),
    ):
        assert triggers(name) != triggers(name, **changes), (name, changes)


def test_the_outputs_name_the_nodes_and_partitions_and_what_was_measured() -> None:
    run = up()
    assert run.outputs["slurm_ready"] is True
    assert run.outputs["slurm_partitions"] == {"h100": "gpu:h100:8"}
    assert run.outputs["login_service"] == "slurm/slurm-login-slinky:22"
    found = [run.outputs[f"slurm_nccl_{name}"] for name in ("passed", "busbw_gbps", "reasons")]
    assert found == [True, 480.0, []]
    text = shown(run)
    assert "PASS  2 nodes are in Slurm, and jobs get their GPUs" in text and "480" in text
    assert "probe  h100: the last one passed at 2026-11-29T08:00:00+00:00 on 2 nodes" in text


def shown(run: Run) -> str:
    return cli.shown(summary(run.outputs))


def test_the_outputs_claim_nothing_of_jobs_where_no_probe_ran() -> None:
    skipped = {**PROBED, "skipped": "partition h100 is closed (PartitionDown)"}
    run = up(printed={**READY, "probes": {"h100": skipped}})
    assert run.error is None
    assert run.outputs["slurm_probes"] == {"h100": skipped}
    text = shown(run)
    assert "jobs get their GPUs" not in text
    assert "probe  h100: none ran: partition h100 is closed (PartitionDown); the last one passed at" in text


def test_every_update_with_a_gate_ends_with_the_question_whether_slurm_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(frame, "check_after_deletions", lambda _, made, ready: asked.append((made, ready)))
    assert up(probe={"run": 98}).error is None
    assert up(probe={"run": 99, "enforce": False}).error is None
    (made, ready), (_, without) = asked
    assert {each.release for each in made} >= {"slurm-operator-crds", "slurm-operator", "slurm"}
    [problem] = ready(cluster := SlurmCluster(node("h100-0")))
    assert (problem.host, problem.what) == ("gpu-2", "no node of Slurm")
    assert cluster.submitted == [], "it runs no job"
    assert without is None


def test_a_volume_that_cannot_be_changed_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim = {"spec": {"resources": {"requests": {"storage": "4Gi"}}}}
    controller = "/apis/apps/v1/namespaces/slurm/statefulsets/slurm-controller"
    api = SlurmCluster(objects={controller: {"spec": {"volumeClaimTemplates": [claim]}}})

    async def refuse(_: object, look: Any) -> None:
        raise pulumi.RunError("\n".join(map(str, look(api))))

    monkeypatch.setattr(frame, "refuse_changes", refuse)
    run = up(state={"size": "9Gi"})
    assert "state.size cannot be changed: the cluster was made with 4Gi, the file says 9Gi" in str(run.error)
    assert created(run) == []


def test_an_update_measures_the_nodes_that_are_ready_without_those_that_a_person_has_drained() -> None:
    step = up().named("slurm-nccl-h100")
    assert str(step.inputs["create"]).endswith("-m busbar step slurm_k8s measure")
    assert json.loads(step.inputs["stdin"])["nodes"] == READY["nodes"]
    drained = {**READY, "drained": {"gpu-2": "ticket 12"}}
    run = up(printed=drained, measured={**PASSED, "nodes_measured": ["h100-0"]})
    assert run.error is None
    assert json.loads(run.named("slurm-nccl-h100").inputs["stdin"])["nodes"] == {"gpu-1": "h100-0"}


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        ({"format": FORMAT, "verdict": "fail", "reasons": ["busbw is 12 GB/s"]}, "busbw is 12 GB/s"),
        ({"format": FORMAT, "verdict": "unknown", "reasons": ["the log was lost"]}, "the log was lost"),
        ({**PASSED, "nodes_measured": ["h100-0"]}, "1 of 2 workers were measured; not: gpu-2"),
        ({"broken": 1}, "cannot be read"),
    ],
)
def test_a_measurement_that_is_not_a_pass_fails_the_update(measured: Any, reason: str) -> None:
    run = up(measured=measured)
    assert isinstance(run.error, pulumi.RunError)
    assert reason in str(run.error)
    assert (run.outputs["slurm_nccl_passed"], run.outputs["slurm_ready"]) == (False, False)
    assert up(measured=measured, probe={"enforce": False}).error is None


def test_an_update_measures_again_for_its_number_an_image_nodes_or_operators_and_not_for_other_keys() -> None:
    def asked(**config: Any) -> Any:
        return up(**config).named("slurm-nccl-h100").inputs["stdin"]

    assert asked() == asked(slurm_conf={"DefMemPerCPU": "100"})
    assert len({asked(), asked(probe={"run": 2}), asked(image_tag="x"), asked(printed=NOT_READY)}) == 4
    newer = {"k3s_version": "v1.35.7+k3s1"}, {"versions": {"gpu_operator": "v26.7.1"}}
    assert len({asked(), *(asked(of_cluster={**outputs(), **each}) for each in newer)}) == 3
    assert asked() == asked(of_cluster={**outputs(), "versions": {"nccl": "2.28.3"}})
    run = up(probe={"measure": False})
    assert run.error is None and not [each for each in run.custom if each.name == "slurm-nccl-h100"]
    assert run.outputs["slurm_nccl_reasons"] == ["not measured: probe.measure is false"]
    assert run.outputs["slurm_nccl_passed"] is False
