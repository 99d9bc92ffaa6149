"""A cluster that does not work though everything is as applied, and its cure."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from busbar import config
from busbar.kube import health
from busbar.kube.client import ApiError, JsonObject
from busbar.kube.health import CONTROLLERS, ENDPOINTS, LEASES, problems
from busbar.kube.nodes import NODES
from tests.support.clusters import site
from tests.support.kube_cluster import Clock, Cluster, unreachable

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
PODS = "/api/v1/namespaces/busbar-validation/pods?dryRun=All&timeout=10s"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"


class Server(Cluster):
    """A healthy cluster, whose API server has the time NOW; `refusals`: path of a creation -> its error."""

    def __init__(self) -> None:
        of_dns = {"metadata": {"name": "kube-dns-x"}, "endpoints": [{"conditions": {"ready": True}}]}
        nodes = {"server-1": "10.44.0.0/24", "gpu-1": "10.44.1.0/24", "gpu-2": None}
        super().__init__(
            {
                LEASES: [lease(name, 2) for name in CONTROLLERS],
                NODES: [
                    {"metadata": {"name": name}, "spec": {"podCIDR": part}} for name, part in nodes.items()
                ],
                ENDPOINTS: [of_dns],
                f"{WEBHOOKS}/validatingwebhookconfigurations": [webhook("guard", "guard.example.com")],
                f"{WEBHOOKS}/mutatingwebhookconfigurations": [webhook("sidecars", "sidecars.example.com")],
            }
        )
        self.refusals: dict[str, ApiError] = {}

    def create(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        if error := self.refusals.get(path):
            raise error
        return {**body, "metadata": {"creationTimestamp": NOW.strftime("%Y-%m-%dT%H:%M:%SZ")}}


def lease(name: str, seconds: float) -> JsonObject:
    """The lease of a controller that has renewed it this long ago."""
    renewed = (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"metadata": {"name": name}, "spec": {"renewTime": renewed}}


def webhook(name: str, hook: str) -> JsonObject:
    return {"metadata": {"name": name}, "webhooks": [{"name": hook}]}


def found(api: Cluster, k3s: Mapping[str, Any] | None = None, **sections: Any) -> list[tuple[str, str]]:
    content = site(**sections)
    content["k3s"].update(k3s or {})
    cluster = config.load(content, root=Path())
    return [(each.what, str(each.fix)) for each in problems(api, cluster)]


def test_a_cluster_that_works_has_no_problem() -> None:
    assert found(Server()) == []


SILENT = lease("kube-controller-manager", 90)


@pytest.mark.parametrize(
    ("of_manager", "says"),
    [([SILENT], "has not renewed its Lease since 2026-01-01T11:58:30.000000Z"), ([], "has no Lease")],
)
def test_a_controller_manager_that_runs_nowhere_is_named(of_manager: list[JsonObject], says: str) -> None:
    api = Server()
    api.objects[LEASES] = [lease("kube-scheduler", 2), *of_manager]
    ((what, fix),) = found(api)
    assert what == f"kube-controller-manager {says}: no server runs it"
    assert fix.startswith("journalctl -u k3s on each server")


def test_nodes_whose_pod_network_is_outside_the_configured_one_are_named() -> None:
    ((what, _),) = found(Server(), k3s={"cluster_cidr": "10.45.0.0/16"})
    named = "server-1 10.44.0.0/24, gpu-1 10.44.1.0/24"
    assert what == f"pod networks of Nodes are outside k3s.cluster_cidr 10.45.0.0/16: {named}"


@pytest.mark.parametrize("endpoints", [[], [{"conditions": {"ready": False}}], None])
def test_coredns_without_a_ready_pod_is_named_unless_it_is_disabled(endpoints: Any) -> None:
    api = Server()
    api.objects[ENDPOINTS] = [{"metadata": {"name": "kube-dns-x"}, "endpoints": endpoints}]
    ((what, _),) = found(api)
    assert what == "CoreDNS has no ready pod, so pods resolve no names"
    assert found(api, k3s={"disable": ["coredns"]}) == []


POLICY = "ValidatingAdmissionPolicy 'no-pods' with binding 'no-pods-here' denied request: no pods today"
FAILED = (
    'Internal error occurred: failed calling webhook "guard.example.com": failed to call webhook: no '
    'endpoints available for service "guard"'
)
WHEN = "change the policy or quota that the answer names, or exempt busbar-validation from it"
GUARD = "ValidatingWebhookConfiguration guard"
NO_NAMESPACE = "busbar up STACK --converge cluster, which makes the namespace anew"
FORBIDDEN = 'pods "busbar-verify" is forbidden'
NOT_SIGNED = 'admission webhook "guard.example.com" denied the request: not signed'


def repair(what: str) -> str:
    return f"repair what serves {what}, or delete it (kubectl delete KIND NAME)"


@pytest.mark.parametrize(
    ("status", "reason", "fix"),
    [
        (403, f"{FORBIDDEN}: {POLICY}", WHEN),
        (403, f"{FORBIDDEN}: exceeded quota: none, requested: pods=1", WHEN),
        (400, NOT_SIGNED, WHEN),
        (500, FAILED, repair(GUARD)),
        (504, "Timeout: request did not complete", repair(f"{GUARD}, MutatingWebhookConfiguration sidecars")),
        (404, 'namespaces "busbar-validation" not found', NO_NAMESPACE),
    ],
)
def test_what_keeps_pods_out_is_named_with_its_object(status: int, reason: str, fix: str) -> None:
    api = Server()
    api.refusals[PODS] = ApiError("POST pods", status, reason)
    assert found(api) == [(f"a Pod in namespace busbar-validation is not admitted: {reason}", fix)]
    assert found(api, validation={"enabled": False}) == [], "the stack has no namespace"


def test_a_webhook_that_refuses_everything_is_named_once_more_for_leases() -> None:
    api = Server()
    for path in (PODS, f"{LEASES}?dryRun=All&timeout=10s"):
        api.refusals[path] = ApiError("POST", 500, FAILED)
    assert [what.partition(" is not")[0] for what, _ in found(api)] == [
        "a Lease in namespace kube-system",
        "a Pod in namespace busbar-validation",
    ]


def test_an_update_waits_for_what_a_restarted_server_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    api, clock, cluster = Server(), Clock(), config.load(site(), root=Path())
    monkeypatch.setattr(health, "RestApi", lambda _: api)
    api.objects[LEASES] = []
    clock.at(20, lambda: api.objects.update({LEASES: [lease(name, 2) for name in CONTROLLERS]}))
    assert health.await_health("a kubeconfig", cluster, clock) == []
    api.objects[LEASES] = []
    names = [each.what.partition(" ")[0] for each in health.await_health("a kubeconfig", cluster, clock)]
    assert names == [*CONTROLLERS]


def test_an_api_that_does_not_answer_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Server()
    api.refusals[PODS] = unreachable()
    with pytest.raises(ApiError):
        found(api)
