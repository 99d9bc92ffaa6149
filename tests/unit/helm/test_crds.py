"""The CRDs of a chart beside older ones that an earlier installation has left in the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.exits import Failed
from busbar.helm.releases import CRDS, compare_crds
from tests.support.kube_cluster import Cluster

NAME = "clusterpolicies.nvidia.com"


def crd(*fields: str) -> dict[str, Any]:
    toolkit = {"type": "object", "properties": {field: {"type": "string"} for field in fields}}
    listed = {"type": "array", "items": {"properties": {"toolkit": toolkit}}}
    schema = {"properties": {"spec": {"properties": {"toolkits": listed}}}}
    version = {"name": "v1", "schema": {"openAPIV3Schema": schema}}
    return {
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {"versions": [version]},
    }


def cluster(*found: dict[str, Any]) -> Cluster:
    return Cluster({f"{CRDS}/{each['metadata']['name']}": each for each in found})


def test_fields_that_the_cluster_would_drop_are_named_with_the_command_that_adds_them() -> None:
    with pytest.raises(Failed) as refused:
        compare_crds(cluster(crd("env")), [{"kind": "Pod"}, crd("env", "image", "tag")], "helm show crds x")
    assert str(refused.value) == (
        f"the CRD {NAME} of the cluster lacks v1.spec.toolkits.toolkit.image, "
        "v1.spec.toolkits.toolkit.tag, which the chart has: they would be dropped. "
        "Fix: helm show crds x | kubectl apply --server-side --force-conflicts -f -"
    )


@pytest.mark.parametrize("found", [[], [crd("env")], [crd("env", "newer")]])
def test_a_crd_that_is_missing_equal_or_newer_is_no_error(found: list[dict[str, Any]]) -> None:
    compare_crds(cluster(*found), [crd("env")], "helm show crds x")
