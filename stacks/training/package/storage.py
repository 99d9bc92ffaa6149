"""`storage` of `busbar-training:training`: its keys, its objects, and the wait for a volume that stays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from busbar.config.findings import show
from busbar.config.types import Address, DnsLabel, DnsSubdomain, Matching, Quantity, Seconds, invalid
from busbar.exits import Failed
from busbar.finding import STACK, Finding, Fix
from busbar.kube import objects
from busbar.kube.client import Api, JsonObject
from busbar.kube.health import problem
from busbar.kube.pods import events_about
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.manifests.names import digest, short
from busbar.models import ConfigModel, StrictModel
from busbar.outputs.contract import printed_object
from busbar.text import listed

FolderPath = Annotated[
    str, Matching(r"(/[A-Za-z0-9._-]+)+", "an absolute path without spaces, such as /mnt/shared")
]
ExportPath = Annotated[
    str, Matching(r"/|(/[A-Za-z0-9._-]+)+", "the path of an export without spaces, such as /srv/checkpoints")
]


def _server(value: str) -> str:
    if re.search(r"\.svc(\.|$)|\.cluster\.local$", value):
        raise invalid(
            "is the name of a Service: the host mounts, and it does not resolve names of the cluster",
            "give the address of the server",
        )
    return value


def _option(value: str) -> str:
    """Refuse options that can lose a checkpoint (nfs(5)); a mount that fails says why in the pod's events."""
    if value in ("soft", "softerr"):
        raise invalid("gives up a write when the server is slow: the checkpoint is corrupt", "use hard")
    return value


MountOption = Annotated[
    str,
    AfterValidator(_option),
    Matching(r"[a-z][a-z0-9_]*(=[A-Za-z0-9._:/-]+)?", "one mount option, such as hard or nconnect=8"),
]


class Nfs(ConfigModel):
    """An export of an NFS server that every worker reaches: any one, or that of the cluster's stack."""

    from_cluster: bool = False
    """Take server and export from the output nfs_server of the cluster."""
    server: Annotated[Address, AfterValidator(_server)] | None = None
    """Address of the server, or a name that the hosts resolve."""
    export: ExportPath | None = None
    """Exported folder; with NFSv4, below the server's root."""
    options: list[MountOption] = Field(default=["nfsvers=4.2", "hard", "noatime", "nconnect=8"])
    """Mount options; a list replaces these. nconnect needs Linux 5.3 on the workers."""


class Storage(ConfigModel):
    """Storage that all workers share: checkpoints are on it, and the run proves that it is shared."""

    mode: Literal["none", "path", "class", "nfs"] = "none"
    """none: checkpoints are local to the first pod. path: a file system that every worker has mounted at the
    same place, such as Lustre, WEKA or NFS. class: a claim of a StorageClass. nfs: an export of an NFS
    server."""
    path: FolderPath | None = None
    """Folder on that file system; it must exist on every worker. For mode path."""
    class_name: DnsSubdomain | None = None
    """StorageClass whose volumes many nodes may mount for writing. For mode class."""
    size: Quantity | None = None
    """Size of the claim. For mode class."""
    nfs: Nfs | None = None
    """The export. For mode nfs."""
    claim: Annotated[DnsLabel, Field(max_length=40)] = "shared"
    """First part of the name of the PersistentVolumeClaim. For modes class and nfs."""
    bind_timeout_seconds: Seconds = 300
    """Time until the claim must be bound, in seconds. For modes class and nfs."""

    @property
    def is_shared(self) -> bool:
        """True if all workers see the same files."""
        return self.mode != "none"

    @property
    def has_claim(self) -> bool:
        """True if pods mount the storage by a PersistentVolumeClaim of this stack."""
        return self.mode in ("class", "nfs")

    @property
    def keeps_claim(self) -> bool:
        """True if a destroy leaves the claim, because only the claim leads to the data."""
        return self.mode == "class"


