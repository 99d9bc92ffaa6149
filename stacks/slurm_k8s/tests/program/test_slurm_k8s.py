"""stacks/slurm_k8s under mocks: what it puts on a cluster that passed, in which order; others are refused."""

from __future__ import annotations

import json
from functools import cache
from io import StringIO
from itertools import pairwise
from typing import Any

import pulumi
import pytest
from pulumi.runtime import mocks
from rich.console import Console

from busbar.components import frame
from busbar.outputs.contract import FORMAT
from stacks.slurm_k8s.capability import GATE
from stacks.slurm_k8s.package.outputs import summary
from stacks.slurm_k8s.package.values import DATABASE_KEY, JWT_KEY, SLURM_KEY
from stacks.slurm_k8s.tests.support import CLUSTER, SlurmCluster, configured, node
from tests.program.answers import KUBECONFIG
from tests.program.harness import LOCAL, PROVIDER, RELEASE, ROOT, STASH, Resource, Run, run_program, texts
from tests.support.measured import outputs
from tests.support.verdicts import failing

SECRET = "kubernetes:core/v1:Secret"
PASSWORD = "MOCK-PASSWORD"
PROBED = {"passed_at": "2026-11-29T08:00:00+00:00", "nodes": 2, "skipped": ""}
READY = {
    "passed": True, "reasons": [], "nodes": {"gpu-1": "h100-0", "gpu-2": "h100-1"}, "drained": {},
    "probes": {"h100": PROBED},
}  # fmt: skip
PASSED = {
    "format": FORMAT,
    "verdict": "pass",
    "busbw_gbps": 480.0,
    "expected_gbps": 450.0,
    "nodes_measured": ["h100-0", "h100-1"],
}
NOT_READY = {**READY, "passed": False, "reasons": ["gpu-2: no node of Slurm"]}


def up(
    of_fabric: dict[str, Any] | None = None,
    *,
    printed: Any = None,
    measured: Any = None,
    preview: bool = False,
    secrets: tuple[str, ...] = (),
    uid: str = "1",
    **config: Any,
) -> Run:
    """Run the program on the outputs of a stack; `printed` by the step `ready`, `measured` by the
    step `measure`."""
    state = {"outputs": {**outputs(of_fabric), "kubeconfig": KUBECONFIG}, "secretOutputNames": ["kubeconfig"]}
    asked = {"busbar-slurm_k8s:slurm_k8s": json.dumps(configured(**config))}
    texts = (json.dumps(each) for each in (state, printed or READY, measured or PASSED, asked))
    return _run(*texts, uid, preview=preview, secrets=secrets)


@cache
def _run(
    state: str, printed: str, measured: str, config: str, uid: str, *, preview: bool, secrets: tuple[str, ...]
) -> Run:
    def answer(args: mocks.MockResourceArgs) -> dict[str, Any]:
        if args.typ == LOCAL:
            known = {"slurm-ready": printed, "slurm-nccl-h100": measured}
            return {"stdout": known.get(args.name, "{}"), "stderr": ""}
        if args.typ == "random:index/randomPassword:RandomPassword":
            return {"result": PASSWORD}
        if args.typ == "kubernetes:core/v1:Namespace":
            return {"metadata": {**args.inputs["metadata"], "uid": uid}}
        return json.loads(state) if args.typ == "pulumi:pulumi:StackReference" else {}

    return run_program(
        {},
        answer,
        preview=preview,
        program=ROOT / "stacks" / "slurm_k8s" / "__main__.py",
        project="busbar-slurm_k8s",
        config=json.loads(config),
        secrets=dict.fromkeys(secrets, PASSWORD),
    )


def created(run: Run) -> list[Resource]:
    return [each for each in run.custom if each.type not in ("pulumi:pulumi:StackReference", PROVIDER, STASH)]


def test_nothing_is_made_before_the_survey_and_each_part_after_the_one_that_it_needs() -> None:
    run = up()
    assert run.error is None
    survey = run.named("survey")
    for each in created(run):
        assert each.name == "survey" or run.waits_for(each, survey), each.name
    order = [
        "slurm-crds-release",
        "slurm-operator-release",
        "slurm-webhook",
        "slurm-release",
        "slurm-roll",
        "slurm-ready",
    ]
    for earlier, later in pairwise(order):
        assert run.waits_for(run.named(later), run.named(earlier)), later


def test_the_three_charts_have_one_version_and_releases_of_their_own() -> None:
    run = up()
    found = {each.inputs["name"]: each.inputs for each in run.of_type(RELEASE)}
    assert set(found) == {"slurm-operator-crds", "slurm-operator", "slurm"}
    for name, release in found.items():
        assert release["chart"] == f"oci://ghcr.io/slinkyproject/charts/{name}"
        assert release["version"] == "1.2.1"


