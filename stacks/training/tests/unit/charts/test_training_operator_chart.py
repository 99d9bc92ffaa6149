"""charts/training-operator-*.tgz as Helm renders it, beside the MPI Operator of the core."""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from typing import Any

import yaml

from stacks.training.package import versions
from stacks.training.package.trainer import TRAINING_OPERATOR, TRAINING_OPERATOR_CHART
from tests.unit.charts.controller import of_kind
from tests.unit.charts.published import PROJECT, helm

SET = "image=controller:1,initContainerImage=mirror/alpine:3"


@cache
def render(chart: str, name: str, *options: str) -> list[dict[str, Any]]:
    command = [helm(), "template", name, chart, "--namespace", name, "--kube-version", "1.35.6", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(done.stdout, loader) if document]


def operator() -> list[dict[str, Any]]:
    return render(str(TRAINING_OPERATOR_CHART), TRAINING_OPERATOR.release, "--set", SET)


def crds(manifests: list[dict[str, Any]]) -> set[str]:
    return {crd["metadata"]["name"] for crd in of_kind(manifests, "CustomResourceDefinition")}


def test_the_archive_is_the_one_that_is_pinned() -> None:
    found = hashlib.sha256(TRAINING_OPERATOR_CHART.read_bytes()).hexdigest()
    assert found == versions.TRAINING_OPERATOR_SHA256


def test_it_has_the_crd_of_pytorch_jobs_and_never_that_of_the_mpi_operator() -> None:
    assert crds(operator()) == {"pytorchjobs.kubeflow.org"}
    of_the_core = render(str(PROJECT / "charts" / "mpi-operator"), "mpi-operator")
    assert crds(of_the_core) == {"mpijobs.kubeflow.org"}
    ours, theirs = (
        {(each["kind"], each["metadata"]["name"]) for each in made} for made in (operator(), of_the_core)
    )
    assert not ours & theirs


def test_controller_webhook_and_role_are_those_of_pytorch_jobs_only() -> None:
    found = operator()
    [deployment], [webhooks] = of_kind(found, "Deployment"), of_kind(found, "ValidatingWebhookConfiguration")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "controller:1"
    assert container["args"] == [
        "--enable-scheme=pytorchjob", "--pytorch-init-container-image=mirror/alpine:3",
    ]  # fmt: skip
    assert [hook["rules"][0]["resources"] for hook in webhooks["webhooks"]] == [["pytorchjobs"]]
    [role] = of_kind(found, "ClusterRole")
    of_kubeflow = [rule["resources"] for rule in role["rules"] if "kubeflow.org" in rule["apiGroups"]]
    assert of_kubeflow == [["pytorchjobs"], ["pytorchjobs/finalizers"], ["pytorchjobs/status"]]


def test_what_has_a_namespace_is_in_that_of_the_release_and_refers_to_it() -> None:
    found, name = operator(), TRAINING_OPERATOR.namespace
    inside = {each["kind"] for each in found if each["metadata"].get("namespace") == name}
    assert inside == {"Deployment", "Secret", "Service", "ServiceAccount"}
    [binding] = of_kind(found, "ClusterRoleBinding")
    assert binding["subjects"][0]["namespace"] == name
    [webhooks], [secret] = of_kind(found, "ValidatingWebhookConfiguration"), of_kind(found, "Secret")
    # The controller looks for these names (cmd/training-operator.v1/main.go).
    assert webhooks["metadata"]["name"] == "validator.training-operator.kubeflow.org"
    [hook] = webhooks["webhooks"]
    service = {key: hook["clientConfig"]["service"][key] for key in ("name", "namespace")}
    assert service == {"name": "training-operator", "namespace": name}
    assert secret["metadata"]["name"] == "training-operator-webhook-cert"
    assert "data" not in secret, "an upgrade would overwrite the certificates"
