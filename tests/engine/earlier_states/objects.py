"""The Kubernetes objects of a state, on an API server without nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.engine.earlier_states import findings
from tests.support.api_server import ApiServer

Object = Mapping[str, Any]
NAMESPACE = "Namespace"


def put(server: ApiServer, state: Mapping[str, Any]) -> None:
    """Make what the stack of `state` has made, with its field managers; others of the same names go first."""
    by_manager: dict[str, list[Object]] = {}
    for each in findings.read(state).values():
        if manager := each.outputs.get("__fieldManager"):
            by_manager.setdefault(manager, []).append(each.outputs["__inputs"])
    own = [each for objects in by_manager.values() for each in objects if each["kind"] != NAMESPACE]
    if definitions := list(_definitions(own)):
        server.kubectl("apply", "--server-side", "-f", "-", objects=definitions)
        server.kubectl("wait", "--for=condition=Established", "crd", "--all")
    if own:
        server.kubectl("delete", "--ignore-not-found", "--wait", "-f", "-", objects=own)
    for manager, objects in by_manager.items():
        server.kubectl("apply", "--server-side", f"--field-manager={manager}", "-f", "-", objects=objects)


def _definitions(objects: list[Object]) -> Iterator[Object]:
    """A CustomResourceDefinition without a schema for each custom kind."""
    kinds = {(each["apiVersion"], each["kind"], "namespace" in each["metadata"]) for each in objects}
    for api_version, kind, namespaced in sorted(kinds):
        group, _, version = api_version.rpartition("/")
        if "." not in group:
            continue
        singular = kind.lower()
        plural = f"{singular[:-1]}ies" if singular.endswith("cy") else f"{singular}s"
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "names": {"kind": kind, "plural": plural, "singular": singular},
                "scope": "Namespaced" if namespaced else "Cluster",
                "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
            },
        }
