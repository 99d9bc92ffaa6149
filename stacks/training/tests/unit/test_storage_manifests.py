"""The objects of shared storage: what they ask for, and when they are other objects."""

from typing import Any

from stacks.training.package.storage import Storage, claim, claim_name, nfs_volume, pod_volume

NAMESPACE = "busbar-training"
EXPORT = {"server": "10.0.0.5", "export": "/srv/checkpoints"}


def nfs(**change: Any) -> Storage:
    return Storage.model_validate({"mode": "nfs", "nfs": {**EXPORT, **change}})


def of_class(**change: Any) -> Storage:
    return Storage.model_validate({"mode": "class", "class_name": "weka", "size": "10Ti", **change})


def test_a_claim_of_a_class_asks_for_a_volume_that_all_nodes_mount_for_writing() -> None:
    found = claim(of_class(), NAMESPACE)
    of_class_weka = {"storageClassName": "weka", "resources": {"requests": {"storage": "10Ti"}}}
    assert found["spec"] == {"accessModes": ["ReadWriteMany"], **of_class_weka}
    assert (found["metadata"]["name"], found["metadata"]["namespace"]) == (claim_name(of_class()), NAMESPACE)


def test_an_export_and_its_claim_name_each_other_and_no_class_and_fit() -> None:
    volume, found = nfs_volume(nfs(), NAMESPACE), claim(nfs(), NAMESPACE)
    assert volume["spec"]["claimRef"] == {"namespace": NAMESPACE, "name": found["metadata"]["name"]}
    assert found["spec"]["volumeName"] == volume["metadata"]["name"]
    assert found["spec"]["storageClassName"] == volume["spec"]["storageClassName"] == ""
    assert found["spec"]["resources"]["requests"] == volume["spec"]["capacity"]
    for each in (volume, found):
        # The engine waits for neither: the step `bind-claim` does.
        assert each["metadata"]["annotations"] == {"pulumi.com/skipAwait": "true"}
    # Two stacks on one cluster have volumes of their own.
    assert nfs_volume(nfs(), "other")["metadata"]["name"] != volume["metadata"]["name"]


def test_an_export_is_mounted_from_its_server_and_never_deleted() -> None:
    spec = nfs_volume(nfs(), NAMESPACE)["spec"]
    assert spec["nfs"] == {"server": "10.0.0.5", "path": "/srv/checkpoints"}
    assert {"hard", "nfsvers=4.2"} < {*spec["mountOptions"]}
    assert (spec["accessModes"], spec["persistentVolumeReclaimPolicy"]) == (["ReadWriteMany"], "Retain")


def test_another_source_has_another_claim_and_another_size_or_release_has_not() -> None:
    sources = (nfs(), nfs(export="/b"), nfs(options=["hard"]), of_class(), of_class(class_name="b"))
    assert len({claim_name(each) for each in sources}) == len(sources)
    assert claim_name(of_class(size="20Ti")) == claim_name(of_class()) == "shared-2b4f004e15"
    assert claim_name(nfs()) == "shared-36eee9f0fc", "another name has no data"
    assert claim_name(of_class(claim="data")).startswith("data-")


def test_a_pod_mounts_the_claim_the_folder_of_the_host_or_nothing_shared() -> None:
    for storage in (nfs(), of_class()):
        assert pod_volume(storage) == {"persistentVolumeClaim": {"claimName": claim_name(storage)}}
    folder = {"hostPath": {"path": "/mnt", "type": "Directory"}}
    assert pod_volume(Storage(mode="path", path="/mnt")) == folder
    assert pod_volume(Storage()) == {"emptyDir": {}}
