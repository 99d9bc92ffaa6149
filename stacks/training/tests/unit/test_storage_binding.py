"""When a claim counts as bound, and what becomes of its volume."""

from typing import Any

import pytest

from busbar.exits import Failed
from busbar.kube.client import JsonObject
from busbar.kube.nodes import NODES
from stacks.training.package.commands import ready
from stacks.training.package.storage import (
    SELECTED_NODE,
    ClaimSpec,
    NamespaceSpec,
    bind,
    claim_name,
    refuse_claims,
)
from stacks.training.tests.support import cluster as cluster_outputs
from stacks.training.tests.support import training
from tests.support.kube_cluster import Clock, Cluster, warning

CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
CLAIM = "/api/v1/namespaces/busbar-training/persistentvolumeclaims/shared-1"
EVENTS = "/api/v1/namespaces/busbar-training/events"
VOLUME = "/api/v1/persistentvolumes/pv-1"
CLASS = {"mode": "class", "class_name": "weka", "size": "1Ti"}
BOUND = {"claim": "shared-1", "volume": "pv-1", "capacity": "1Ti"}


def claim(phase: str = "Bound", **annotations: str) -> dict[str, Any]:
    metadata = {"name": "shared-1", "annotations": annotations}
    return {"metadata": metadata, "spec": {"volumeName": "pv-1"}, "status": {"phase": phase}}


def volume(policy: str) -> dict[str, Any]:
    spec = {"capacity": {"storage": "1Ti"}, "persistentVolumeReclaimPolicy": policy}
    return {"metadata": {"name": "pv-1"}, "spec": spec}


def cluster(**change: Any) -> Cluster:
    """A cluster whose claim is bound; `change` by the last word of the path."""
    objects = {CLAIM: claim(), VOLUME: volume("Retain"), EVENTS: []}
    paths = {"claim": CLAIM, "volume": VOLUME, "events": EVENTS, "weka": f"{CLASSES}/weka"}
    return Cluster({**objects, **{paths[key]: value for key, value in change.items()}})


def bound(
    api: Cluster, clock: Clock | None = None, said: list[str] | None = None, **change: Any
) -> JsonObject:
    """The result of the step; `change` of its request."""
    asked = {"namespace": "busbar-training", "claim": "shared-1", "worker": "w1", "deadline_seconds": 60}
    spec = ClaimSpec.model_validate({**asked, **change})
    return bind(api, spec, clock or Clock(), ([] if said is None else said).append)


WAITING = {**warning("shared-1", "ExternalProvisioning", "waiting for csi.weka.io"), "type": "Normal"}


@pytest.mark.parametrize(
    ("phase", "event", "said"),
    [
        (
            "Pending",
            warning("shared-1", "ProvisioningFailed", "quota of file system exceeded"),
            "timed out after 60 s: PersistentVolumeClaim busbar-training/shared-1 is Pending; "
            "ProvisioningFailed: quota of file system exceeded",
        ),
        # The event of a provisioner that does not run is no warning.
        ("Pending", WAITING, "ExternalProvisioning: waiting for csi.weka.io"),
        (
            "Lost",
            WAITING,
            "its volume pv-1 is gone. Fix: restore the PersistentVolume; or kubectl -n busbar-training "
            "delete pvc shared-1, then: busbar up STACK --refresh",
        ),
    ],
    ids=["refused", "no provisioner", "lost"],
)
def test_a_claim_that_is_not_bound_in_time_is_refused_with_what_the_provisioner_says(
    phase: str, event: Any, said: str
) -> None:
    other = warning("another", "ProvisioningFailed", "unrelated")
    with pytest.raises(Failed) as caught:
        bound(cluster(claim=claim(phase), events=[event, other]))
    assert said in str(caught.value) and "unrelated" not in str(caught.value)


@pytest.mark.parametrize(("mode", "told"), [("WaitForFirstConsumer", 2), ("Immediate", 0)])
def test_a_class_that_waits_for_its_first_pod_is_told_a_worker_so_that_it_provides_now(
    mode: str, told: int
) -> None:
    api, clock = cluster(claim=claim("Pending"), weka={"volumeBindingMode": mode}), Clock()
    clock.at(3, lambda: api.objects.update({CLAIM: claim("Pending", **{SELECTED_NODE: "w1"})}))
    clock.at(9, lambda: api.objects.update({CLAIM: claim()}))
    bound(api, clock, class_name="weka")
    assert 9 <= clock.time < 20
    # Not again once it is there.
    assert api.patched == [(CLAIM, {"metadata": {"annotations": {SELECTED_NODE: "w1"}}})] * told


@pytest.mark.parametrize("policy", ["Retain", "Delete", "Recycle"])
def test_a_bound_claim_is_reported_with_its_volume_which_is_changed_to_stay(policy: str) -> None:
    api, said = cluster(volume=volume(policy)), list[str]()
    assert bound(api, said=said) == BOUND
    goes = policy != "Retain"
    assert api.patched == [(VOLUME, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})] * goes
    text = f"PersistentVolume pv-1: reclaim policy {policy} changed to Retain; its data stay"
    assert said == [text] * goes


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
    return [*map(str, ready(given, cluster_outputs(), api))]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("phase", "fix"),
    [
        ("Bound", ""),
        ("Pending", "kubectl -n busbar-training describe pvc {name}, whose events name the reason"),
        ("Lost", "kubectl -n busbar-training delete pvc {name}, then: busbar up STACK --refresh"),
        (None, "Fix: busbar up STACK --refresh"),
    ],
)
def test_a_claim_that_is_not_bound_any_more_is_found(phase: str | None, fix: str) -> None:
    name = claim_name(training(storage=CLASS).storage)
    path = f"/api/v1/namespaces/busbar-training/persistentvolumeclaims/{name}"
    found = {path: claim(phase)} if phase else {}
    what = f"PersistentVolumeClaim busbar-training/{name} is {phase or 'missing'}, expected Bound"
    assert len(text := verified(found, CLASS)) == bool(fix)
    assert not fix or (what in text[0] and text[0].endswith(fix.format(name=name)))


def test_an_operator_that_does_not_run_is_found_and_without_a_claim_none_is_asked_for() -> None:
    controller = {"metadata": {"name": "controller"}, "spec": {"replicas": 1}, "status": {}}
    found = {f"{APPS}/kubeflow-system/deployments": [controller]}
    [said] = verified(found, {"mode": "path", "path": "/mnt/shared"})
    assert "Deployment kubeflow-system/controller has 0 of 1 pods ready" in said


@pytest.mark.parametrize(
    ("policy", "stays", "is_refused"),
    [("Delete", False, True), ("Delete", True, False), ("Retain", False, False)],
)
def test_a_namespace_is_not_deleted_with_the_data_of_claims_that_users_made(
    policy: str, stays: bool, is_refused: bool
) -> None:
    of_claim = {"namespace": "busbar-training", "name": "shared-1"}
    made = [volume(policy), volume("Delete"), volume("Delete")]
    for each, ref in zip(made, (of_claim, {**of_claim, "namespace": "team"}, None), strict=True):
        each["spec"]["claimRef"], each["status"] = ref, {"phase": "Bound"}
    api = Cluster({VOLUME.rpartition("/")[0]: made})
    spec = NamespaceSpec(namespace="busbar-training", stays=stays)
    if not is_refused:
        return refuse_claims(api, spec)
    fix = r"Fix: kubectl patch pv pv-1 -p .*Retain.* keeps it; else .* delete pvc shared-1; then retry"
    with pytest.raises(Failed, match=rf"the data of claims shared-1 would go.*{fix}"):
        refuse_claims(api, spec)
