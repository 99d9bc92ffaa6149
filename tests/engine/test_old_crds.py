"""A CRD that an earlier installation has left, with the real engine, Helm and API server."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.engine.test_update_end import PROGRAM, Stack
from tests.support.api_server import ApiServer

NAME = "clusterpolicies.nvidia.com"


def crd(*fields: str) -> dict[str, Any]:
    spec = {"type": "object", "properties": {field: {"type": "string"} for field in fields}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": "nvidia.com",
            "scope": "Cluster",
            "names": {"kind": "ClusterPolicy", "plural": "clusterpolicies"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, server: ApiServer) -> Stack:
    folder = tmp_path_factory.mktemp("old-crds")
    text = yaml.safe_dump(crd("toolkit", "driver"))
    return Stack.of_chart(folder, server, PROGRAM, "crds/policy.yaml", text)


def test_an_installation_that_an_older_crd_would_make_drop_fields_is_refused(stack: Stack) -> None:
    stack.server.kubectl("apply", "-f", "-", objects=[crd("toolkit")])
    done = stack.busbar("up", "--yes", "--skip-preview")
    assert done.returncode == 1, done.stdout
    assert f"the CRD {NAME} of the cluster lacks v1.spec.driver" in done.stdout
    assert "| kubectl apply --server-side --force-conflicts -f -" in done.stdout
    assert not stack.records(), "Helm has done nothing"


def test_with_the_crd_of_the_chart_it_is_installed(stack: Stack) -> None:
    stack.server.kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", "-", objects=[crd("toolkit", "driver")]
    )
    done = stack.busbar("up", "--yes", "--skip-preview")
    assert done.returncode == 0, done.stdout
    assert "pulumi:providers:kubernetes::default" not in stack.pulumi("stack", "export").stdout
