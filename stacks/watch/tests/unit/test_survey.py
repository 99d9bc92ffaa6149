"""What is in the way of an installation is named before it begins."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.frame import CLASSES, CRDS
from stacks.watch.package.check import SurveySpec, obstacles
from stacks.watch.tests.support import EXISTING, INSTALL, Served, watch

OURS = {"meta.helm.sh/release-name": "prometheus-operator-crds"}
DEFAULT = {
    "metadata": {"name": "local-path", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
}


def crd(kind: str, annotations: dict[str, str] | None = None, group: str = "monitoring.coreos.com") -> Any:
    return {"metadata": {"name": f"{kind}.{group}", "annotations": annotations}, "spec": {"group": group}}


THEIRS = {"meta.helm.sh/release-name": "monitoring"}
# CRDs and StorageClasses of the cluster, the configured class, and the finding.
FOUND: list[tuple[list[Any], list[Any], str | None, str]] = [
    ([crd("jobs", group="other.io")], [DEFAULT], None, ""),
    ([crd("prometheuses", OURS)], [DEFAULT], None, ""),
    ([crd("prometheuses"), crd("probes", OURS), crd("rules", THEIRS)], [DEFAULT], None,
     "stack.mode: is install, and busbar did not install the CRDs of monitoring.coreos.com: "
     "prometheuses.monitoring.coreos.com, rules.monitoring.coreos.com. Fix: "),
    ([], [DEFAULT], "fast",
     "stack.storage_class: there is no StorageClass fast; the cluster has local-path. Fix: "),
    ([], [], None, "stack.storage_class: no StorageClass is the default one; the cluster has none"),
]  # fmt: skip


@pytest.mark.parametrize(("crds", "classes", "chosen", "says"), FOUND)
def test_what_is_in_the_way_of_an_installation_is_named(
    crds: list[Any], classes: list[Any], chosen: str | None, says: str
) -> None:
    stack = watch(stack={**INSTALL, "storage_class": chosen}).stack
    found = [*obstacles(Served({CRDS: crds, CLASSES: classes}), SurveySpec.of(stack))]
    assert len(found) == bool(says) and "".join(map(str, found)).startswith(says)


def test_an_existing_operator_must_have_its_crds_and_nothing_else_is_asked() -> None:
    spec = SurveySpec.of(watch(stack=EXISTING).stack)
    [found] = obstacles(Served({CRDS: [crd("servicemonitors")]}), spec)
    assert str(found).startswith(
        "stack.mode: is existing, and the cluster has no CRD prometheusrules.monitoring.coreos.com."
    )
    assert [*obstacles(Served({CRDS: [crd("servicemonitors"), crd("prometheusrules")]}), spec)] == []
