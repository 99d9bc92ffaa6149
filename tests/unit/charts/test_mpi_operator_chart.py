"""charts/mpi-operator as Helm renders it. What the controller does with it, only the lab shows."""

import subprocess
from typing import Any

import yaml

from busbar.manifests.operators import MPI_OPERATOR
from tests.support.kube_site import cluster
from tests.unit.charts.controller import check_account, check_roles_of_users, of_kind
from tests.unit.charts.published import MPI_OPERATOR_RELEASE, PROJECT, extracted, helm, published_crd

CHART = PROJECT / "charts" / "mpi-operator"


def render(**overrides: Any) -> list[dict[str, Any]]:
    config = cluster(mpi_operator={"values": overrides}).mpi_operator
    values = yaml.safe_dump(MPI_OPERATOR.values(PROJECT / "helm_values", config))
    words = ("template", "mpi-operator", CHART, "-n", "mpi-operator", "--kube-version", "1.35.6", "-f", "-")
    done = subprocess.run([helm(), *words], input=values, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def test_helm_finds_nothing_to_complain_about() -> None:
    done = subprocess.run([helm(), "lint", "--strict", CHART], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_controller_runs_the_configured_image_on_any_server_and_may_do_nothing_to_its_host() -> None:
    (deployment,) = of_kind(manifests := render(), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "mpioperator/mpi-operator:0.8.0"
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    rights = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == rights
    assert "--lock-namespace=mpi-operator" in container["args"]
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": 8080}
    roles = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/etcd")
    assert {each["key"] for each in pod["tolerations"]} == {*roles, "CriticalAddonsOnly"}
    check_account(manifests, "mpi-operator", role="mpi-operator-leader")


def test_the_crd_outlives_the_release_and_one_of_somebody_else_is_left_alone() -> None:
    (crd,) = of_kind(render(), "CustomResourceDefinition")
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert of_kind(render(crd={"create": False}), "CustomResourceDefinition") == []


def properties(schema: dict[str, Any], path: str = "") -> dict[str, dict[str, Any]]:
    """Every property of a CRD's schema by its path, but for those of pod templates and of the status."""
    found = {path: schema}
    for name, part in schema.get("properties", {}).items():
        at = f"{path}.{name}"
        found |= {at: part} if name in ("template", "status") else properties(part, at)
    for key in ("additionalProperties", "items"):
        if isinstance(schema.get(key), dict):
            found |= properties(schema[key], f"{path}[]")
    return found


def test_the_crd_has_the_fields_of_the_published_one() -> None:
    (crd,) = of_kind(render(), "CustomResourceDefinition")
    ours, published = crd["spec"], published_crd(*MPI_OPERATOR_RELEASE, "MPIJob")["spec"]
    assert (ours["group"], ours["scope"]) == (published["group"], "Namespaced")
    names = {"kind": "MPIJob", "listKind": "MPIJobList", "plural": "mpijobs", "singular": "mpijob"}
    assert ours["names"] == names
    (version,), (wanted,) = ours["versions"], published["versions"]
    assert (version["name"], version["served"], version["storage"]) == (wanted["name"], True, True)
    assert version["subresources"] == {"status": {}}
    found, wanted = (properties(each["schema"]["openAPIV3Schema"]) for each in (version, wanted))
    types = {path: part.get("type") for path, part in wanted.items()}
    assert {path: part.get("type") for path, part in found.items()} == types


def test_overrides_of_the_stack_reach_the_controller() -> None:
    elsewhere = [{"key": "team", "operator": "Exists"}]
    (deployment,) = of_kind(
        render(extraArgs=["--kube-api-qps=50"], replicas=2, tolerations=elsewhere), "Deployment"
    )
    pod = deployment["spec"]["template"]["spec"]
    assert "--kube-api-qps=50" in pod["containers"][0]["args"]
    assert (deployment["spec"]["replicas"], pod["tolerations"]) == (2, elsewhere)


def test_who_may_view_or_edit_a_namespace_may_do_so_with_its_mpijobs() -> None:
    check_roles_of_users(render(), "mpi-operator-mpijobs", ["mpijobs"])
    assert len(of_kind(render(rbac={"aggregateToDefaultRoles": False}), "ClusterRole")) == 1


def test_no_rule_allows_everything() -> None:
    rules = [rule for each in render() if each["kind"] in ("ClusterRole", "Role") for rule in each["rules"]]
    assert rules
    assert not [rule for rule in rules if "*" in (*rule["verbs"], *rule["resources"], *rule["apiGroups"])]


def test_the_controller_may_do_what_the_published_manifest_lets_it_do() -> None:
    """But for what the v2beta1 controller does not touch: endpoints, pods/exec, retired schedulers.

    And for no other kinds, except for three that share a rule with theirs. Without them the chart would be
    another one, and the operator start again at every site.
    """
    left_out = {("endpoints", ""), ("pods/exec", ""), ("customresourcedefinitions", "apiextensions.k8s.io")}
    for scheduler in ("scheduling.incubator.k8s.io", "scheduling.sigs.dev"):
        left_out |= {("queues", scheduler), ("podgroups", scheduler)}
    published, manifests = allowed([extracted(*MPI_OPERATOR_RELEASE)]), render()
    cluster_roles = of_kind(manifests, "ClusterRole")
    own = [role for role in cluster_roles if role["metadata"]["name"] == "mpi-operator"]
    ours = allowed([*of_kind(manifests, "Role"), *own])
    more = {("jobs/status", "batch"), ("events", "events.k8s.io"), ("queues", "scheduling.x-k8s.io")}
    assert ours.keys() - published.keys() == more
    every = {"get", "list", "watch", "create", "update", "patch", "delete"}
    for name in published.keys() - left_out:
        verbs = published[name]
        assert (every if "*" in verbs else verbs) <= ours.get(name, set()), name


def allowed(roles: list[dict[str, Any]]) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for role in roles:
        for rule in role["rules"]:
            for resource in rule["resources"]:
                for group in rule["apiGroups"]:
                    found.setdefault((resource, group), set()).update(rule["verbs"])
    return found