_KEYS: Mapping[str, Mapping[str, str]] = {
    "none": {},
    "path": {"path": "name the folder that all workers share"},
    "class": {
        "class_name": "name a StorageClass of the cluster (kubectl get storageclass)",
        "size": "give a size such as 10Ti",
    },
    "nfs": {"nfs": "give nfs.server and nfs.export, or nfs.from_cluster: true"},
}
"""Mode -> the keys that it needs, each with the fix if it is missing."""
_OF_CLAIMS = ("claim", "bind_timeout_seconds")


def storage_findings(storage: Storage) -> Iterator[Finding]:
    """The checks that no value can make on its own: keys that a mode lacks, or does not use."""
    needed, nfs = _KEYS[storage.mode], storage.nfs
    for key in Storage.model_fields:
        value = getattr(storage, key)
        user = next((mode for mode, keys in _KEYS.items() if key in keys), "class")
        if key in needed and value is None:
            yield Finding(("storage", key), f"missing: storage.mode is {storage.mode}", needed[key])
        is_used = key in ("mode", *needed) or (storage.has_claim and key in _OF_CLAIMS)
        if not is_used and key in storage.model_fields_set and value is not None:
            what, fix = f"is not used: storage.mode is {storage.mode}", f"set storage.mode: {user}"
            yield Finding(("storage", key), what, fix, "" if key == "nfs" else show(value))
    if nfs is None:
        return
    for key, value in (("server", nfs.server), ("export", nfs.export)):
        where = ("storage", "nfs", key)
        if nfs.from_cluster and value is not None:
            yield Finding(where, "is given together with from_cluster", "remove one of the two", show(value))
        if not nfs.from_cluster and value is None:
            yield Finding(where, "missing", "give it, or set storage.nfs.from_cluster: true")


# An export has the size that its server gives it; Kubernetes wants a number and does not enforce it.
_NOMINAL_SIZE = "1Ti"
_SHARED = ["ReadWriteMany"]
_LABELS = {"app.kubernetes.io/managed-by": "busbar"}
# The steps wait, and report why a claim is not bound, or why a job does not start.
NO_WAIT = {"pulumi.com/skipAwait": "true"}


