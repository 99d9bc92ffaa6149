"""stacks/training under mocks: what it puts on a cluster that passed, in which order, and what stays."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from busbar.collect.spec import GRACE_SECONDS
from busbar.components.engine import helm
from busbar.manifests.names import digest
from stacks.training.capability import CAPABILITY
from stacks.training.package.networks import create_crd
from stacks.training.package.outputs import summarize
from stacks.training.tests.support import configured
from stacks.training.tests.unit.made import verdict
from tests.program.harness import LOCAL, RELEASE, ROOT, Run
from tests.program.on_cluster import NAMESPACE, created, run_on_cluster
from tests.support.measured import outputs

JOB = "kubernetes:batch/v1:Job"
RAIL = {"name": "rails", "type": "host-device", "resource": "nvidia.com/hostdev", "subnet": "192.168.20.0/24"}
HELM_VALUES = yaml.safe_load((ROOT / "helm_values" / "gpu-operator.yaml").read_text())
PASSED = json.dumps(summarize(verdict()))


def up(
    config: dict[str, Any] | None = None, *, printed: str = PASSED, change: Any = None, **more: Any
) -> Run:
    """Run the program; `printed` by its commands. `change`: outputs of the cluster to replace."""
    names = "storage-bind", *(f"training-{pool}-collect" for pool in ("a", "b", "h100"))
    of_cluster = {**outputs(), **(change or {})}
    commands = dict.fromkeys(names, printed)
    return run_on_cluster("training", configured(**(config or {})), commands, of_cluster=of_cluster, **more)


def on_two_pools(**config: Any) -> Run:
    """A run on a cluster of the pools a and b, of one worker and of two."""
    return up(config, change=outputs(workers={"a": 1, "b": 2}))


def test_a_run_that_passed_is_exported_and_what_is_probably_not_intended_is_a_warning_of_the_update() -> None:
    details = json.loads(json.loads(outputs()["details"]))
    details["pools"]["h100"]["topology_file"] = "topo.xml"
    run = up(change={"details": json.dumps(json.dumps(details))})
    assert run.error is None
    assert (run.outputs["training_passed"], run.outputs["training"]["h100"]["verdict"]) == (True, "pass")
    assert [text for text in run.messages if "NCCL topology file topo.xml" in text], run.messages


def test_without_the_proof_no_job_is_created() -> None:
    run = up({"proof": {"enabled": False}})
    assert run.error is None
    assert run.of_type(JOB) == []
    assert run.outputs["training_passed"] is False
    assert run.outputs["training_reasons"] == ["not trained: proof.enabled is false"]


def test_the_log_is_collected_of_the_job_until_after_its_deadline_and_the_job_follows_its_program() -> None:
    run = up()
    collect, job = run.named("training-h100-collect"), run.named("training-h100-job")
    assert run.waits_for(collect, job)
    assert run.waits_for(job, run.named("training-h100-program"))
    assert run.waits_for(job, run.named("training-h100-service"))
    spec = json.loads(collect.inputs["stdin"])
    del spec["expectation"]
    assert spec == {
        "namespace": "busbar-training", "job": job.inputs["metadata"]["name"], "folder": ".busbar/test/h100",
        "deadline_seconds": 1200 + GRACE_SECONDS,
    }  # fmt: skip


def test_a_job_never_changes_under_its_name_and_a_changed_one_waits_for_the_gpus_of_the_old() -> None:
    job, program = up().named("training-h100-job"), up().named("training-h100-program")
    assert job.request.deleteBeforeReplace
    assert list(job.request.ignoreChanges) == ["spec"]
    assert list(program.request.ignoreChanges) == ["data"]
    assert job.inputs["metadata"]["name"] == program.inputs["metadata"]["name"]


def test_pools_are_trained_one_after_the_other_because_they_share_switches() -> None:
    run = on_two_pools()
    assert run.error is None
    assert run.waits_for(run.named("training-b-job"), run.named("training-a-collect"))


def test_a_command_runs_again_when_what_it_is_asked_changes() -> None:
    at_removal, *commands = on_storage(**CLASS).of_type(LOCAL)
    assert [each.name for each in commands] == ["storage-bind", "training-h100-collect"]
    assert (at_removal.name, "create" in at_removal.inputs) == ("namespace-removal", False)
    for each in commands:
        assert digest(json.loads(each.inputs["stdin"])) in each.inputs["triggers"], each.name


def test_what_is_in_the_namespace_is_made_after_it_and_what_the_engine_may_skip_goes_with_it() -> None:
    run = up({"networks": {"h100": [RAIL]}, "storage": NFS})
    namespace = run.named("namespace")
    spaces = [(each, (each.inputs.get("metadata") or {}).get("namespace")) for each in run.custom]
    inside = [each for each, space in spaces if space == "busbar-training"]
    kept = [each.name for each in inside if each.request.deletedWith != namespace.urn]
    assert (kept, len(inside)) == (["networks-h100-rails"], 5)
    # Each by itself: what else it waits for may not be configured.
    assert [each.name for each in inside if namespace.urn not in each.ahead] == []
    assert namespace.inputs["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


def test_the_program_travels_as_it_is_in_the_repository_and_is_another_object_when_it_changes() -> None:
    assert up().named("training-h100-program").inputs["immutable"] is True
    data = up().named("training-h100-program").inputs["data"]
    folder = ROOT / "stacks" / "training" / "program"
    assert data == {path.name: path.read_text() for path in folder.glob("*.py")}
    assert "main.py" in data


RUNTIME = "kubernetes:trainer.kubeflow.org/v1alpha1:ClusterTrainingRuntime"


def test_what_is_not_configured_is_not_created() -> None:
    run = up({"storage": {"mode": "path", "path": "/mnt/shared"}})
    assert {RELEASE, RUNTIME, DEFINITION, CLAIM, VOLUME}.isdisjoint(each.type for each in created(run))
    assert (run.outputs["runtimes"], run.outputs["storage"]) == ([], {"mode": "path"})
    for version in ("multus_version", "training_operator_version"):
        assert run.outputs.get(version) is None


def test_trainer_is_a_release_that_is_awaited_and_every_pool_has_its_runtimes_after_it() -> None:
    run = on_two_pools(trainer={"enabled": True, "deepspeed": {"enabled": True}})
    assert run.error is None
    [release] = run.of_type(RELEASE)
    assert release.inputs["skipAwait"] is False
    values = release.inputs["values"]
    assert values["runtimes"] == {"defaultEnabled": False}
    of_servers = HELM_VALUES["operator"]["tolerations"]  # where all workers have taints
    assert values["manager"]["tolerations"] == values["jobset"]["controller"]["tolerations"] == of_servers
    names = ["busbar-torch-a", "busbar-torch-b", "busbar-deepspeed-b"]
    assert sorted(each.inputs["metadata"]["name"] for each in run.of_type(RUNTIME)) == sorted(names)
    assert all(run.waits_for(runtime, release) for runtime in run.of_type(RUNTIME))
    assert (run.outputs["runtimes"], run.outputs["trainer_version"]) == (names, "2.3.0-found")
    # Jobs are asked for before anything of Trainer is deleted.
    guard = run.named("kubeflow-trainer-removal")
    assert guard.inputs["delete"].endswith("step training before-removal") and "create" not in guard.inputs
    namespace = run.named("namespace")
    assert all(run.waits_for(guard, each) for each in (release, namespace, *run.of_type(RUNTIME)))


DEFINITION = "kubernetes:k8s.cni.cncf.io/v1:NetworkAttachmentDefinition"


def test_multus_is_installed_at_k3s_s_paths_before_the_networks_and_these_before_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hooks = Mock(wraps=helm.create_recovery_hooks)
    monkeypatch.setattr(helm, "create_recovery_hooks", hooks)
    run = up({"networks": {"h100": [RAIL]}})
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
    assert values["rke2-whereabouts"]["tolerations"] == [{"operator": "Exists"}], "for NoExecute too"
    assert values["manifests"]["customResourceDefinition"] is False, "the Network Operator's may be there"
    assert create_crd in hooks.call_args.args
    assert run.waits_for(definition, release)
    # At the end the namespace with its pods goes before Multus does.
    assert run.waits_for(run.named("namespace"), release)
    assert run.waits_for(run.named("training-h100-job"), definition)
    assert run.outputs["multus_version"] == "v4.2.401-found"
    # That of another tool is used.
    theirs = up({"networks": {"h100": [RAIL]}, "multus": {"enabled": False}})
    assert (theirs.of_type(RELEASE), len(theirs.of_type(DEFINITION))) == ([], 1)


def test_the_training_operator_is_a_release_of_the_archive_beside_the_program() -> None:
    asked = {"enabled": True, "init_image": "mirror/alpine:3"}
    run = up({"training_operator": asked, "trainer": {"enabled": True}})
    assert run.error is None
    found = {each.inputs["namespace"]: each.inputs for each in run.of_type(RELEASE)}
    assert set(found) == {"kubeflow-system", "training-operator"}
    release = found["training-operator"]
    chart = Path(release["chart"])  # from the folder of the run
    assert chart.resolve() == ROOT / "stacks" / "training" / "charts" / "training-operator-1.9.4.tgz"
    # A changed archive is an update only with its digest.
    assert release["description"].startswith("chart sha256:")
    image = "ghcr.io/kubeflow/training-v1/training-operator:v1-93c5489"
    assert release["values"] == {"image": image, "initContainerImage": "mirror/alpine:3"}
    assert release["skipAwait"] is False
    assert run.outputs["training_operator_version"] == "v1-93c5489"
    assert run.outputs["runtimes"] == ["busbar-torch-h100"], "that for mpirun must be asked for"


CLAIM = "kubernetes:core/v1:PersistentVolumeClaim"
VOLUME = "kubernetes:core/v1:PersistentVolume"
NFS = {"mode": "nfs", "nfs": {"server": "10.0.0.5", "export": "/srv"}}
CLASS = {"mode": "class", "class_name": "weka", "size": "10Ti"}


def on_storage(**storage: Any) -> Run:
    run = up({"storage": storage})
    assert run.error is None
    return run


def test_the_job_starts_after_its_claim_is_bound() -> None:
    for storage in (NFS, CLASS):
        run = on_storage(**storage)
        [name] = CAPABILITY.waits  # `up --converge cluster` runs it again.
        bind = run.named(name)
        assert run.waits_for(bind, run.of_type(CLAIM)[0])
        assert run.waits_for(run.of_type(JOB)[0], bind)


@pytest.mark.parametrize("name", ["storage-bind", "training-h100-collect"])
def test_a_claim_or_a_job_that_was_made_again_under_its_name_is_waited_for_again(name: str) -> None:
    before, again = (up({"storage": NFS}, uid=uid).named(name) for uid in ("1", "2"))
    assert before.inputs["triggers"] != again.inputs["triggers"]


def test_the_claim_is_waited_for_with_a_worker_that_may_be_its_first_one() -> None:
    run = on_two_pools(storage={**CLASS, "bind_timeout_seconds": 77})
    asked = json.loads(run.named("storage-bind").inputs["stdin"])
    assert asked["claim"] == run.of_type(CLAIM)[0].inputs["metadata"]["name"]
    assert (asked["class_name"], asked["worker"], asked["deadline_seconds"]) == ("weka", "gpu-1", 77)


def test_the_claim_of_a_class_is_an_output_and_stays_with_its_namespace_when_the_stack_goes() -> None:
    bound = json.dumps({"claim": "shared-1", "volume": "pv-1", "capacity": "10Ti"})
    run = up({"storage": CLASS, "proof": {"enforce": False}}, printed=bound)
    named = {"mode": "class", "namespace": "busbar-training"}
    assert run.outputs["storage"] == {**named, **json.loads(bound)}
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
    run = up({"storage": asked}, change={"nfs_server": {"address": "10.0.0.9", "export": "/srv/busbar"}})
    [volume] = run.of_type(VOLUME)
    assert volume.inputs["spec"]["nfs"] == {"server": "10.0.0.9", "path": "/srv/busbar"}


@pytest.mark.parametrize(("storage", "stays"), [(NFS, False), (CLASS, True)])
def test_claims_are_asked_for_before_the_namespace_is_deleted(storage: dict[str, Any], stays: bool) -> None:
    run = on_storage(**storage)
    guard = run.named("namespace-removal")
    assert guard.inputs["delete"].endswith("step training before-deletion")
    assert json.loads(guard.inputs["stdin"]) == {"namespace": "busbar-training", "stays": stays}
    assert run.waits_for(guard, run.named("namespace"))
