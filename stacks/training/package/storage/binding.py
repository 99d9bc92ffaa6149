"""Checks that a StorageClass can be shared, and waits until a claim is bound to a volume that stays."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from busbar.exits import Failed
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.pods import events_about
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until

POLL_SECONDS = 2.0
# Annotation that the scheduler sets when it has placed a pod; a claim whose class waits for its first pod is
# then provided (kubernetes.io, Well-Known Labels, Annotations and Taints).
SELECTED_NODE = "volume.kubernetes.io/selected-node"
_SHARED = "ReadWriteMany"

# The provisioner of volumes that were made by hand, which no controller provides.
NO_PROVISIONER = "kubernetes.io/no-provisioner"

SINGLE_NODE: Mapping[str, str] = {
    "rancher.io/local-path": "folders on the disk of one node",
    "local.csi.openebs.io": "volumes on the disk of one node",
    "openebs.io/local": "volumes on the disk of one node",
    "topolvm.io": "volumes on the disk of one node",
    "rbd.csi.ceph.com": "block devices",
    "ebs.csi.aws.com": "block devices",
    "pd.csi.storage.gke.io": "block devices",
    "disk.csi.azure.com": "block devices",
    "cinder.csi.openstack.org": "block devices",
}
"""Provisioners of file systems that only one node mounts at a time -> what they provide."""


class StorageRefused(Failed):
    """Raised if not all workers can use the storage, or its claim was not bound in time, with the reason."""


class ClassSpec(BaseModel):
    """Stdin of `busbar training check-class`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    class_name: str = Field(min_length=1)


class ClaimSpec(BaseModel):
    """Stdin of `busbar training bind-claim`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    namespace: str
    claim: str
    class_name: str | None = None
    workers: tuple[str, ...] = Field(min_length=1, description="Nodes that must be able to mount it.")
    deadline_seconds: float = Field(gt=0)


def check_class(api: Api, spec: ClassSpec) -> JsonObject:
    """The StorageClass in short: name, provisioner, reclaim_policy, binding_mode.

    Raises StorageRefused if it does not exist or provides volumes of one node; ApiError.
    """
    name = spec.class_name
    try:
        found = api.get(f"/apis/storage.k8s.io/v1/storageclasses/{name}")
    except ApiError as error:
        if not error.not_found:
            raise
        known = [each["metadata"]["name"] for each in api.list("/apis/storage.k8s.io/v1/storageclasses")]
        raise StorageRefused(
            f"StorageClass {name}: not found. The cluster has: {', '.join(sorted(known)) or 'none'}. "
            "Fix: set storage.class_name to one whose volumes many nodes may mount"
        ) from None
    provisioner = found["provisioner"]
    # The provisioner may have the cluster's own prefix, as in rook-ceph.rbd.csi.ceph.com.
    provides = next(
        (what for key, what in SINGLE_NODE.items() if f".{provisioner}".endswith(f".{key}")), None
    )
    if provides:
        raise StorageRefused(
            f"StorageClass {name}: {provisioner} provides {provides}, and one node mounts each. Expected a "
            f"file system that all workers mount ({_SHARED}). Fix: name another class, or use storage.mode: "
            "path or nfs"
        )
    binding_mode = found.get("volumeBindingMode") or "Immediate"
    if provisioner == NO_PROVISIONER and binding_mode != "Immediate":
        raise StorageRefused(
            f"StorageClass {name}: its volumes are made by hand and bound by the first pod "
            f"({binding_mode}), expected Immediate. Fix: make a class with volumeBindingMode: Immediate"
        )
    return {
        "name": name,
        "provisioner": provisioner,
        "reclaim_policy": found.get("reclaimPolicy") or "Delete",
        "binding_mode": binding_mode,
    }


def bind(api: Api, spec: ClaimSpec, clock: Clock, progress: ProgressCallback) -> JsonObject:
    """Wait until the claim is bound, check and retain its volume. Returns claim, volume, capacity.

    The volume is provided at once even if the class waits for the first pod, so that a failure is reported
    here, with the reason, and not in a training job. The reclaim policy of the volume becomes Retain, so that
    deleting the claim or its namespace keeps the data. Raises StorageRefused at the deadline, and if a worker
    cannot mount the volume; ApiError.
    """
    path = f"/api/v1/namespaces/{spec.namespace}/persistentvolumeclaims/{spec.claim}"
    what = f"PersistentVolumeClaim {spec.namespace}/{spec.claim}"

    def bound() -> JsonObject | Pending:
        claim = api.get(path)
        phase = (claim.get("status") or {}).get("phase") or "Pending"
        if phase == "Bound":
            return claim
        if phase == "Lost":
            raise StorageRefused(
                f"{what}: its volume {claim['spec'].get('volumeName')} is gone. Fix: restore the "
                "PersistentVolume, or delete the claim"
            )
        if _waits_for_a_pod(api, spec, claim):
            api.merge(path, {"metadata": {"annotations": {SELECTED_NODE: spec.workers[0]}}})
        return Pending("; ".join([f"{what} is {phase}", *_events(api, spec)]))

    try:
        claim = wait_until(
            bound, Deadline(clock, spec.deadline_seconds), poll_seconds=POLL_SECONDS, progress=progress
        )
    except TimedOut as timeout:
        raise StorageRefused(f"{timeout}. Fix: see the events, and the log of the provisioner") from None
    volume = api.get(f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
    if problems := list(_problems(api, volume, spec.workers)):
        raise StorageRefused(f"{what}: {'; '.join(problems)}")
    _retain(api, volume, progress)
    return {
        "claim": spec.claim,
        "volume": volume["metadata"]["name"],
        "capacity": (volume["spec"].get("capacity") or {}).get("storage"),
    }


def _waits_for_a_pod(api: Api, spec: ClaimSpec, claim: JsonObject) -> bool:
    if spec.class_name is None or SELECTED_NODE in (claim["metadata"].get("annotations") or {}):
        return False
    found = api.get(f"/apis/storage.k8s.io/v1/storageclasses/{spec.class_name}")
    return bool(found.get("volumeBindingMode") == "WaitForFirstConsumer")


def _events(api: Api, spec: ClaimSpec) -> Sequence[str]:
    """The controllers' events about the claim, Normal ones too: waiting for a provisioner is one."""
    events = api.list(f"/api/v1/namespaces/{spec.namespace}/events")
    return events_about(events, [spec.claim], types=("Warning", "Normal")).get(spec.claim, [])