def claim_name(storage: Storage) -> str:
    """`<storage.claim>-<digest>`: the source of a claim cannot be changed, so each has a claim of its own."""
    export = storage.nfs.model_dump(exclude={"from_cluster"}) if storage.nfs else None
    return f"{storage.claim}-{short(digest({'class': storage.class_name, 'nfs': export}))}"


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
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace, "labels": _LABELS, "annotations": NO_WAIT},
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
    name = volume_name(storage, namespace)
    return {
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": _LABELS, "annotations": NO_WAIT},
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


POLL_SECONDS = 2.0
# Annotation that the scheduler sets when it has placed a pod; a claim whose class waits for its first pod is
# then provided (kubernetes.io, Well-Known Labels, Annotations and Taints).
SELECTED_NODE = "volume.kubernetes.io/selected-node"


class ClaimSpec(StrictModel):
    """The request of the step `bind-claim`."""

    namespace: str
    claim: str
    class_name: str | None = None
    worker: str = Field(min_length=1, description="The node that a class is told which waits for a pod.")
    deadline_seconds: float = Field(gt=0)


def bind(api: Api, spec: ClaimSpec, clock: Clock, progress: ProgressCallback) -> JsonObject:
    """The step `bind-claim`: await the bound claim, retain its volume. Returns claim, volume, capacity.

    The volume is provided before a job writes to it, even if the class waits for the first pod. Raises Failed
    with the claim's events at the deadline; ApiError.
    """
    path = f"/api/v1/namespaces/{spec.namespace}/persistentvolumeclaims/{spec.claim}"
    what = f"PersistentVolumeClaim {spec.namespace}/{spec.claim}"

    def bound() -> JsonObject | Pending:
        claim = api.get(path)
        phase = (claim.get("status") or {}).get("phase") or "Pending"
        if phase == "Bound":
            return claim
        if phase == "Lost":
            gone = f"{what}: its volume {claim['spec'].get('volumeName')} is gone"
            raise Failed(gone, _fix(phase, spec.namespace, spec.claim))
        if spec.class_name and SELECTED_NODE not in (claim["metadata"].get("annotations") or {}):
            # Where there is no such class, an event about the claim says so.
            found = objects.find(api, f"/apis/storage.k8s.io/v1/storageclasses/{spec.class_name}")
            if found and found.get("volumeBindingMode") == "WaitForFirstConsumer":
                api.merge(path, {"metadata": {"annotations": {SELECTED_NODE: spec.worker}}})
        # Normal events too: waiting for a provisioner is one.
        events = api.list(f"/api/v1/namespaces/{spec.namespace}/events")
        about = events_about(events, [spec.claim], types=("Warning", "Normal")).get(spec.claim, [])
        return Pending("; ".join([f"{what} is {phase}", *about]))

    deadline = Deadline(clock, spec.deadline_seconds)
    try:
        claim = wait_until(bound, deadline, poll_seconds=POLL_SECONDS, progress=progress)
    except TimedOut as timeout:
        raise Failed(f"{timeout}. Fix: see the events, and the log of the provisioner") from None
    of_volume = f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}"
    volume = api.get(of_volume)
    name, policy = volume["metadata"]["name"], volume["spec"].get("persistentVolumeReclaimPolicy")
    if policy != "Retain":
        api.merge(of_volume, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
        progress(f"PersistentVolume {name}: reclaim policy {policy} changed to Retain; its data stay")
    capacity = (volume["spec"].get("capacity") or {}).get("storage")
    return {"claim": spec.claim, "volume": name, "capacity": capacity}


class NamespaceSpec(StrictModel):
    """The request of the step `before-deletion`. `stays`: a destroy leaves the namespace."""

    namespace: str
    stays: bool


def refuse_claims(api: Api, spec: NamespaceSpec, *_: object) -> None:
    """The step `before-deletion` of the namespace. Raises Failed for claims whose data would go; ApiError."""
    claims = {
        each["spec"]["claimRef"]["name"]: each["metadata"]["name"]
        for each in (() if spec.stays else api.list("/api/v1/persistentvolumes"))
        if (each["spec"].get("claimRef") or {}).get("namespace") == spec.namespace
        and each["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
        and (each.get("status") or {}).get("phase") == "Bound"
    }
    if claims:
        keep = '{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}'
        patch = f"kubectl patch pv {' '.join(claims.values())} -p '{keep}'"
        fix = f"{patch} keeps it; else kubectl -n {spec.namespace} delete pvc {' '.join(claims)}; then retry"
        raise Failed(f"the data of claims {listed([*claims])} would go with namespace {spec.namespace}", fix)


def _fix(phase: str | None, namespace: str, name: str) -> Fix:
    """What to do about a claim that is not bound; None: it is not there. The engine makes it again."""
    again = ("up", STACK, "--refresh")
    if phase == "Lost":
        delete = f"kubectl -n {namespace} delete pvc {name}, then"
        return Fix(f"restore the PersistentVolume; or {delete}", again)
    describe = f"kubectl -n {namespace} describe pvc {name}, whose events name the reason"
    return Fix(describe) if phase else Fix(command=again)


def unbound(api: Api, storage: Storage, namespace: str) -> Iterator[Finding]:
    """Find that the claim of the configuration is not bound. Raises ApiError."""
    name = claim_name(storage)
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"
    found = objects.find(api, path) if storage.has_claim else {"status": {"phase": "Bound"}}
    phase = None if found is None else (found.get("status") or {}).get("phase") or "Pending"
    if phase != "Bound":
        what = f"PersistentVolumeClaim {namespace}/{name} is {phase or 'missing'}, expected Bound"
        yield problem(what, _fix(phase, namespace, name))


def described(storage: Storage, namespace: str, printed: str | None) -> dict[str, Any]:
    """The output `storage`. `printed`: by the step `bind-claim`; other texts add nothing."""
    if not storage.has_claim:
        return {"mode": storage.mode}
    return {"mode": storage.mode, "namespace": namespace, **printed_object(printed)}
