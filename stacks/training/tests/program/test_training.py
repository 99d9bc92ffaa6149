"""stacks/training under mocks: what it puts on a cluster that passed, and that it refuses any other."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pulumi
import pytest
from pulumi.runtime import mocks

from busbar.collect.spec import GRACE_SECONDS
from busbar.manifests.names import digest
from stacks.training.capability import CAPABILITY, GATE
from stacks.training.package.outputs import summarize
from stacks.training.tests.support import CLUSTER, configured
from stacks.training.tests.unit.made import first, verdict
from tests.program.answers import CLIENT_KEY, KUBECONFIG
from tests.program.harness import LOCAL, PROVIDER, RELEASE, ROOT, Run, run_program, texts
from tests.support.measured import outputs
from tests.support.verdicts import failing

NAMESPACE = "kubernetes:core/v1:Namespace"
JOB = "kubernetes:batch/v1:Job"
RAIL = {
    "name": "rails",
    "type": "host-device",
    "resource": "nvidia.com/hostdev",
    "subnet": "192.168.20.0/24",
}


def up(
    of_fabric: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    *,
    printed: str | None = None,
    more: dict[str, str] | None = None,
    preview: bool = False,
    uid: str = "1",
    **change: Any,
) -> Run:
    """Run the program against the outputs of a stack; `printed` by the collecting command, else a pass.

    `more`: keys beside the configuration; `change`: outputs to replace.
    """
    of_stack = {**outputs(of_fabric), "kubeconfig": KUBECONFIG, **change}
    state = {"outputs": of_stack, "secretOutputNames": ["kubeconfig"]}
    said = json.dumps(summarize(verdict())) if printed is None else printed
    asked = {
        "busbar-training:training": json.dumps(configured() if config is None else config),
        **(more or {}),
    }
    return _run(json.dumps(state), said, preview, uid, json.dumps(asked))


@cache
def _run(state: str, said: str, preview: bool, uid: str, config: str) -> Run:
    def answer(args: mocks.MockResourceArgs) -> dict[str, Any]:
        if args.typ == LOCAL:
            return {"stdout": said, "stderr": ""}
        if args.typ == RELEASE:
            return (
                {"status": {"version": f"{args.inputs['version']}-found"}} if "version" in args.inputs else {}
            )
        if args.typ in (CLAIM, JOB):
            return {"metadata": {**args.inputs["metadata"], "uid": uid}}
        return json.loads(state) if args.typ == "pulumi:pulumi:StackReference" else {}

    program = ROOT / "stacks" / "training" / "__main__.py"
    asked = json.loads(config)
    return run_program({}, answer, preview=preview, program=program, project="busbar-training", config=asked)


def on_two_pools(**config: Any) -> Run:
    """A run on a cluster of the pools a and b, of one worker and of two."""
    return up(config=configured(**config), **{**outputs(workers={"a": 1, "b": 2}), "kubeconfig": KUBECONFIG})


def created(run: Run) -> list[str]:
    """What was registered besides the stack and the reference."""
    return [each.type for each in run.custom if each.type != "pulumi:pulumi:StackReference"]


def test_a_cluster_that_passed_gets_a_namespace_whose_pods_may_lock_memory() -> None:
    run = up()
    assert run.error is None
    [namespace] = run.of_type(NAMESPACE)
    assert namespace.inputs["metadata"]["name"] == "busbar-training"
    assert namespace.inputs["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


@pytest.mark.parametrize(
    "config", [{}, {"trainer": {"enabled": True}}, {"networks": {"h100": [RAIL]}}], ids=str
)
def test_a_cluster_that_failed_is_refused_with_its_reasons_and_nothing_is_created(
    config: dict[str, Any],
) -> None:
    run = up(failing("GDRDMA is missing on 3 channels"), configured(**config))
    assert isinstance(run.error, pulumi.RunError)
    assert "GDRDMA is missing on 3 channels" in str(run.error)
    assert created(run) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"config": {"cluster": "prod"}},
            "invalid configuration of stack test:\ncluster: 'prod' is not a stack",
        ),
        (
            {"more": {"busbar-training:trainning": "x"}},
            "busbar-training:trainning: unknown key; did you mean 'training'?",
        ),
        ({"contract_version": 1}, f"{CLUSTER}: unsupported contract_version 1"),
    ],
    ids=["configuration", "key", "contract"],
)
def test_what_cannot_be_read_is_refused_and_nothing_is_created(change: dict[str, Any], said: str) -> None:
    run = up(**change)
    assert isinstance(run.error, pulumi.RunError) and said in str(run.error)
    assert created(run) == []
    assert run.custom == [] or "contract_version" in change, "the cluster is not asked"


def test_what_is_allowed_but_probably_not_intended_is_a_warning_of_the_update() -> None:
    details = json.loads(json.loads(outputs()["details"]))
    details["pools"]["h100"]["topology_file"] = "topo.xml"
    run = up(details=json.dumps(json.dumps(details)))
    assert run.error is None
    assert [text for text in run.messages if "NCCL topology file topo.xml" in text], run.messages


def test_the_cluster_is_identified_by_its_id_and_a_namespace_is_claimed_before_it_is_adopted() -> None:
    run = up(cluster_id="a1")
    [provider] = run.of_type(PROVIDER)
    assert run.named("cluster-id").inputs["input"]["id"] == provider.inputs["clusterIdentifier"] == "a1"
    for namespace in run.of_type(NAMESPACE):
        assert list(namespace.request.hooks.before_create) == [f"{namespace.name}-claim"]


def test_the_provider_adopts_what_an_interrupted_update_made_and_keeps_the_kubeconfig_secret() -> None:
    [provider] = up().of_type(PROVIDER)
    assert provider.inputs["upsertExistingObjects"] == "true"
    assert all(secret for path, _, secret in texts(provider.raw) if path == "kubeconfig")


def test_a_run_that_passed_exports_training_passed() -> None:
    run = up()
    assert run.error is None
    assert run.outputs["training_passed"] is True
    assert run.outputs["training"]["h100"]["verdict"] == "pass"


@pytest.mark.parametrize(
    "printed", [json.dumps(summarize(verdict(first()))), "Traceback"], ids=["fail", "none"]
)
def test_a_run_without_a_pass_fails_the_update_after_its_outputs_are_exported(printed: str) -> None:
    run = up(printed=printed)
    assert isinstance(run.error, pulumi.RunError)
    assert "training run failed for cluster site" in str(run.error)
    assert run.outputs["training_passed"] is False


def test_without_the_gate_a_failed_run_is_exported_and_the_update_succeeds() -> None:
    run = up(config=configured(proof={"enforce": False}), printed="{}")
    assert run.error is None
    assert run.outputs["training_passed"] is False


def test_without_the_proof_no_job_is_created() -> None:
    run = up(config=configured(proof={"enabled": False}))
    assert run.error is None
    assert run.of_type(JOB) == []
    assert run.outputs["training_passed"] is False


def test_the_log_is_collected_after_the_job_is_there_and_the_job_after_its_program() -> None:
    run = up()
    collect, job = run.named("training-h100-collect"), run.named("training-h100-job")
    assert run.waits_for(collect, job)
    assert run.waits_for(job, run.named("training-h100-program"))
    assert run.waits_for(job, run.named("training-h100-service"))


def test_a_job_never_changes_under_its_name_and_a_changed_one_waits_for_the_gpus_of_the_old() -> None:
    job, program = up().named("training-h100-job"), up().named("training-h100-program")
    assert job.request.deleteBeforeReplace
    assert list(job.request.ignoreChanges) == ["spec"]
    assert list(program.request.ignoreChanges) == ["data"]
    assert job.inputs["metadata"]["name"] == program.inputs["metadata"]["name"]


def test_the_log_is_collected_of_that_job_until_after_its_deadline_in_a_folder_of_the_pool() -> None:
    run = up()
    spec = json.loads(run.named("training-h100-collect").inputs["stdin"])
    del spec["expectation"]
    name = run.named("training-h100-job").inputs["metadata"]["name"]
    assert spec == {
        "namespace": "busbar-training", "job": name, "folder": ".busbar/test/h100",
        "deadline_seconds": 1200 + GRACE_SECONDS,
    }  # fmt: skip


def test_pools_are_trained_one_after_the_other_because_they_share_switches() -> None:
    run = on_two_pools()
    assert run.error is None
    assert run.waits_for(run.named("training-b-job"), run.named("training-a-collect"))


def test_a_command_runs_again_when_what_it_is_asked_changes() -> None:
    commands = on_storage(**CLASS).of_type(LOCAL)
    assert [each.name for each in commands] == ["storage-bind", "training-h100-collect"]
    for each in commands:
        assert digest(json.loads(each.inputs["stdin"])) in each.inputs["triggers"], each.name


def test_a_verdict_is_asked_for_again_when_its_contract_changes() -> None:
    assert f"contract {GATE.contract}" in up().named("training-h100-collect").inputs["triggers"]


def test_what_is_in_the_namespace_is_made_after_it_and_what_the_engine_may_skip_goes_with_it() -> None:
    run = up(config=configured(networks={"h100": [RAIL]}, storage=NFS))
    namespace = run.named("namespace")
    inside = [
        each
        for each in run.custom
        if (each.inputs.get("metadata") or {}).get("namespace") == "busbar-training"
    ]
    of_namespace = {each.name: each.request.deletedWith == namespace.urn for each in inside}
    assert of_namespace == {
        "networks-h100-rails": False,
        "storage-claim": True,
        "training-h100-program": True,
        "training-h100-service": True,
        "training-h100-job": True,
    }
    # Each by itself: what else it waits for may not be configured.
    assert [each.name for each in inside if namespace.urn not in each.ahead] == []
    assert run.waits_for(run.named("training-h100-job"), namespace)


def test_the_program_travels_as_it_is_in_the_repository_and_is_another_object_when_it_changes() -> None:
    assert up().named("training-h100-program").inputs["immutable"] is True
    data = up().named("training-h100-program").inputs["data"]
    folder = ROOT / "stacks" / "training" / "program"
    assert data == {path.name: path.read_text() for path in folder.glob("*.py")}
    assert "main.py" in data


def test_the_kubeconfig_reaches_the_command_as_a_secret_and_is_in_no_other_input() -> None:
    run = up()
    leaks = [
        (each.name, path)
        for each in run.custom
        for path, text, secret in texts(each.raw)
        if CLIENT_KEY in text and not secret
    ]
    assert leaks == []


# ---- Kubeflow Trainer ------------------------------------------------------------------------------------

RUNTIME = "kubernetes:trainer.kubeflow.org/v1alpha1:ClusterTrainingRuntime"


def test_what_is_not_configured_is_not_created() -> None:
    run = up()
    assert {RELEASE, RUNTIME, DEFINITION, CLAIM, VOLUME}.isdisjoint(created(run))
    assert run.outputs["runtimes"] == []
    for version in ("multus_version", "training_operator_version"):
        assert run.outputs.get(version) is None


def test_trainer_is_a_release_that_is_awaited_and_a_runtime_per_pool_after_it() -> None:
    run = up(config=configured(trainer={"enabled": True}))
    assert run.error is None
    [release], [runtime] = run.of_type(RELEASE), run.of_type(RUNTIME)
    assert (release.inputs["chart"], release.inputs["version"]) == (
        "oci://ghcr.io/kubeflow/charts/kubeflow-trainer", "2.3.0",
    )  # fmt: skip
    assert release.inputs["skipAwait"] is False
    assert release.inputs["values"]["runtimes"] == {"defaultEnabled": False}
    assert run.waits_for(runtime, release)
    assert run.outputs["runtimes"] == ["busbar-torch-h100"]


def test_every_pool_has_its_runtimes_which_are_outputs() -> None:
    run = on_two_pools(trainer={"enabled": True, "deepspeed": {"enabled": True}})
    names = ["busbar-torch-a", "busbar-torch-b", "busbar-deepspeed-b"]
    assert sorted(each.inputs["metadata"]["name"] for each in run.of_type(RUNTIME)) == sorted(names)
    assert run.outputs["runtimes"] == names


def test_the_outputs_have_the_versions_that_helm_has_installed() -> None:
    run = up(config=configured(trainer={"enabled": True}, networks={"h100": [RAIL]}))
    found = {key: value for key, value in run.outputs.items() if key.endswith("_version") and value}
    assert found == {
        "training_contract_version": 1, "trainer_version": "2.3.0-found",
        "multus_version": "v4.2.401-found",
    }  # fmt: skip


# ---- secondary networks ----------------------------------------------------------------------------------

DEFINITION = "kubernetes:k8s.cni.cncf.io/v1:NetworkAttachmentDefinition"


def test_multus_is_installed_at_k3s_s_paths_before_the_networks_and_these_before_the_job() -> None:
    run = up(config=configured(networks={"h100": [RAIL]}))
    assert run.error is None
    [release], [definition] = run.of_type(RELEASE), run.of_type(DEFINITION)
    assert (release.inputs["chart"], release.inputs["skipAwait"]) == ("rke2-multus", False)
    values = release.inputs["values"]
    folders = {
        "confDir": "/var/lib/rancher/k3s/agent/etc/cni/net.d",
        "binDir": "/var/lib/rancher/k3s/data/cni",
    }
    for found in (values["config"]["cni_conf"], values["rke2-whereabouts"]["cniConf"]):
        assert folders.items() <= found.items()
    assert values["rke2-whereabouts"]["namespaceOverride"] == release.inputs["namespace"]
    assert run.waits_for(definition, release)
    # At the end the namespace with its pods goes before Multus does.
    assert run.waits_for(run.named("namespace"), release)
    assert run.waits_for(run.named("training-h100-job"), definition)


def test_a_multus_of_another_tool_is_used_and_not_installed() -> None:
    run = up(config=configured(networks={"h100": [RAIL]}, multus={"enabled": False}))
    assert run.of_type(RELEASE) == []
    assert len(run.of_type(DEFINITION)) == 1


# ---- Training Operator v1 --------------------------------------------------------------------------------


def test_the_training_operator_is_a_release_of_the_archive_beside_the_program() -> None:
    asked = {"enabled": True, "init_image": "mirror/alpine:3"}
    run = up(config=configured(training_operator=asked))
    assert run.error is None
    [release] = run.of_type(RELEASE)
    chart = Path(release.inputs["chart"])  # from the folder of the run
    assert chart.resolve() == ROOT / "stacks" / "training" / "charts" / "training-operator-1.9.4.tgz"
    # A changed archive is an update only with its digest.
    assert release.inputs["description"].startswith("chart sha256:")
    image = "ghcr.io/kubeflow/training-v1/training-operator:v1-93c5489"
    assert release.inputs["values"] == {"image": image, "initContainerImage": "mirror/alpine:3"}
    assert release.inputs["skipAwait"] is False
    assert run.outputs["training_operator_version"] == "v1-93c5489"


def test_both_operators_are_releases_in_namespaces_of_their_own() -> None:
    run = up(config=configured(training_operator={"enabled": True}, trainer={"enabled": True}))
    names = {release.inputs["namespace"] for release in run.of_type(RELEASE)}
    assert names == {"kubeflow-system", "training-operator"}


# ---- Shared storage --------------------------------------------------------------------------------------

CLAIM = "kubernetes:core/v1:PersistentVolumeClaim"
VOLUME = "kubernetes:core/v1:PersistentVolume"
NFS = {"mode": "nfs", "nfs": {"server": "10.0.0.5", "export": "/srv"}}
CLASS = {"mode": "class", "class_name": "weka", "size": "10Ti"}


def on_storage(**storage: Any) -> Run:
    run = up(config=configured(storage=storage))
    assert run.error is None
    return run


def test_a_path_needs_no_object_of_storage() -> None:
    run = on_storage(mode="path", path="/mnt/shared")
    assert {CLAIM, VOLUME}.isdisjoint(created(run))
    assert run.outputs["storage"] == {"mode": "path"}


def test_the_job_starts_after_its_claim_is_bound() -> None:
    for storage in (NFS, CLASS):
        run = on_storage(**storage)
        [name] = CAPABILITY.waits  # `up --converge cluster` runs it again.
        bind = run.named(name)
        assert run.waits_for(bind, run.of_type(CLAIM)[0])
        assert run.waits_for(run.of_type(JOB)[0], bind)


def test_a_claim_that_was_made_again_under_its_name_is_waited_for_again() -> None:
    before, again = (up(config=configured(storage=NFS), uid=uid) for uid in ("1", "2"))
    assert before.named("storage-bind").inputs["triggers"] != again.named("storage-bind").inputs["triggers"]


def test_a_job_that_was_made_again_under_its_name_is_judged_again() -> None:
    before, again = (up(uid=uid).named("training-h100-collect") for uid in ("1", "2"))
    assert before.inputs["triggers"] != again.inputs["triggers"]


def test_the_claim_is_waited_for_with_a_worker_that_may_be_its_first_one() -> None:
    run = on_two_pools(storage={**CLASS, "bind_timeout_seconds": 77})
    assert json.loads(run.named("storage-bind").inputs["stdin"]) == {
        "namespace": "busbar-training",
        "claim": run.of_type(CLAIM)[0].inputs["metadata"]["name"],
        "class_name": "weka",
        "worker": "gpu-1",
        "deadline_seconds": 77,
    }


def test_the_claim_of_a_class_and_its_namespace_stay_when_the_stack_goes() -> None:
    run = up(config=configured(storage=CLASS))
    [claim], namespace = run.of_type(CLAIM), run.named("namespace")
    assert claim.request.retainOnDelete and namespace.request.retainOnDelete
    # A namespace that stays deletes nothing: what is in it must be deleted itself.
    assert [each.name for each in run.custom if each.request.deletedWith == namespace.urn] == []


def test_an_export_goes_last_when_no_pod_and_no_claim_uses_it() -> None:
    run = on_storage(**NFS)
    [volume], [claim], [namespace] = run.of_type(VOLUME), run.of_type(CLAIM), run.of_type(NAMESPACE)
    assert run.waits_for(namespace, volume) and run.waits_for(claim, volume)
    assert claim.request.deletedWith == namespace.urn
    assert not (claim.request.retainOnDelete or namespace.request.retainOnDelete)


def test_the_export_of_the_cluster_is_mounted_where_it_is_asked_for() -> None:
    asked = {"mode": "nfs", "nfs": {"from_cluster": True}}
    run = up(config=configured(storage=asked), nfs_server={"address": "10.0.0.9", "export": "/srv/busbar"})
    [volume] = run.of_type(VOLUME)
    assert volume.inputs["spec"]["nfs"] == {"server": "10.0.0.9", "path": "/srv/busbar"}


def test_the_claim_is_an_output_for_the_jobs_of_others() -> None:
    bound = json.dumps({"claim": "shared-1", "volume": "pv-1", "capacity": "10Ti"})
    run = up(config=configured(storage=CLASS, proof={"enforce": False}), printed=bound)
    assert run.outputs["storage"] == {
        "mode": "class", "namespace": "busbar-training", **json.loads(bound),
    }  # fmt: skip


def test_a_preview_of_storage_needs_nothing_that_only_an_update_knows() -> None:
    assert up(config=configured(storage=CLASS), preview=True).error is None
