"""When a claim counts as bound, and what becomes of its volume."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.exits import Failed
from busbar.kube.nodes import NODES
from stacks.training.package.commands import ready
from stacks.training.package.storage import SELECTED_NODE, ClaimSpec, bind, claim_name, described
from stacks.training.tests.support import cluster as cluster_outputs
from stacks.training.tests.support import training
from tests.support.kube_cluster import Clock, Cluster, unreachable, warning

CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
CLAIM = "/api/v1/namespaces/busbar-training/persistentvolumeclaims/shared-1"
EVENTS = "/api/v1/namespaces/busbar-training/events"
VOLUME = "/api/v1/persistentvolumes/pv-1"
CLASS = {"mode": "class", "class_name": "weka", "size": "1Ti"}


def of_class(provisioner: str = "csi.weka.io", **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": "weka"}, "provisioner": provisioner, **more}


def claim(phase: str = "Bound", **annotations: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "shared-1", "annotations": annotations},
        "spec": {"volumeName": "pv-1"},
        "status": {"phase": phase},
    }


def volume(policy: str = "Retain", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "pv-1"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Ti"},
            "persistentVolumeReclaimPolicy": policy,
            **spec,
        },
    }


def cluster(**change: Any) -> Cluster:
    """A cluster whose claim is bound; `change` by the last word of the path."""
    objects = {CLAIM: claim(), VOLUME: volume(), EVENTS: []}
    paths = {"claim": CLAIM, "volume": VOLUME, "events": EVENTS, "weka": f"{CLASSES}/weka"}
    return Cluster({**objects, **{paths[key]: value for key, value in change.items()}})


def spec(**change: Any) -> ClaimSpec:
    values = {"namespace": "busbar-training", "claim": "shared-1", "worker": "w1"}
    return ClaimSpec.model_validate({**values, "deadline_seconds": 60, **change})


def bound(api: Cluster, **change: Any) -> dict[str, Any]:
    return bind(api, spec(**change), Clock(), lambda _: None)


def refusal(api: Cluster, **change: Any) -> str:
    with pytest.raises(Failed) as caught:
        bound(api, **change)
    return str(caught.value)


# ---- The claim -------------------------------------------------------------------------------------------


def test_a_bound_claim_is_reported_with_its_volume() -> None:
    assert bound(cluster()) == {"claim": "shared-1", "volume": "pv-1", "capacity": "1Ti"}


def test_a_claim_that_is_bound_later_is_waited_for() -> None:
    api, clock = cluster(claim=claim("Pending")), Clock()
    clock.at(20, lambda: api.objects.update({CLAIM: claim()}))
    assert bind(api, spec(), clock, lambda _: None)["volume"] == "pv-1"
    assert 20 <= clock.time < 25


def test_a_claim_that_is_not_bound_in_time_is_refused_with_what_the_provisioner_says() -> None:
    said = warning("shared-1", "ProvisioningFailed", "quota of file system exceeded")
    other = warning("another", "ProvisioningFailed", "unrelated")
    text = refusal(cluster(claim=claim("Pending"), events=[said, other]))
    assert text.startswith(
        "timed out after 60 s: PersistentVolumeClaim busbar-training/shared-1 is Pending; "
        "ProvisioningFailed: quota of file system exceeded"
    )
    assert "unrelated" not in text


def test_a_provisioner_that_does_not_run_is_named_by_the_controller_s_event_which_is_no_warning() -> None:
    waiting = {**warning("shared-1", "ExternalProvisioning", "waiting for csi.weka.io"), "type": "Normal"}
    text = refusal(cluster(claim=claim("Pending"), events=[waiting]))
    assert "ExternalProvisioning: waiting for csi.weka.io" in text


def test_a_claim_whose_volume_is_gone_is_refused_at_once() -> None:
    assert "its volume pv-1 is gone" in refusal(cluster(claim=claim("Lost")))


def test_an_api_that_does_not_answer_for_a_moment_is_asked_again() -> None:
    api = cluster()
    api.failures = [unreachable(), unreachable()]
    assert bound(api)["volume"] == "pv-1"


def test_a_class_that_waits_for_its_first_pod_is_told_a_worker_so_that_it_provides_now() -> None:
    api, clock = (
        cluster(claim=claim("Pending"), weka=of_class(volumeBindingMode="WaitForFirstConsumer")),
        Clock(),
    )
    clock.at(3, lambda: api.objects.update({CLAIM: claim("Pending", **{SELECTED_NODE: "w1"})}))
    clock.at(9, lambda: api.objects.update({CLAIM: claim()}))
    bind(api, spec(class_name="weka"), clock, lambda _: None)
    assert {path for path, _ in api.patched} == {CLAIM}
    assert api.patched[0][1] == {"metadata": {"annotations": {SELECTED_NODE: "w1"}}}
    assert len(api.patched) == 2, "not again once it is there"


def test_a_class_that_binds_at_once_is_told_nothing() -> None:
    api, clock = cluster(claim=claim("Pending"), weka=of_class()), Clock()
    clock.at(5, lambda: api.objects.update({CLAIM: claim()}))
    bind(api, spec(class_name="weka"), clock, lambda _: None)
    assert api.patched == []


# ---- The volume ------------------------------------------------------------------------------------------


def test_a_volume_that_would_go_with_its_claim_is_changed_to_stay() -> None:
    for policy in ("Delete", "Recycle"):
        api, said = cluster(volume=volume(policy)), list[str]()
        bind(api, spec(), Clock(), said.append)
        assert api.patched == [(VOLUME, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})]
        assert said == [f"PersistentVolume pv-1: reclaim policy {policy} changed to Retain; its data stay"]


def test_a_volume_that_stays_is_left_as_it_is() -> None:
    api = cluster()
    bound(api)
    assert api.patched == []


# ---- The output ------------------------------------------------------------------------------------------


def test_the_output_names_the_claim_for_the_jobs_of_others() -> None:
    printed = '{"claim": "shared-1", "volume": "pv-1", "capacity": "1Ti"}'
    assert described(training(storage=CLASS).storage, "team", printed) == {
        "mode": "class", "namespace": "team", "claim": "shared-1", "volume": "pv-1", "capacity": "1Ti",
    }  # fmt: skip


@pytest.mark.parametrize("printed", [None, "", "Traceback", "[]"])
def test_other_texts_add_nothing_to_the_output(printed: str | None) -> None:
    found = described(training(storage=CLASS).storage, "team", printed)
    assert found == {"mode": "class", "namespace": "team"}


def test_storage_without_a_claim_has_only_its_mode() -> None:
    given = training(storage={"mode": "path", "path": "/mnt/shared"}).storage
    assert described(given, "team", None) == {"mode": "path"}


# ---- `busbar verify` -------------------------------------------------------------------------------------

APPS = "/apis/apps/v1/namespaces"
OPERATORS = ("kubeflow-system", "training-operator", "multus")


def verified(found: dict[str, Any], storage: dict[str, Any]) -> list[str]:
    """The output of `busbar verify` on a cluster with these objects only."""
    lists = [
        f"{APPS}/{name}/{kind}s" for name in OPERATORS for kind in ("deployment", "daemonset", "statefulset")
    ]
    core = [f"/api/v1/namespaces/{name}/{kind}" for name in OPERATORS for kind in ("pods", "events")]
    api = Cluster({**{path: [] for path in (*lists, *core, NODES)}, **found})
    given = training(storage=storage)
    return [each.what for each in ready(given, cluster_outputs(), api)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("phase", "said"), [("Bound", []), ("Pending", ["Pending"]), ("Lost", ["Lost"]), (None, ["missing"])]
)
def test_a_claim_that_is_not_bound_any_more_is_found(phase: str | None, said: list[str]) -> None:
    name = claim_name(training(storage=CLASS).storage)
    path = f"/api/v1/namespaces/busbar-training/persistentvolumeclaims/{name}"
    found = {path: claim(phase)} if phase else {}
    what = f"PersistentVolumeClaim busbar-training/{name} is {{}}, expected Bound"
    assert verified(found, CLASS) == [what.format(each) for each in said]


def test_an_operator_that_does_not_run_is_found_and_without_a_claim_none_is_asked_for() -> None:
    controller = {"metadata": {"name": "controller"}, "spec": {"replicas": 1}, "status": {}}
    found = {f"{APPS}/kubeflow-system/deployments": [controller]}
    said = ["Deployment kubeflow-system/controller has 0 of 1 pods ready"]
    assert verified(found, {"mode": "path", "path": "/mnt/shared"}) == said