def test_the_keys_are_of_the_state_in_secrets_that_the_pods_wait_for_and_nowhere_in_clear() -> None:
    run = up()
    found = {each.inputs["metadata"]["name"]: each for each in run.of_type(SECRET)}
    assert {name: set(each.inputs["stringData"]) for name, each in found.items()} == {
        SLURM_KEY: {"slurm.key"},
        JWT_KEY: {"jwt.key"},
    }
    for secret in found.values():
        assert run.waits_for(secret, run.named("slurm-namespace"))
        assert run.waits_for(run.named("slurm-ready"), secret)
    for each in run.custom:
        assert not [path for path, text, hidden in texts(each.raw) if PASSWORD in text and not hidden], (
            each.name
        )


def test_the_namespace_with_slurmctld_s_volume_stays_at_a_destroy_and_no_other_does() -> None:
    run = up()
    kept = {each.name for each in run.of_type("kubernetes:core/v1:Namespace") if each.request.retainOnDelete}
    assert kept == {"slurm-namespace"}


def test_a_destroy_asks_for_jobs_before_it_removes_slurm_and_its_keys() -> None:
    run = up(removal={"cancel_jobs": True})
    guard = run.named("slurm-removal")
    assert "create" not in guard.inputs
    assert str(guard.inputs["delete"]).endswith("-m busbar step slurm_k8s before-removal")
    assert json.loads(guard.inputs["stdin"]) == {"namespace": "slurm", "cancel_jobs": True}
    for each in (run.named("slurm-release"), *run.of_type(SECRET)):
        assert run.waits_for(guard, each), each.name


def test_the_operator_is_removed_after_the_pods_of_slurm_are_gone() -> None:
    run = up()
    gone = run.named("slurm-gone")
    assert str(gone.inputs["delete"]).endswith("-m busbar step slurm_k8s after-removal")
    assert run.waits_for(run.named("slurm-release"), gone)
    assert run.waits_for(gone, run.named("slurm-operator-release"))


def test_values_change_only_after_slurmrestd_was_seen_ready() -> None:
    run = up()
    assert run.waits_for(run.named("slurm-release"), run.named("slurm-change"))
    before, after = (each.named("slurm-change").inputs["triggers"] for each in (up(), up(image_tag="x")))
    assert before != after


def test_the_steps_of_an_update_know_the_workers_and_what_is_configured_of_it() -> None:
    run = up(update={"max_unavailable": 2, "job_seconds": 0})
    for name, step in (("slurm-change", "before-change"), ("slurm-roll", "roll")):
        found = json.loads(run.named(name).inputs["stdin"])
        assert str(run.named(name).inputs["create"]).endswith(f"-m busbar step slurm_k8s {step}")
        assert found["workers"] == {"h100": ["gpu-1", "gpu-2"]}
        assert (found.get("max_unavailable"), found.get("job_seconds", 0)) == (2, 0)
        assert found["gres_conf"] == "AutoDetect=nvidia\n"


def test_the_wait_runs_again_when_values_or_its_number_change_and_not_otherwise() -> None:
    def triggers(**config: Any) -> Any:
        return up(**config).named("slurm-ready").inputs["triggers"]

    assert triggers() == triggers(timeout_seconds=900)
    assert triggers() != triggers(probe={"run": 2})
    assert triggers() != triggers(slurm_conf={"DefMemPerCPU": "100"})
    assert f"contract {GATE.contract}" in triggers()


def test_the_outputs_name_the_nodes_and_partitions() -> None:
    run = up()
    assert run.outputs["slurm_ready"] is True
    assert run.outputs["slurm_partitions"] == {"h100": "gpu:h100:8"}
    assert run.outputs["login_service"] == "slurm/slurm-login-slinky:22"
    assert "PASS  2 nodes are in Slurm, and jobs get their GPUs" in shown(run)
    assert "probe  h100: the last one passed at 2026-11-29T08:00:00+00:00 on 2 nodes" in shown(run)


def shown(run: Run) -> str:
    console = Console(width=200, file=StringIO())
    console.print(summary(run.outputs))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_the_outputs_claim_nothing_of_jobs_where_no_probe_ran() -> None:
    skipped = {**PROBED, "skipped": "partition h100 is closed (PartitionDown)"}
    run = up(printed={**READY, "probes": {"h100": skipped}})
    assert run.error is None
    assert run.outputs["slurm_probes"] == {"h100": skipped}
    text = shown(run)
    assert "jobs get their GPUs" not in text
    assert "probe  h100: none ran: partition h100 is closed (PartitionDown); the last one passed at" in text


def test_nodes_that_are_not_ready_fail_the_update_after_its_outputs_are_exported() -> None:
    run = up(printed=NOT_READY)
    assert isinstance(run.error, pulumi.RunError)
    assert "Slurm is not ready for cluster site:\n  - gpu-2: no node of Slurm" in str(run.error)
    assert run.outputs["slurm_reasons"] == ["gpu-2: no node of Slurm"]
    assert up(printed=NOT_READY, probe={"enforce": False}).error is None


