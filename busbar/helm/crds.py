"""Compares the CRDs of a chart with those of the cluster, which Helm does not replace.

The API server drops a field that a CRD does not know, with only a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from busbar.exits import Failed
from busbar.kube.client import Api, JsonObject
from busbar.kube.objects import find
from busbar.text import listed

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_NAMED_FIELDS = 4


def is_in(api: Api, path: str) -> bool:
    """Return whether the cluster has the CRD of a collection, such as /apis/nvidia.com/v1/clusterpolicies."""
    _, _, group, _, plural = path.split("/")
    return find(api, f"{CRDS}/{plural}.{group}") is not None


def compare(api: Api, objects: Iterable[JsonObject], show: str) -> None:
    """Raise Failed where a CRD among `objects` has fields that the one of the cluster lacks.

    `show`: the command that prints the chart's CRDs. Raises ApiError.
    """
    old = []
    for crd in (each for each in objects if each.get("kind") == "CustomResourceDefinition"):
        name = crd["metadata"]["name"]
        found = find(api, f"{CRDS}/{name}")
        if found and (lacking := sorted({*_fields(crd)} - {*_fields(found)})):
            old.append(f"the CRD {name} of the cluster lacks {listed(lacking, _NAMED_FIELDS)}")
    if old:
        fix = f"{show} | kubectl apply --server-side --force-conflicts -f -"
        raise Failed(f"{'; '.join(old)}, which the chart has: they would be dropped. Fix: {fix}")


def _fields(schema: Any, path: str = "") -> Iterator[str]:
    """VERSION.spec.FIELD of each field, of a CRD or a part of its schema."""
    if not isinstance(schema, dict):
        return
    for version in (schema.get("spec") or {}).get("versions") or ():
        yield from _fields((version.get("schema") or {}).get("openAPIV3Schema"), version["name"])
    for name, below in (schema.get("properties") or {}).items():
        yield f"{path}.{name}"
        yield from _fields(below, f"{path}.{name}")
    for part in ("items", "additionalProperties"):
        yield from _fields(schema.get(part), path)
