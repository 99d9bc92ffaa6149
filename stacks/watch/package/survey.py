"""Finds obstacles to the monitoring on a cluster, before anything is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from busbar.kube.client import Api, JsonObject
from busbar.models import StrictModel
from busbar.text import listed
from stacks.watch.package.config import Stack
from stacks.watch.package.manifests import CRDS

CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "monitoring.coreos.com"
NEEDED = ("servicemonitors", "prometheusrules")
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


class SurveySpec(StrictModel):
    """Stdin of `busbar watch survey`: the parts that will be installed."""

    install: bool
    storage_class: str | None = None

    @classmethod
    def of(cls, stack: Stack) -> SurveySpec:
        """The request for a configuration."""
        return cls(install=stack.enabled, storage_class=stack.storage_class)


def findings(api: Api, spec: SurveySpec) -> list[str]:
    """Every obstacle, with its fix; empty where there is none. Raises ApiError."""
    crds = [each for each in api.list(CRD_PATH) if (each.get("spec") or {}).get("group") == GROUP]
    if not spec.install:
        return list(_missing_crds(crds))
    return [*_foreign_crds(crds), *_storage(api, spec.storage_class)]


def _missing_crds(crds: list[JsonObject]) -> Iterator[str]:
    known = {each["metadata"]["name"] for each in crds}
    missing = [name for kind in NEEDED if (name := f"{kind}.{GROUP}") not in known]
    if missing:
        yield (
            f"stack.mode is existing, and the cluster has no CRD {', '.join(missing)}. Fix: install the "
            "Prometheus Operator, or set stack.mode: install"
        )


def _foreign_crds(crds: list[JsonObject]) -> Iterator[str]:
    foreign = [each["metadata"]["name"] for each in crds if _release(each) != CRDS.release]
    if foreign:
        yield (
            f"CRDs of {GROUP} that busbar did not install: {listed(foreign)}. Fix: if their operator runs, "
            "set stack.mode: existing; if it is gone, delete them (kubectl delete crd ...), which deletes "
            "every object of these kinds"
        )


def _release(crd: JsonObject) -> str | None:
    annotations: dict[str, Any] = crd["metadata"].get("annotations") or {}
    return annotations.get("meta.helm.sh/release-name")


def _storage(api: Api, wanted: str | None) -> Iterator[str]:
    classes = [each["metadata"] for each in api.list(CLASSES)]
    names = [each["name"] for each in classes]
    known = f"the cluster has {', '.join(names) or 'none'}"
    if wanted and wanted not in names:
        yield f"there is no StorageClass {wanted}; {known}. Fix: name one of them in stack.storage_class"
    if not wanted and not any(
        (each.get("annotations") or {}).get(_DEFAULT_CLASS) == "true" for each in classes
    ):
        yield f"no StorageClass is the default one; {known}. Fix: name one in stack.storage_class"
