"""The objects of shared storage: a PersistentVolume of an NFS export, a claim, and the volume of a pod."""

from __future__ import annotations

from typing import Any

from busbar.manifests.names import digest, short
from stacks.training.package.storage.config import Storage

# An export has the size that its server gives it; Kubernetes wants a number and does not enforce it.
_NOMINAL_SIZE = "1Ti"
_SHARED = ["ReadWriteMany"]
_LABELS = {"app.kubernetes.io/managed-by": "busbar"}
# `busbar training bind-claim` waits, and reports why a claim is not bound.
_NO_WAIT = {"pulumi.com/skipAwait": "true"}


def claim_name(storage: Storage) -> str:
    """`<storage.claim>-<digest>`: a different name per source.

    The source of a claim cannot be changed. With its own name the new claim is made beside the old one, which
    is deleted when no job of ours uses it any more, or stays with its data.
    """
    source = {"class": storage.class_name, "nfs": _export(storage)}
    return f"{storage.claim}-{short(digest(source))}"


def _export(storage: Storage) -> dict[str, Any] | None:
    """Server, export and options that the claim leads to, configured or of the cluster; None without NFS."""
    return storage.nfs.model_dump(exclude={"from_cluster"}) if storage.nfs else None


def claim(storage: Storage, namespace: str) -> dict[str, Any]:
    """The PersistentVolumeClaim, which any number of nodes may mount for writing."""
    name = claim_name(storage)
    # "" selects no provisioner; without the field the cluster's default class would provide a volume.
    source = (
        {"storageClassName": "", "volumeName": volume_name(storage, namespace)}
        if storage.nfs
        else {"storageClassName": storage.class_name}
    )
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": _LABELS, "annotations": _NO_WAIT},
        "spec": {
            "accessModes": _SHARED,
            "resources": {"requests": {"storage": storage.size or _NOMINAL_SIZE}},
            **source,
        },
    }


def volume_name(storage: Storage, namespace: str) -> str:
    """The name of an export's PersistentVolume, unique in the cluster because the namespace is."""
    return f"{namespace}-{claim_name(storage)}"


def nfs_volume(storage: Storage, namespace: str) -> dict[str, Any]:
    """The PersistentVolume of the export, reserved for our claim. Requires mode nfs."""
    if storage.nfs is None:
        raise ValueError(f"storage.mode {storage.mode} has no export")
    return {
        "metadata": {
            "name": volume_name(storage, namespace),
            "labels": _LABELS,
            "annotations": _NO_WAIT,
        },
        "spec": {
            "capacity": {"storage": _NOMINAL_SIZE},
            "accessModes": _SHARED,
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "mountOptions": storage.nfs.options,
            "nfs": {"server": storage.nfs.server, "path": storage.nfs.export},
            "claimRef": {"namespace": namespace, "name": claim_name(storage)},
        },
    }


def pod_volume(storage: Storage) -> dict[str, Any]:
    """The source of a pod's volume: the shared storage, or a folder that is deleted with the pod."""
    if storage.mode == "none":
        return {"emptyDir": {}}
    if storage.has_claim:
        return {"persistentVolumeClaim": {"claimName": claim_name(storage)}}
    # On a worker without the folder none is made on its own disk: the pod does not start, and reports why.
    return {"hostPath": {"path": storage.path, "type": "Directory"}}