def _problems(api: Api, volume: JsonObject, workers: Sequence[str]) -> Iterator[str]:
    """The reasons why not every worker can mount the volume."""
    name, spec = volume["metadata"]["name"], volume["spec"]
    if _SHARED not in (modes := spec.get("accessModes") or []):
        yield f"its volume {name} has the access modes {', '.join(modes)}, expected {_SHARED}"
    terms = ((spec.get("nodeAffinity") or {}).get("required") or {}).get("nodeSelectorTerms") or []
    if not terms:
        return
    labels = {
        node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in api.list("/api/v1/nodes")
    }
    away = [
        worker for worker in workers if not any(_matches(term, labels.get(worker) or {}) for term in terms)
    ]
    if away:
        yield (
            f"its volume {name} cannot be mounted on {', '.join(away)}: its node affinity names other nodes. "
            "Fix: name a class whose volumes are not bound to nodes"
        )


def _matches(term: JsonObject, labels: Mapping[str, Any]) -> bool:
    """Whether a term selects a node with these labels; an unknown term selects none."""
    if term.get("matchFields") or not term.get("matchExpressions"):
        return False
    return all(_holds(each, labels) for each in term["matchExpressions"])


def _holds(expression: JsonObject, labels: Mapping[str, Any]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    return {
        "In": labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }.get(expression["operator"], False)


def _retain(api: Api, volume: JsonObject, progress: ProgressCallback) -> None:
    name, policy = volume["metadata"]["name"], volume["spec"].get("persistentVolumeReclaimPolicy")
    if policy != "Retain":
        api.merge(f"/api/v1/persistentvolumes/{name}", {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
        progress(f"PersistentVolume {name}: reclaim policy {policy} changed to Retain; its data stay")


def read_binding(stdout: str | None, mode: str, namespace: str) -> dict[str, Any]:
    """The stack's output `storage`, from that of `busbar training bind-claim`; other texts add nothing."""
    try:
        found = json.loads(stdout or "")
    except ValueError:
        found = None
    return {"mode": mode, "namespace": namespace, **(found if isinstance(found, dict) else {})}
