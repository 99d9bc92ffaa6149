"""What is in the way of Slurm is named before anything is installed."""

from typing import Any

import pytest

from busbar.frame import CLASSES, CRDS
from busbar.kube.nodes import NODES
from stacks.slurm_k8s.package import values
from stacks.slurm_k8s.package.survey import changed_state, obstacles, place
from stacks.slurm_k8s.tests.support import pools, slurm
from tests.support.kube_cluster import Cluster


def class_of(name: str, provisioner: str = "weka", *, is_default: bool = True) -> dict[str, Any]:
    annotations = {"storageclass.kubernetes.io/is-default-class": str(is_default).lower()}
    return {"metadata": {"name": name, "annotations": annotations}, "provisioner": provisioner}


SHARED, OTHER = class_of("fast"), class_of("slow", is_default=False)
LOCAL = [class_of("local", name) for name in ("rancher.io/local-path", "kubernetes.io/no-provisioner")]


def pods(namespace: str, name: str = "train-0") -> list[dict[str, Any]]:
    """A pod of this namespace that holds GPUs of gpu-1."""
    container = {"resources": {"requests": {"nvidia.com/gpu": "1"}}}
    metadata = {"name": name, "namespace": namespace}
    return [{"metadata": metadata, "spec": {"nodeName": "gpu-1", "containers": [container]}}]


def crds(annotations: dict[str, str] | None) -> list[dict[str, Any]]:
    metadata = {"name": "nodesets.slinky.slurm.net", "annotations": annotations}
    return [{"metadata": metadata, "spec": {"group": "slinky.slurm.net"}}]


RELEASE = "meta.helm.sh/release-name"
FOREIGN = "cluster: it has CRDs of slinky.slurm.net that busbar did not install: nodesets.slinky.slurm.net"
ON_ONE = "keeps slurmctld's state on one server"
ACCEPTED = {"accept_state_on_one_node": True}
# What the cluster has, `state` of the configuration, and the finding.
FOUND: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {}, ""),
    ({"pods": pods("team")}, {}, "gpu-1: nvidia.com/gpu is held by team/train-0"),
    ({"pods": pods("slurm")}, {}, ""),
    ({"pods": pods("former", "slurm-worker-h100-0")}, {}, "Fix: write back `namespace`: these are pods of"),
    ({"classes": LOCAL[:1]}, {}, ON_ONE),
    ({"classes": LOCAL[1:]}, {}, ON_ONE),
    ({"classes": LOCAL[:1]}, ACCEPTED, ""),
    ({"classes": LOCAL[1:]}, ACCEPTED, ""),
    ({}, {"storage_class": "gone"},
     "state.storage_class: there is no StorageClass gone; the cluster has fast"),
    ({"classes": [OTHER]}, {}, "no StorageClass is the default one; the cluster has slow"),
    ({"classes": [SHARED, OTHER]}, {"storage_class": "slow"}, ""),
    ({"crds": crds(None)}, {}, FOREIGN),
    ({"crds": crds({RELEASE: "slinky"})}, {}, FOREIGN),
    ({"crds": crds({RELEASE: "slurm-operator-crds"})}, {}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("of_cluster", "state", "says"), FOUND)
def test_what_is_in_the_way_is_named(of_cluster: dict[str, Any], state: dict[str, Any], says: str) -> None:
    has = {"classes": [SHARED], "pods": [], "crds": [], **of_cluster}
    api = Cluster({CLASSES: has["classes"], "/api/v1/pods": has["pods"], CRDS: has["crds"]})
    given = slurm(state=state)
    found = [*map(str, obstacles(api, values.survey_spec(given, pools(given))))]
    assert len(found) == bool(says) and says in "".join(found), found


def test_nodes_are_annotated_with_the_switches_above_them_or_share_one() -> None:
    def worker(name: str, place: str = "") -> dict[str, Any]:
        annotations = {"topology.slinky.slurm.net/spec": place}
        return {"metadata": {"name": name, "labels": {"far": "b1", "near": name}, "annotations": annotations}}

    nodes = [worker("gpu-1"), worker("gpu-2", "fabric:root:b1:gpu-2"), worker("gpu-3"), worker("other")]
    cluster = Cluster({NODES: nodes})
    place(cluster, {"gpu-1": ("far", "near"), "gpu-2": ("far", "near"), "gpu-3": ()})
    placed = {path: [*body["metadata"]["annotations"].values()] for path, body in cluster.patched}
    places = {"gpu-1": "fabric:root:b1:gpu-1", "gpu-3": "fabric:root:unknown"}
    assert placed == {f"{NODES}/{name}": [where] for name, where in places.items()}
    place(Cluster(), {})  # Without a topology no node is read: that would raise.


MADE = "/apis/apps/v1/namespaces/slurm/statefulsets/slurm-controller"
KEPT = "/api/v1/namespaces/slurm/persistentvolumeclaims/statesave-slurm-controller-0"
OTHER_SIZE = "state.size cannot be changed: the cluster was made with 4Gi, the file"


@pytest.mark.parametrize(
    ("made", "size", "of_class", "state", "says"),
    [
        (MADE, "4Gi", None, {}, ""),
        (MADE, "4096Mi", None, {}, ""),
        (MADE, "4Gi", "fast", {"storage_class": "fast"}, ""),
        (MADE, "4Gi", None, {"size": "8Gi"}, OTHER_SIZE),
        (MADE, "4Gi", "fast", {}, "Fix: write back fast; for another volume: busbar destroy"),
        # It is not made yet.
        ("", "8Gi", None, {"size": "4Gi"}, ""),
        # After a destroy, which keeps the volume.
        (KEPT, "4Gi", "fast", {}, ""),
        (KEPT, "4Gi", "fast", {"size": "8Gi"}, OTHER_SIZE),
        (KEPT, "4Gi", "local", {}, "state.storage_class cannot be changed: the cluster was made with local"),
        (KEPT, "4Gi", "local", {"storage_class": "local"}, ""),
    ],
)
def test_the_volume_of_slurmctld_cannot_be_changed_once_it_is_made(
    made: str, size: str, of_class: str | None, state: dict[str, Any], says: str
) -> None:
    claim: dict[str, Any] = {"resources": {"requests": {"storage": size}}}
    claim |= {"storageClassName": of_class} if of_class else {}
    spec = {"volumeClaimTemplates": [{"metadata": {"name": "statesave"}, "spec": claim}]}
    there = {MADE: {"spec": spec}, KEPT: {"spec": claim}, "": None}[made]
    api = Cluster({CLASSES: [SHARED], **({made: there} if made else {})})
    found = [*map(str, changed_state(slurm(state=state), api))]
    assert len(found) == bool(says) and says in "".join(found), found
