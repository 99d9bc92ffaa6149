"""What our own charts of a controller have in common: names, labels, accounts, roles, one small pod."""

from typing import Any

READ = ["get", "list", "watch"]
RBAC = "rbac.authorization.k8s.io"


def of_kind(manifests: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def check_account(manifests: list[dict[str, Any]], name: str, role: str) -> None:
    """The one pod runs with the account that the ClusterRole `name` and the Role `role` are bound to."""
    (deployment,) = of_kind(manifests, "Deployment")
    template = deployment["spec"]["template"]
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert template["spec"]["serviceAccountName"] == name
    assert selector["app.kubernetes.io/instance"] == name
    assert selector.items() <= template["metadata"]["labels"].items()
    account = [{"kind": "ServiceAccount", "name": name, "namespace": name}]
    for kind, bound in (("ClusterRole", name), ("Role", role)):
        (binding,) = of_kind(manifests, f"{kind}Binding")
        assert binding["subjects"] == account
        assert binding["roleRef"] == {"apiGroup": RBAC, "kind": kind, "name": bound}


def check_roles_of_users(manifests: list[dict[str, Any]], stem: str, plurals: list[str]) -> None:
    """Who may view or edit a namespace may do so with the jobs in it; an admin edits."""
    roles = {role["metadata"]["name"]: role for role in of_kind(manifests, "ClusterRole")}
    for name, verbs in {"view": READ, "edit": [*READ, "create", "update", "patch", "delete"]}.items():
        role = roles[f"{stem}-{name}"]
        rules = {rule["resources"][0]: (rule["apiGroups"], rule["verbs"]) for rule in role["rules"]}
        assert rules == {
            resource: (["kubeflow.org"], allowed)
            for plural in plurals
            for resource, allowed in ((plural, verbs), (f"{plural}/status", ["get"]))
        }
        to = f"{RBAC}/aggregate-to-"
        granted = {label.removeprefix(to) for label in role["metadata"]["labels"] if label.startswith(to)}
        assert granted == ({"view"} if name == "view" else {"edit", "admin"})
