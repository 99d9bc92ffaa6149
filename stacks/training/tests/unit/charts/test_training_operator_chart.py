"""stacks/training/charts/training-operator as Helm renders it, beside what Kubeflow publishes."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from typing import Any

import pytest
import yaml

from stacks.training.package.training_operator import TRAINING_OPERATOR
from stacks.training.tests.support import training
from tests.unit.charts.controller import (
    check_account,
    check_labels_and_namespaces,
    check_roles_of_users,
    of_kind,
)
from tests.unit.charts.published import PROJECT, complaints, extracted, helm, published_crd

CHART = PROJECT / "stacks" / "training" / "charts" / "training-operator"
HELM_VALUES = PROJECT / "stacks" / "training" / "helm_values"
RELEASE = ("training-operator", "v1.9.4")
EVERY_KIND = ["PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob"]


@cache
def template(values: str) -> subprocess.CompletedProcess[str]:
    command = [helm(), "template", "training-operator", str(CHART), "-n", "training-operator"]
    return subprocess.run(
        [*command, "--kube-version", "1.35.6", "-f", "-"],
        input=values,
        capture_output=True,
        text=True,
        timeout=120,
    )


def render(*kinds: str, **values: Any) -> list[dict[str, Any]]:
    config = training(
        training_operator={"kinds": list(kinds) or ["PyTorchJob"], "values": values}
    ).training_operator
    return documents(json.dumps(TRAINING_OPERATOR.values(HELM_VALUES, config)))


@cache
def documents(values: str) -> list[dict[str, Any]]:
    done = template(values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


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
    done = template(json.dumps({"kinds": ["MPIJob"]}))
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


def test_a_kind_scales_by_its_workers_where_that_of_kubeflow_does() -> None:
    """Training Operator v1.9.4, +kubebuilder:subresource:scale in pkg/apis/kubeflow.org/v1."""
    found = {}
    for crd in of_kind(render(*EVERY_KIND), "CustomResourceDefinition"):
        scale = crd["spec"]["versions"][0]["subresources"].get("scale", {})
        found[crd["spec"]["names"]["kind"]] = scale.get("specReplicasPath")
    workers = {"PyTorchJob": "pytorch", "PaddleJob": "paddle", "JAXJob": "jax"}
    assert found == {
        **dict.fromkeys(("TFJob", "XGBoostJob")),
        **{kind: f".spec.{name}ReplicaSpecs.Worker.replicas" for kind, name in workers.items()},
    }


def test_a_condition_without_its_type_or_status_is_refused() -> None:
    [ours] = of_kind(render(), "CustomResourceDefinition")
    conditions = schema_of(ours)["properties"]["status"]["properties"]["conditions"]
    assert conditions["items"]["required"] == ["type", "status"]


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
    done = template(json.dumps(values))
    assert "--pytorch-init-container-image=mirror.example.com/alpine:3.20" in done.stdout


def test_crds_stay_after_a_removal_only_where_that_is_asked_for() -> None:
    [gone] = of_kind(render(), "CustomResourceDefinition")
    [kept] = of_kind(render(crd={"keep": True}), "CustomResourceDefinition")
    assert "annotations" not in gone["metadata"]
    assert kept["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_every_object_has_its_name_its_labels_and_its_namespace() -> None:
    manifests = render(rbac={"aggregateToDefaultRoles": False})
    rbac, name = "rbac.authorization.k8s.io/v1", "training-operator"
    assert {(each["apiVersion"], each["kind"], each["metadata"]["name"]) for each in manifests} == {
        ("v1", "ServiceAccount", name),
        ("v1", "Secret", f"{name}-webhook-cert"),
        ("v1", "Service", name),
        ("apps/v1", "Deployment", name),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "pytorchjobs.kubeflow.org"),
        (
            "admissionregistration.k8s.io/v1",
            "ValidatingWebhookConfiguration",
            "validator.training-operator.kubeflow.org",
        ),
        (rbac, "ClusterRole", name),
        (rbac, "ClusterRoleBinding", name),
        (rbac, "Role", f"{name}-cert"),
        (rbac, "RoleBinding", f"{name}-cert"),
    }
    check_labels_and_namespaces(render(), name)


def test_the_controller_runs_with_the_account_that_the_roles_are_bound_to() -> None:
    check_account(render(), "training-operator", role="training-operator-cert")


def test_who_may_view_or_edit_a_namespace_may_do_so_with_its_jobs() -> None:
    check_roles_of_users(render(), "training-operator-jobs", ["pytorchjobs"])
    check_roles_of_users(render("TFJob", "JAXJob"), "training-operator-jobs", ["tfjobs", "jaxjobs"])
    assert len(of_kind(render(rbac={"aggregateToDefaultRoles": False}), "ClusterRole")) == 1


def test_the_controller_is_small_watched_and_alone() -> None:
    [deployment] = of_kind(render(), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert container["image"] == "ghcr.io/kubeflow/training-v1/training-operator:v1-93c5489"
    assert (container["name"], container["imagePullPolicy"]) == ("training-operator", "IfNotPresent")
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"] == {
        "requests": {"cpu": "20m", "memory": "64Mi"},
        "limits": {"memory": "1Gi"},
    }
    assert container["livenessProbe"] == {
        "httpGet": {"path": "/healthz", "port": 8081},
        "initialDelaySeconds": 15,
        "periodSeconds": 20,
    }
    assert container["readinessProbe"] == {"httpGet": {"path": "/readyz", "port": 8081}, "periodSeconds": 2}


def test_the_controller_runs_on_any_server_and_where_the_stack_says() -> None:
    [deployment] = of_kind(render(), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert {each["key"]: (each["operator"], each["effect"]) for each in pod["tolerations"]} == {
        "node-role.kubernetes.io/control-plane": ("Exists", "NoSchedule"),
        "node-role.kubernetes.io/etcd": ("Exists", "NoExecute"),
    }
    wanted: dict[str, Any] = {
        "imagePullSecrets": [{"name": "login"}],
        "nodeSelector": {"disk": "ssd"},
        "affinity": {"nodeAffinity": {}},
        "tolerations": [{"key": "team", "operator": "Exists"}],
    }
    [deployment] = of_kind(render(**wanted), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert {key: pod[key] for key in wanted} == wanted


def test_its_service_leads_to_the_ports_on_which_the_controller_listens() -> None:
    found = render()
    [service], [deployment] = of_kind(found, "Service"), of_kind(found, "Deployment")
    template = deployment["spec"]["template"]
    [container] = template["spec"]["containers"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    # 9443, 8080: fixed in the controller; 443: where an API server calls a webhook that names no port.
    assert service["spec"]["ports"] == [
        {"name": "webhook", "port": 443, "targetPort": "webhook"},
        {"name": "metrics", "port": 8080, "targetPort": "metrics"},
    ]
    assert container["ports"] == [
        {"name": "metrics", "containerPort": 8080},
        {"name": "webhook", "containerPort": 9443},
    ]


def test_the_webhook_asks_the_controller_and_refuses_while_it_does_not_answer() -> None:
    found = render("TFJob")
    [webhooks], [secret], [deployment] = (
        of_kind(found, kind) for kind in ("ValidatingWebhookConfiguration", "Secret", "Deployment")
    )
    assert webhooks["webhooks"] == [
        {
            "name": "validator.tfjob.training-operator.kubeflow.org",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "clientConfig": {
                "service": {
                    "name": "training-operator",
                    "namespace": "training-operator",
                    "path": "/validate-kubeflow-org-v1-tfjob",
                }
            },
            "rules": [
                {
                    "apiGroups": ["kubeflow.org"],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE", "UPDATE"],
                    "resources": ["tfjobs"],
                }
            ],
        }
    ]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "cert", "secret": {"secretName": secret["metadata"]["name"]}}]
    assert pod["containers"][0]["volumeMounts"] == [
        {"name": "cert", "mountPath": "/tmp/k8s-webhook-server/serving-certs", "readOnly": True}
    ]


def test_the_controller_may_do_what_its_jobs_need() -> None:
    [role] = [
        role for role in of_kind(render(), "ClusterRole") if role["metadata"]["name"] == "training-operator"
    ]
    every = ["get", "list", "watch", "create", "update", "patch", "delete"]
    assert [(rule["apiGroups"], rule["resources"], rule["verbs"]) for rule in role["rules"]] == [
        (["kubeflow.org"], ["pytorchjobs"], every),
        (["kubeflow.org"], ["pytorchjobs/status"], ["get", "update", "patch"]),
        (["kubeflow.org"], ["pytorchjobs/finalizers"], ["update"]),
        ([""], ["pods"], every),
        ([""], ["services"], ["get", "list", "watch", "create", "delete"]),
        ([""], ["events"], every),
        (["autoscaling"], ["horizontalpodautoscalers"], every),
        (["scheduling.x-k8s.io", "scheduling.volcano.sh"], ["podgroups"], every),
        (
            ["admissionregistration.k8s.io"],
            ["validatingwebhookconfigurations"],
            ["get", "list", "watch", "update"],
        ),
    ]
