"""What is in the way of an installation is named before it begins."""

from __future__ import annotations

from typing import Any

from busbar.frame import CLASSES, CRDS
from stacks.watch.package.check import SurveySpec, obstacles
from stacks.watch.tests.support import EXISTING, INSTALL, Served, watch

OURS = {"meta.helm.sh/release-name": "prometheus-operator-crds"}
DEFAULT = {
    "metadata": {"name": "local-path", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
}


def crd(kind: str, annotations: dict[str, str] | None = None, group: str = "monitoring.coreos.com") -> Any:
    return {"metadata": {"name": f"{kind}.{group}", "annotations": annotations}, "spec": {"group": group}}


def api(**objects: Any) -> Served:
    made = {"crds": [], "classes": [DEFAULT], **objects}
    return Served({CRDS: made["crds"], CLASSES: made["classes"]})


def found(cluster: Served, **stack: Any) -> list[str]:
    return [*map(str, obstacles(cluster, SurveySpec.of(watch(stack={**INSTALL, **stack}).stack)))]


def test_a_cluster_on_which_nothing_is_in_the_way_has_no_findings() -> None:
    assert found(api(crds=[crd("jobs", group="other.io")])) == []


def test_crds_of_somebody_else_are_named() -> None:
    theirs = {"meta.helm.sh/release-name": "monitoring"}
    [text] = found(api(crds=[crd("prometheuses"), crd("probes", OURS), crd("rules", theirs)]))
    assert text.startswith(
        "stack.mode: is install, and busbar did not install the CRDs of monitoring.coreos.com: "
        "prometheuses.monitoring.coreos.com, rules.monitoring.coreos.com. Fix: "
    )
    assert "set stack.mode: existing" in text


def test_crds_of_an_earlier_update_are_busbars_own() -> None:
    assert found(api(crds=[crd("prometheuses", OURS)])) == []


def test_a_storage_class_that_does_not_exist_is_named_and_without_a_default_one_must_be() -> None:
    [text] = found(api(), storage_class="fast")
    said = "stack.storage_class: there is no StorageClass fast; the cluster has local-path. Fix: "
    assert text.startswith(said)
    [text] = found(api(classes=[]))
    assert text.startswith("stack.storage_class: no StorageClass is the default one; the cluster has none")


def test_an_existing_operator_must_have_its_crds_and_nothing_else_is_asked() -> None:
    spec = SurveySpec.of(watch(stack=EXISTING).stack)
    [found] = obstacles(Served({CRDS: [crd("servicemonitors")]}), spec)
    assert str(found).startswith(
        "stack.mode: is existing, and the cluster has no CRD prometheusrules.monitoring.coreos.com."
    )
    assert [*obstacles(Served({CRDS: [crd("servicemonitors"), crd("prometheusrules")]}), spec)] == []