def test_every_update_with_a_gate_ends_with_the_question_whether_slurm_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(frame, "check_after_deletions", lambda _, made, ready: asked.append((made, ready)))
    assert up(probe={"run": 98}).error is None
    assert up(probe={"run": 99, "enforce": False}).error is None
    (made, ready), (_, without) = asked
    assert [each.release for each in made if each.release] == [
        "slurm-operator-crds",
        "slurm-operator",
        "slurm",
    ]
    [problem] = ready(SlurmCluster(node("h100-0")))
    assert (problem.host, problem.what) == ("gpu-2", "no node of Slurm")
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


def test_an_answer_that_cannot_be_read_is_not_a_pass() -> None:
    run = up(printed="broken")
    assert run.outputs["slurm_ready"] is False
    assert "cannot be read" in run.outputs["slurm_reasons"][0]


def test_an_update_measures_the_nodes_that_are_ready_and_its_outputs_are_those_of_plain_hosts() -> None:
    run = up()
    step = run.named("slurm-nccl-h100")
    assert run.waits_for(step, run.named("slurm-ready"))
    assert str(step.inputs["create"]).endswith("-m busbar step slurm_k8s measure")
    assert json.loads(step.inputs["stdin"])["nodes"] == READY["nodes"]
    found = {name: value for name, value in run.outputs.items() if name.startswith("slurm_nccl_")}
    assert found["slurm_nccl_passed"] is True and found["slurm_nccl_busbw_gbps"] == 480.0
    assert found["slurm_nccl_reasons"] == []
    assert "480" in shown(run)


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


def test_a_node_that_a_person_has_drained_is_not_measured_and_fails_nothing() -> None:
    drained = {**READY, "drained": {"gpu-2": "ticket 12"}}
    run = up(printed=drained, measured={**PASSED, "nodes_measured": ["h100-0"]})
    assert run.error is None
    assert json.loads(run.named("slurm-nccl-h100").inputs["stdin"])["nodes"] == {"gpu-1": "h100-0"}


def test_an_update_measures_again_for_its_number_an_image_or_nodes_and_not_for_other_keys() -> None:
    def asked(**config: Any) -> Any:
        return up(**config).named("slurm-nccl-h100").inputs["stdin"]

    assert asked() == asked(slurm_conf={"DefMemPerCPU": "100"})
    assert len({asked(), asked(probe={"run": 2}), asked(image_tag="x"), asked(printed=NOT_READY)}) == 4


def test_a_cluster_that_was_made_anew_is_measured_again() -> None:
    before, again = (up(uid=uid).named("slurm-nccl-h100").inputs["triggers"] for uid in ("1", "2"))
    assert before != again


def test_without_a_measurement_there_is_a_reason_and_the_update_succeeds() -> None:
    run = up(probe={"measure": False})
    assert run.error is None
    assert not [each for each in run.custom if each.name == "slurm-nccl-h100"]
    assert run.outputs["slurm_nccl_reasons"] == ["not measured: probe.measure is false"]
    assert run.outputs["slurm_nccl_passed"] is False


def test_a_cluster_that_failed_is_refused_with_its_reasons_and_nothing_is_created() -> None:
    run = up(failing("GDRDMA is missing on 3 channels"))
    assert isinstance(run.error, pulumi.RunError)
    assert "GDRDMA is missing on 3 channels" in str(run.error)
    assert f"run `pulumi up` on {CLUSTER}" in str(run.error)
    assert created(run) == []


def test_an_invalid_configuration_is_refused_before_the_cluster_is_asked() -> None:
    run = up(login={"service": "LoadBalancer"})
    assert "takes port 22 of the hosts" in str(run.error)
    assert run.custom == []


def test_a_chart_of_a_folder_has_no_version() -> None:
    release = up(charts="./charts").named("slurm-release")
    assert release.inputs["chart"] == "./charts/slurm"
    assert "version" not in release.inputs


def test_a_preview_of_a_new_stack_needs_nothing_of_the_cluster() -> None:
    assert up(preview=True).error is None


def test_the_password_of_the_database_is_in_a_secret_that_the_pods_wait_for() -> None:
    run = up(accounting={"host": "db"}, secrets=("databasePassword",))
    assert run.error is None
    found = {each.inputs["metadata"]["name"]: each for each in run.of_type(SECRET)}
    assert found[DATABASE_KEY].inputs["stringData"] == {"password": PASSWORD}
    assert run.waits_for(run.named("slurm-ready"), found[DATABASE_KEY])
    for each in run.custom:
        assert not [path for path, text, hidden in texts(each.raw) if PASSWORD in text and not hidden]


def test_a_database_without_a_password_is_refused_with_the_command_that_sets_it() -> None:
    run = up(accounting={"host": "db"})
    assert "Fix: pulumi config set --secret busbar-slurm_k8s:databasePassword" in str(run.error)
