"""Objects of a Helm release that somebody has changed, compared and applied again by a real API server."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from busbar.helm.drift import _manifests, apply, differences
from busbar.helm.releases import encode
from busbar.kube.client import RestApi
from tests.support.api_server import ApiServer

RELEASE = [("site", "made")]
DEPLOYMENT = "/apis/apps/v1/namespaces/site/deployments/web"
SECRET = "/api/v1/namespaces/site/secrets/login"
CLUSTER_ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/made"
# What charts write and the API server stores in another form: quantities, null, defaults, a date, lists with
# keys, and one port with two protocols.
MANIFEST = """
apiVersion: v1
kind: Service
metadata: {name: dns, namespace: site}
spec:
  clusterIP: null
  ports: [{name: a, port: 53, protocol: TCP}, {name: b, port: 53, protocol: UDP}]
---
apiVersion: v1
kind: ConfigMapList
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: one, labels: {made: 2026-01-02}}, data: {a: "yes"}}
---
apiVersion: v1
kind: Secret
metadata: {name: login, namespace: site}
stringData: {password: first}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: made, creationTimestamp: null}
rules: [{apiGroups: [""], resources: [nodes], verbs: [get, list]}]
---
# An object is left out by the chart.
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: site, annotations: {}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {}
      containers:
      - name: web
        image: site/web:1
        env: [{name: A, value: "1"}]
        resources: {limits: {cpu: 1000m, memory: 1024Mi}}
      volumes: [{name: cache}]
"""


@pytest.fixture(scope="module")
def api(server: ApiServer) -> RestApi:
    api = server.api
    api.create("/api/v1/namespaces", {"metadata": {"name": "site"}})
    texts: list[Mapping[str, Any]] = [*_manifests(MANIFEST)]
    server.kubectl("create", "--namespace=site", "--field-manager=helm", "-f", "-", objects=texts)
    labels = {"owner": "helm", "name": "made", "status": "deployed", "version": "3"}
    record = {"metadata": {"name": "sh.helm.release.v1.made.v3", "labels": labels}}
    api.create(
        "/api/v1/namespaces/site/secrets", {**record, "data": {"release": encode({"manifest": MANIFEST})}}
    )
    return api


def found(api: RestApi) -> list[str]:
    return [each.what for each in differences(api, RELEASE)]


def test_an_unchanged_release_gives_no_finding(api: RestApi) -> None:
    assert found(api) == []


def test_what_was_added_beside_the_manifest_is_not_touched(api: RestApi) -> None:
    added: dict[str, Any] = {"metadata": {"labels": {"mine": "1"}}, "spec": {"minReadySeconds": 3}}
    api.merge(DEPLOYMENT, added)
    assert found(api) == []


def test_changed_and_deleted_objects_are_named_and_applied_again(api: RestApi) -> None:
    api.merge(DEPLOYMENT, {"spec": {"replicas": 1}})
    api.merge(SECRET, {"data": {"password": "b3RoZXI="}})
    api.delete(CLUSTER_ROLE)
    assert found(api) == [
        "Secret site/login: data.password differs",
        "ClusterRole made is not on the cluster",
        "Deployment site/web: spec.replicas is 1, expected 2",
    ]
    apply(api, differences(api, RELEASE))
    assert found(api) == []
    deployment = api.get(DEPLOYMENT)
    assert (deployment["spec"]["minReadySeconds"], deployment["metadata"]["labels"]) == (3, {"mine": "1"})


def test_the_replicas_that_an_autoscaler_sets_are_its_own(server: ApiServer, api: RestApi) -> None:
    scale: dict[str, Any] = {"apiVersion": "autoscaling/v1", "kind": "Scale"}
    scale |= {"metadata": {"name": "web", "namespace": "site"}, "spec": {"replicas": 5}}
    by = {"fieldManager": "kube-controller-manager"}
    api.apply(f"{DEPLOYMENT}/scale", scale, **by)
    assert api.get(DEPLOYMENT)["spec"]["replicas"] == 5
    assert found(api) == []
    api.merge(DEPLOYMENT, {"spec": {"template": {"metadata": {"labels": {"app": "web", "x": "1"}}}}})
    assert found(api) == []


def test_an_object_that_the_api_server_refuses_is_named_with_its_reason(api: RestApi) -> None:
    api.delete(DEPLOYMENT)
    other = next(
        each
        for each in yaml.safe_load_all(MANIFEST.replace("app: web", "app: other"))
        if each and each["kind"] == "Deployment"
    )
    api.create("/apis/apps/v1/namespaces/site/deployments", other)
    [text] = found(api)
    assert text.startswith("Deployment site/web cannot be compared: ")
    assert "field is immutable" in text
    assert [each.refused for each in differences(api, RELEASE)] == [True]
