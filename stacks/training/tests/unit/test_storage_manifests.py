"""The objects of shared storage: what they ask for, and when they are other objects."""

from __future__ import annotations

from typing import Any

import pytest

from stacks.training.package.storage import Storage, claim, claim_name, nfs_volume, pod_volume

NAMESPACE = "busbar-training"
# The engine waits for nothing: the step `bind-claim` does.
MANAGED = {
    "labels": {"app.kubernetes.io/managed-by": "busbar"},
    "annotations": {"pulumi.com/skipAwait": "true"},
}
EXPORT = {"server": "10.0.0.5", "export": "/srv/checkpoints"}


def nfs(**change: Any) -> Storage:
    return Storage.model_validate({"mode": "nfs", "nfs": {**EXPORT, **change}})


def of_class(**change: Any) -> Storage:
    return Storage.model_validate({"mode": "class", "class_name": "weka", "size": "10Ti", **change})


def test_a_claim_of_a_class_asks_for_a_volume_that_all_nodes_mount_for_writing() -> None:
    assert claim(of_class(), NAMESPACE) == {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim_name(of_class()), "namespace": NAMESPACE, **MANAGED},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "weka",
            "resources": {"requests": {"storage": "10Ti"}},
        },
    }


def test_an_export_and_its_claim_name_each_other_and_no_class() -> None:
    volume, found = nfs_volume(nfs(), NAMESPACE), claim(nfs(), NAMESPACE)
    assert volume["spec"]["claimRef"] == {"namespace": NAMESPACE, "name": found["metadata"]["name"]}
    assert found["spec"]["volumeName"] == volume["metadata"]["name"]
    assert found["spec"]["storageClassName"] == volume["spec"]["storageClassName"] == ""


def test_an_export_is_mounted_from_its_server_and_never_deleted() -> None:
    name = claim_name(nfs())
    assert nfs_volume(nfs(), NAMESPACE) == {
        "kind": "PersistentVolume",
        "metadata": {"name": f"{NAMESPACE}-{name}", **MANAGED},
        "spec": {
            "capacity": {"storage": "1Ti"},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "mountOptions": ["nfsvers=4.2", "hard", "noatime", "nconnect=8"],
            "nfs": {"server": "10.0.0.5", "path": "/srv/checkpoints"},
            "claimRef": {"namespace": NAMESPACE, "name": name},
        },
    }


def test_a_claim_fits_into_the_volume_of_its_export() -> None:
    assert (
        claim(nfs(), NAMESPACE)["spec"]["resources"]["requests"]
        == nfs_volume(nfs(), NAMESPACE)["spec"]["capacity"]
    )


def test_another_source_has_another_claim_and_another_size_has_not() -> None:
    names = [
        claim_name(each)
        for each in (nfs(), nfs(export="/b"), nfs(options=["hard"]), of_class(), of_class(class_name="b"))
    ]
    assert len(set(names)) == len(names)
    assert claim_name(of_class(size="20Ti")) == claim_name(of_class())
    assert claim_name(of_class(claim="data")).startswith("data-")


def test_a_claim_keeps_its_name_over_releases_because_another_one_has_no_data() -> None:
    assert claim_name(of_class()) == "shared-2b4f004e15"
    assert claim_name(nfs()) == "shared-36eee9f0fc"


def test_volumes_of_two_stacks_on_one_cluster_do_not_collide() -> None:
    names = {nfs_volume(nfs(), namespace)["metadata"]["name"] for namespace in ("a", "b")}
    assert len(names) == 2


def test_a_pod_mounts_the_claim_the_folder_of_the_host_or_nothing_shared() -> None:
    assert pod_volume(nfs()) == {"persistentVolumeClaim": {"claimName": claim_name(nfs())}}
    assert pod_volume(of_class()) == {"persistentVolumeClaim": {"claimName": claim_name(of_class())}}
    assert pod_volume(Storage(mode="path", path="/mnt")) == {
        "hostPath": {"path": "/mnt", "type": "Directory"}
    }
    assert pod_volume(Storage()) == {"emptyDir": {}}


def test_a_mode_without_an_export_has_no_volume_of_one() -> None:
    with pytest.raises(ValueError, match=r"storage\.mode class has no export"):
        nfs_volume(of_class(), NAMESPACE)
