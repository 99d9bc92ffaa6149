"""What is in the way of Slurm is named before anything is installed."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.frame import CLASSES, CRDS
from busbar.kube.nodes import NODES
from stacks.slurm_k8s.package import values
from stacks.slurm_k8s.package.survey import changed_state, obstacles, place
from stacks.slurm_k8s.tests.support import pools, slurm
from tests.support.kube_cluster import Cluster

IS_DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}
SHARED = {"metadata": {"name": "fast", "annotations": IS_DEFAULT}, "provisioner": "weka"}
LOCAL = {
    "metadata": {"name": "local-path", "annotations": IS_DEFAULT},
    "provisioner": "rancher.io/local-path",
}
OTHER = {"metadata": {"name": "slow"}, "provisioner": "weka"}


def holder(namespace: str, units: str = "1") -> dict[str, Any]:
    container = {"resources": {"requests": {"nvidia.com/gpu": units}}}
    return {
        "metadata": {"name": "train-0", "namespace": namespace},
        "spec": {"nodeName": "gpu-1", "containers": [container]},
    }


def found(
    *classes: dict[str, Any],
    pods: tuple[dict[str, Any], ...] = (),
    crd: dict[str, Any] | None = None,
    **config: Any,
) -> list[str]:
    given = slurm(**config)
    api = Cluster({CLASSES: list(classes), "/api/v1/pods": list(pods), CRDS: [crd] if crd else []})
    return [*map(str, obstacles(api, values.survey_spec(given, pools(given))))]


def test_a_cluster_on_which_nothing_is_in_the_way_has_no_findings() -> None:
    assert found(SHARED) == []


def test_gpus_that_pods_of_others_hold_are_named_with_these_pods() -> None:
    [text] = found(SHARED, pods=(holder("team"),))
    assert text.startswith("gpu-1: nvidia.com/gpu is held by team/train-0")


def test_pods_of_slurm_itself_are_in_nobody_s_way() -> None:
    assert found(SHARED, pods=(holder("slurm", "8"),)) == []


@pytest.mark.parametrize("provisioner", ["rancher.io/local-path", "kubernetes.io/no-provisioner"])
def test_state_on_one_server_is_refused_unless_it_is_accepted(provisioner: str) -> None:
    [text] = found({**LOCAL, "provisioner": provisioner})
    assert "keeps slurmctld's state on one server" in text
    accepted = {"accept_state_on_one_node": True}
    assert found({**LOCAL, "provisioner": provisioner}, state=accepted) == []


def test_a_missing_class_is_named_with_those_that_the_cluster_has() -> None:
    [text] = found(SHARED, state={"storage_class": "gone"})
    assert text.startswith("state.storage_class: there is no StorageClass gone; the cluster has fast")
    [text] = found(OTHER)
    assert "no StorageClass is the default one; the cluster has slow" in text


def test_a_class_that_is_not_the_default_one_can_be_named() -> None:
    assert found(SHARED, OTHER, state={"storage_class": "slow"}) == []


@pytest.mark.parametrize(
    ("annotations", "refused"),
    [
        (None, True),
        ({"meta.helm.sh/release-name": "slinky"}, True),
        ({"meta.helm.sh/release-name": "slurm-operator-crds"}, False),
    ],
)
def test_crds_of_another_operator_are_not_taken_over(
    annotations: dict[str, str] | None, refused: bool
) -> None:
    name = "nodesets.slinky.slurm.net"
    crd = {"metadata": {"name": name, "annotations": annotations}, "spec": {"group": "slinky.slurm.net"}}
    what = f"cluster: it has CRDs of slinky.slurm.net that busbar did not install: {name}"
    assert any(what in text for text in found(SHARED, crd=crd)) is refused


def test_nodes_are_annotated_with_the_switches_above_them() -> None:
    def worker(name: str, place: str = "") -> dict[str, Any]:
        annotations = {"topology.slinky.slurm.net/spec": place}
        return {"metadata": {"name": name, "labels": {"far": "b1", "near": name}, "annotations": annotations}}

    cluster = Cluster({NODES: [worker("gpu-1"), worker("gpu-2", "fabric:root:b1:gpu-2"), worker("other")]})
    place(cluster, {"gpu-1": ("far", "near"), "gpu-2": ("far", "near")})
    [(path, body)] = cluster.patched
    assert path == f"{NODES}/gpu-1"
    assert [*body["metadata"]["annotations"].values()] == ["fabric:root:b1:gpu-1"]


def test_nodes_of_a_pool_without_switches_share_one() -> None:
    cluster = Cluster({NODES: [{"metadata": {"name": "gpu-1"}}]})
    place(cluster, {"gpu-1": ()})
    assert [*cluster.patched[0][1]["metadata"]["annotations"].values()] == ["fabric:root:unknown"]


def test_without_a_topology_no_node_is_read() -> None:
    place(Cluster(), {})  # a read would raise


def test_the_volume_of_slurmctld_cannot_be_changed_once_it_is_made() -> None:
    path = "/apis/apps/v1/namespaces/slurm/statefulsets/slurm-controller"

    def changed(first: str, of_class: str | None = None, **state: Any) -> list[str]:
        claim: dict[str, Any] = {"resources": {"requests": {"storage": first}}}
        claim |= {"storageClassName": of_class} if of_class else {}
        made = {"spec": {"volumeClaimTemplates": [{"metadata": {"name": "statesave"}, "spec": claim}]}}
        given = slurm(state=state)
        return [*map(str, changed_state(given, Cluster({path: made})))]

    assert changed("4Gi") == changed("4096Mi") == changed("4Gi", "fast", storage_class="fast") == []
    [size] = changed("4Gi", size="8Gi")
    assert (
        "state.size cannot be changed: the cluster was made with 4Gi, the file says 8Gi. Fix: write" in size
    )
    [of_class] = changed("4Gi", "fast")
    assert (
        "storage_class cannot be changed: the cluster was made with fast, the file says the def" in of_class
    )
    assert "Fix: write back fast; for another volume: busbar destroy" in of_class


def test_before_slurmctld_is_made_its_volume_is_free() -> None:
    assert changed_state(slurm(state={"size": "8Gi"}), Cluster({})) == []
