"""Namespaces that exist: which may be adopted, and so deleted with the stack."""

from typing import Any

import pytest

from busbar.kube.client import ApiError
from busbar.kube.objects import NAMESPACES, OWNER, claim_namespace, of_others
from busbar.kube.wait import TimedOut
from tests.support.kube_cluster import Clock, Cluster

MINE = "busbar/prod/validation-namespace"


def test_one_that_does_not_exist_is_created_with_the_mark_of_its_resource_and_then_adopted() -> None:
    cluster = Cluster()
    claim_namespace(cluster, "jobs", MINE)
    claim_namespace(cluster, "jobs", MINE)
    [(_, made)] = cluster.created
    # Labels are those of the engine's provider: two owners of a field would be in conflict when it changes.
    assert made["metadata"] == {"name": "jobs", "annotations": {OWNER: MINE}}


@pytest.mark.parametrize("annotations", [None, {"app": "x"}, {OWNER: "busbar-watch/prod/namespace"}])
def test_any_other_is_refused_with_what_to_do(annotations: dict[str, str] | None) -> None:
    cluster = Cluster({f"{NAMESPACES}/jobs": {"metadata": {"annotations": annotations}}})
    mark = (annotations or {}).get(OWNER, "missing")
    fix = f"kubectl annotate namespace jobs {OWNER}={MINE} --overwrite"
    with pytest.raises(ValueError, match=f"annotation {OWNER} is {mark}, expected {MINE}.*{fix}"):
        claim_namespace(cluster, "jobs", MINE)
    assert not cluster.created


@pytest.mark.parametrize("seconds", [30, 90])
def test_one_that_is_being_deleted_is_waited_for_and_what_keeps_it_is_named(seconds: int) -> None:
    """Nothing can be created in it, and nobody would know why."""
    left = {"status": "True", "message": "Some resources are remaining: pods. has 1 resource instances"}
    passed = {"status": "False", "message": "All resources successfully discovered"}
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": {OWNER: MINE}}
    path, clock = f"{NAMESPACES}/jobs", Clock()
    cluster = Cluster({path: {"metadata": metadata, "status": {"conditions": [passed, left]}}})
    clock.at(seconds, lambda: cluster.objects.pop(path))
    if seconds < 60:
        claim_namespace(cluster, "jobs", MINE, clock)
        assert len(cluster.created) == 1
        return
    with pytest.raises(TimedOut, match=r"jobs is being deleted; Some resources are remaining: pods.*Fix: "):
        claim_namespace(cluster, "jobs", MINE, clock)


def test_only_what_others_have_put_into_a_namespace_is_theirs() -> None:
    def made(name: str, type: str = "", **about: Any) -> dict[str, Any]:
        return {"metadata": {"name": name, **about}, "type": type}

    by_helm, ours = ({"meta.helm.sh/release-name": name} for name in ("grafana", "gpu-operator"))
    cluster = Cluster(
        {
            "/api/v1/namespaces/gpu/persistentvolumeclaims": [],
            "/apis/apps/v1/namespaces/gpu/deployments": [],
            "/apis/apps/v1/namespaces/gpu/statefulsets": [],
            "/api/v1/namespaces/gpu/configmaps": [
                {**made("kube-root-ca.crt"), "data": {"ca.crt": "a"}},
                made("time-slicing", labels={"app": "x"}),
                made("of-busbar", labels={"app.kubernetes.io/managed-by": "busbar"}),
                made("of-our-release", annotations=ours),
                made("of-another-release", annotations=by_helm),
                made("of-a-hook", annotations={"helm.sh/hook": "pre-install"}),
                {**made("registries"), "data": {"mirror": "a"}},
            ],
            # A controller has put the first one into each namespace, and does so again.
            "/api/v1/namespaces/default/configmaps/kube-root-ca.crt": {"data": {"ca.crt": "a"}},
            "/api/v1/namespaces/default/configmaps/registries": {"data": {"mirror": "b"}},
            "/api/v1/namespaces/gpu/secrets": [
                made("token", "kubernetes.io/service-account-token"),
                made("webhook", "kubernetes.io/tls", annotations={"cert-manager.io/certificate-name": "x"}),
                made("sh.helm.release.v1.gpu-operator.v1", labels={"owner": "helm"}),
                {**made("prometheus-admission"), "data": {"ca": "", "cert": "", "key": ""}},
                {**made("registry", "kubernetes.io/dockerconfigjson"), "data": {".dockerconfigjson": ""}},
            ],
            "/apis/apps/v1/namespaces/gpu/daemonsets": [made("driver", ownerReferences=[{"kind": "X"}])],
            "/apis/batch/v1/namespaces/gpu/cronjobs": [made("nightly")],
        }
    )
    theirs = [
        "configmaps/time-slicing",
        "configmaps/of-another-release",
        "configmaps/registries",
        "secrets/registry",
        "cronjobs/nightly",
    ]
    assert of_others(cluster, "gpu", {"gpu-operator"}) == theirs


def test_an_api_that_refuses_is_an_error() -> None:
    cluster = Cluster()
    cluster.failures = [ApiError("POST", 403, "forbidden")]
    with pytest.raises(ApiError):
        claim_namespace(cluster, "jobs", MINE, Clock())
