"""Objects that may exist already, or be gone already, and the quantities in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any

from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.wait import Clock, Deadline, Pending, SystemClock, wait_until

POLL_SECONDS = 1.0
_UNITS = {
    **{"n": "1e-9", "u": "1e-6", "m": "1e-3", "": "1"},
    **{unit: f"1e{3 * number}" for number, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{f"{unit}i": str(1024**number) for number, unit in enumerate("KMGTPE", 1)},
}


def create_or_merge(api: Api, path: str, manifest: Mapping[str, Any]) -> None:
    """Create the manifest in the collection at `path`, or merge it into what exists. Raises ApiError."""
    if not create(api, path, manifest):
        api.merge(f"{path}/{manifest['metadata']['name']}", manifest)


def create(api: Api, path: str, manifest: Mapping[str, Any]) -> bool:
    """Create the manifest in the collection at `path` if it is not there, and say so. Raises ApiError."""
    try:
        api.create(path, manifest)
    except ApiError as error:
        if not error.conflict:
            raise
        return False
    return True


def find(api: Api, path: str) -> JsonObject | None:
    """The object at `path`; None where it, or its kind, does not exist. Raises ApiError."""
    try:
        return api.get(path)
    except ApiError as error:
        if not error.not_found:
            raise
        return None


def delete(api: Api, path: str, uid: str) -> None:
    """Delete the object with this uid; it may be gone, or its name be taken by another. Raises ApiError."""
    try:
        api.delete(path, uid=uid)
    except ApiError as error:
        if not (error.not_found or error.conflict):
            raise


NAMESPACES = "/api/v1/namespaces"
OWNER = "busbar/owner"
"""The annotation with the resource that created the namespace, as PROJECT/STACK/RESOURCE."""
API_SECONDS = 60.0


def claim_namespace(api: Api, name: str, owner: str, clock: Clock | None = None) -> None:
    """Create the namespace, with `owner` as its mark; one that is being deleted is waited for.

    Raises ValueError if it exists without that mark, and ApiError or TimedOut.
    """
    metadata: JsonObject = {"name": name, "annotations": {OWNER: owner}}
    manifest: JsonObject = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}

    def claim() -> str | Pending:
        found = manifest if create(api, NAMESPACES, manifest) else find(api, f"{NAMESPACES}/{name}")
        if found is None or "deletionTimestamp" in found["metadata"]:
            conditions = ((found or {}).get("status") or {}).get("conditions") or []
            why = "".join(f"; {each['message']}" for each in conditions if each["status"] == "True")
            return Pending(
                f"namespace {name} is being deleted{why}. Fix: start again what removes these finalizers, or "
                "take them out with kubectl edit, where nothing has to be cleaned up any more; then retry"
            )
        return str((found["metadata"].get("annotations") or {}).get(OWNER) or "missing")

    mark = wait_until(claim, Deadline(clock or SystemClock(), API_SECONDS), poll_seconds=POLL_SECONDS)
    if mark != owner:
        raise ValueError(
            f"namespace {name} exists and was not created by this stack: annotation {OWNER} is "
            f"{mark}, expected {owner}. Fix: if the stack may delete it: kubectl annotate namespace "
            f"{name} {OWNER}={owner} --overwrite; else use another one, or enabled: false of its chart"
        )


_HELD = {
    "/api/v1": "configmaps persistentvolumeclaims secrets",
    "/apis/apps/v1": "daemonsets deployments statefulsets",
    "/apis/batch/v1": "cronjobs",
}
_OURS = {"app.kubernetes.io/managed-by": ("busbar", "prometheus-operator"), "owner": ("helm",)}
_OF_CONTROLLERS = {"kubernetes.io/service-account-token", "cert-manager.io/certificate-name"}
# The keys of the Secret that a hook of kube-prometheus-stack makes (kube-webhook-certgen).
_OF_A_HOOK = {"ca", "cert", "key"}


def of_others(api: Api, namespace: str, releases: Collection[str]) -> list[str]:
    """KIND/NAME of what neither busbar, RELEASES nor a controller has made; no jobs. Raises ApiError."""
    found = []
    for base, kind in ((base, kind) for base, kinds in _HELD.items() for kind in kinds.split()):
        for each in api.list(f"{base}/namespaces/{namespace}/{kind}"):
            about = each["metadata"]
            labels, notes = about.get("labels") or {}, about.get("annotations") or {}
            by_helm = "helm.sh/hook" in notes or notes.get("meta.helm.sh/release-name") in releases
            is_ours = by_helm or any(labels.get(key) in values for key, values in _OURS.items())
            is_made = about.get("ownerReferences") or _OF_CONTROLLERS & {each.get("type"), *notes}
            if is_ours or is_made or {*(each.get("data") or ())} == _OF_A_HOOK:
                continue
            # Such as kube-root-ca.crt: a controller puts it into each namespace, and again after a deletion.
            twin = find(api, f"{base}/namespaces/default/{kind}/{about['name']}") or {}
            if not each.get("data") or each["data"] != twin.get("data"):
                found.append(f"{kind}/{about['name']}")
    return found


def quantity(value: Any) -> Decimal:
    """The number of a quantity of Kubernetes, such as `4Gi`. Raises ArithmeticError or KeyError."""
    text = str(value)
    number = text.rstrip("numkKMGTPEi")
    return Decimal(number) * Decimal(_UNITS[text[len(number) :]])
