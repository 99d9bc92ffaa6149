"""charts/mpi-operator as Helm renders it. What the controller does with it, only the lab shows."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml

from busbar.manifests.operators import MPI_OPERATOR
from tests.support.kube_site import cluster
from tests.unit.charts.published import MPI_OPERATOR_RELEASE, PROJECT, extracted, helm

CHART = PROJECT / "charts" / "mpi-operator"


def render(**overrides: Any) -> list[dict[str, Any]]:
    config = cluster(mpi_operator={"values": overrides}).mpi_operator
    done = subprocess.run(
        [
            helm(),
            "template",
            "mpi-operator",
            CHART,
            "-n",
            "mpi-operator",
            "--kube-version",
            "1.35.6",
            "-f",
            "-",
        ],
        input=yaml.safe_dump(MPI_OPERATOR.values(PROJECT / "helm_values", config)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(manifests: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def test_helm_finds_nothing_to_complain_about() -> None:
    done = subprocess.run([helm(), "lint", "--strict", CHART], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_controller_runs_the_configured_image_and_may_do_nothing_to_its_host() -> None:
    (deployment,) = of_kind(render(), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "mpioperator/mpi-operator:0.8.0"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "--lock-namespace=mpi-operator" in container["args"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": 8080}


def test_the_crd_outlives_the_release() -> None:
    (crd,) = of_kind(render(), "CustomResourceDefinition")
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_a_crd_of_somebody_else_is_left_alone() -> None:
    assert of_kind(render(crd={"create": False}), "CustomResourceDefinition") == []


def test_overrides_of_the_stack_reach_the_controller() -> None:
    (deployment,) = of_kind(
        render(watchNamespace="busbar-validation", extraArgs=["--kube-api-qps=50"], replicas=2), "Deployment"
    )
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--namespace=busbar-validation", "--kube-api-qps=50"} <= set(args)
    assert deployment["spec"]["replicas"] == 2


@pytest.mark.parametrize("kind", ["ClusterRole", "Role"])
def test_no_rule_allows_everything(kind: str) -> None:
    for role in of_kind(render(), kind):
        for rule in role["rules"]:
            assert "*" not in (*rule["verbs"], *rule["resources"], *rule["apiGroups"])


def test_the_controller_may_do_what_the_published_manifest_lets_it_do() -> None:
    """But for what the v2beta1 controller does not touch: endpoints, pods/exec, retired schedulers."""
    left_out = {("endpoints", ""), ("pods/exec", ""), ("queues", "scheduling.incubator.k8s.io")}
    left_out |= {("podgroups", "scheduling.incubator.k8s.io"), ("queues", "scheduling.sigs.dev")}
    left_out |= {("podgroups", "scheduling.sigs.dev"), ("queues", "scheduling.x-k8s.io")}
    published = allowed([extracted(*MPI_OPERATOR_RELEASE)])
    manifests = render()
    ours = allowed(of_kind(manifests, "Role"))
    for name, verbs in allowed(
        [role for role in of_kind(manifests, "ClusterRole") if role["metadata"]["name"] == "mpi-operator"]
    ).items():
        ours.setdefault(name, set()).update(verbs)
    for name, verbs in published.items():
        if name not in left_out and name != ("customresourcedefinitions", "apiextensions.k8s.io"):
            assert verbs - {"*"} <= ours.get(name, set()), name


def allowed(roles: list[dict[str, Any]]) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for role in roles:
        for rule in role["rules"]:
            for resource in rule["resources"]:
                for group in rule["apiGroups"]:
                    found.setdefault((resource, group), set()).update(rule["verbs"])
    return found
