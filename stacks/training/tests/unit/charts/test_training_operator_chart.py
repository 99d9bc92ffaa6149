"""stacks/training/charts/training-operator as Helm renders it, beside what Kubeflow publishes."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml

from stacks.training.package.training_operator import TRAINING_OPERATOR
from stacks.training.tests.support import training
from tests.unit.charts.published import PROJECT, complaints, extracted, helm, published_crd

CHART = PROJECT / "stacks" / "training" / "charts" / "training-operator"
HELM_VALUES = PROJECT / "stacks" / "training" / "helm_values"
RELEASE = ("training-operator", "v1.9.4")
EVERY_KIND = ["PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob"]


def template(values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    command = [helm(), "template", "training-operator", str(CHART), "-n", "training-operator"]
    return subprocess.run(
        [*command, "--kube-version", "1.35.6", "-f", "-"],
        input=yaml.safe_dump(values),
        capture_output=True,
        text=True,
        timeout=120,
    )


def render(*kinds: str, **values: Any) -> list[dict[str, Any]]:
    config = training(
        training_operator={"kinds": list(kinds) or ["PyTorchJob"], "values": values}
    ).training_operator
    done = template(TRAINING_OPERATOR.values(HELM_VALUES, config))
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(manifests: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def arguments(manifests: list[dict[str, Any]]) -> list[str]:
    [deployment] = of_kind(manifests, "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    found: list[str] = container["args"]
    return found


def test_helm_finds_nothing_to_complain_about() -> None:
    done = subprocess.run([helm(), "lint", "--strict", CHART], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kinds", [["PyTorchJob"], ["JAXJob", "TFJob"], EVERY_KIND])
def test_crds_webhooks_and_controllers_are_those_of_the_kinds_that_are_asked_for(kinds: list[str]) -> None:
    found = render(*kinds)
    plurals = [f"{kind.lower()}s" for kind in kinds]
    assert [crd["metadata"]["name"] for crd in of_kind(found, "CustomResourceDefinition")] == [
        f"{plural}.kubeflow.org" for plural in plurals
    ]
    [webhooks] = of_kind(found, "ValidatingWebhookConfiguration")
    assert [hook["rules"][0]["resources"] for hook in webhooks["webhooks"]] == [[each] for each in plurals]
    enabled = [each for each in arguments(found) if each.startswith("--enable-scheme=")]
    assert enabled == [f"--enable-scheme={kind.lower()}" for kind in kinds]


def test_the_mpi_job_of_the_mpi_operator_is_never_touched() -> None:
    assert "mpijob" not in yaml.safe_dump(render(*EVERY_KIND)).lower()


def test_a_kind_that_the_chart_does_not_know_is_refused() -> None:
    done = template({"kinds": ["MPIJob"]})
    assert done.returncode != 0
    assert "kinds: MPIJob is not one of JAXJob, PaddleJob, PyTorchJob, TFJob, XGBoostJob" in done.stderr


def test_the_crd_has_the_fields_of_the_published_one_except_those_of_pods_and_scaling() -> None:
    [ours] = of_kind(render(), "CustomResourceDefinition")
    theirs = published_crd(*RELEASE, "PyTorchJob")
    assert differences(schema_of(theirs), schema_of(ours)) == []


def schema_of(crd: dict[str, Any]) -> dict[str, Any]:
    [version] = crd["spec"]["versions"]
    assert version["name"] == "v1"
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def differences(theirs: dict[str, Any], ours: dict[str, Any], path: str = "") -> list[str]:
    """Fields of one that the other lacks, or has with another type."""
    if ours.get("x-kubernetes-preserve-unknown-fields") or path == ".spec.elasticPolicy.metrics[]":
        return []
    found = [f"{path}: {theirs.get('type')}, ours {ours.get('type')}"] * (
        theirs.get("type") != ours.get("type") and not ours.get("x-kubernetes-int-or-string")
    )
    left, right = theirs.get("properties") or {}, ours.get("properties") or {}
    found += [f"{path}.{key}: only in one" for key in left.keys() ^ right.keys()]
    for key in left.keys() & right.keys():
        found += differences(left[key], right[key], f"{path}.{key}")
    for part in ("items", "additionalProperties"):
        if isinstance(theirs.get(part), dict) and isinstance(ours.get(part), dict):
            found += differences(theirs[part], ours[part], f"{path}[]")
    return found


def test_a_job_that_the_published_crd_accepts_is_accepted_by_ours() -> None:
    job = yaml.safe_load((PROJECT / "stacks" / "training" / "examples" / "elastic.yaml").read_text())
    [ours] = of_kind(render(), "CustomResourceDefinition")
    assert complaints(ours, "v1", job) == []


def test_the_controller_may_do_no_more_than_the_published_one() -> None:
    published = {
        (group, resource, verb)
        for rule in extracted(*RELEASE)["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    [role] = [
        role for role in of_kind(render(), "ClusterRole") if role["metadata"]["name"] == "training-operator"
    ]
    ours = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert ours - published == set()


def test_it_reads_no_secret_but_those_of_its_own_namespace() -> None:
    found = render()
    [cert] = [role for role in of_kind(found, "Role") if role["metadata"]["name"] == "training-operator-cert"]
    assert cert["rules"] == [
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch", "update"]}
    ]
    for role in of_kind(found, "ClusterRole"):
        assert not [rule for rule in role["rules"] if "secrets" in rule["resources"]]


def test_the_webhook_is_reached_by_the_names_that_the_controller_is_told() -> None:
    found = render()
    [webhooks], [secret] = of_kind(found, "ValidatingWebhookConfiguration"), of_kind(found, "Secret")
    # Fixed in the controller (cmd/training-operator.v1/main.go).
    assert webhooks["metadata"]["name"] == "validator.training-operator.kubeflow.org"
    service = webhooks["webhooks"][0]["clientConfig"]["service"]
    assert f"--webhook-service-name={service['name']}" in arguments(found)
    assert f"--webhook-secret-name={secret['metadata']['name']}" in arguments(found)
    assert "data" not in secret, "an upgrade would overwrite the certificates"


def test_the_image_in_which_workers_wait_is_the_configured_one() -> None:
    config = training(training_operator={"init_image": "mirror.example.com/alpine:3.20"}).training_operator
    values = TRAINING_OPERATOR.values(HELM_VALUES, config)
    done = template(values)
    assert "--pytorch-init-container-image=mirror.example.com/alpine:3.20" in done.stdout


def test_crds_stay_after_a_removal_only_where_that_is_asked_for() -> None:
    [gone] = of_kind(render(), "CustomResourceDefinition")
    [kept] = of_kind(render(crd={"keep": True}), "CustomResourceDefinition")
    assert "annotations" not in gone["metadata"]
    assert kept["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
