"""Finds and ends what holds the devices of a cluster, and names the stacks that have releases on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from busbar.exits import Failed
from busbar.helm.releases import statuses
from busbar.kube.client import Api, JsonObject
from busbar.kube.gpus import IDLE_LABEL, MEASURED_BY, active_pods, requests
from busbar.kube.objects import NAMESPACES, OWNER, delete, find
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.text import listed

END_SECONDS = 180
"""How long pods may take to end; their grace period is 30 s by default."""


@dataclass(frozen=True)
class Workload:
    """The object that made pods which hold GPUs or HCAs, such as an MPIJob, or one such pod."""

    kind: str
    namespace: str
    name: str
    path: str
    uid: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def workloads(api: Api) -> list[Workload]:
    """All workloads that hold devices; a pod that shares its devices by jobs of its own is none.

    Raises ApiError.
    """

    @cache
    def plurals(version: str) -> dict[str, str]:
        listing = find(api, f"/apis/{version}" if "/" in version else f"/api/{version}") or {}
        return {
            each["kind"]: each["name"] for each in listing.get("resources") or () if "/" not in each["name"]
        }

    def owner_of(item: JsonObject, namespace: str) -> tuple[JsonObject, str] | None:
        """The object that controls this one, and its path; None where the API has none."""
        for reference in item["metadata"].get("ownerReferences") or ():
            version, kind = reference["apiVersion"], reference["kind"]
            if reference.get("controller") and (plural := plurals(version).get(kind)):
                base = f"/apis/{version}" if "/" in version else f"/api/{version}"
                path = f"{base}/namespaces/{namespace}/{plural}/{reference['name']}"
                found = find(api, path)
                return ({"kind": kind, **found}, path) if found else None
        return None

    found: dict[str, Workload] = {}
    for pod in active_pods(api):
        metadata = pod["metadata"]
        marks = {*(metadata.get("labels") or {}), *(metadata.get("annotations") or {})}
        if not requests(pod["spec"]) or {IDLE_LABEL, MEASURED_BY} & marks:
            continue
        namespace = metadata["namespace"]
        item, path = pod, f"/api/v1/namespaces/{namespace}/pods/{metadata['name']}"
        while owner := owner_of(item, namespace):
            item, path = owner
        made = item["metadata"]
        found[path] = Workload(item.get("kind") or "Pod", namespace, made["name"], path, made["uid"])
    return [found[path] for path in sorted(found)]


def end(api: Api, look: Callable[[], Iterable[Workload]], clock: Clock, progress: ProgressCallback) -> None:
    """Delete the workloads that `look` finds, and wait until their pods have ended.

    Raises Failed and ApiError.
    """

    def ended() -> bool | Pending:
        left = [*look()]
        for each in left:
            delete(api, each.path, each.uid)
        return Pending(f"ending: {listed([*map(str, left)])}") if left else True

    try:
        wait_until(ended, Deadline(clock, END_SECONDS), poll_seconds=2, progress=progress)
    except TimedOut as timeout:
        raise Failed(f"{timeout}; nothing was removed. Fix: kubectl get pods -A; then retry") from timeout


def owners(api: Api) -> dict[str, str]:
    """Namespace -> PROJECT/STACK of the stack that has made it. Raises ApiError."""
    marks = {
        each["metadata"]["name"]: (each["metadata"].get("annotations") or {}).get(OWNER, "")
        for each in api.list(NAMESPACES)
    }
    return {name: mark.rpartition("/")[0] for name, mark in marks.items() if mark}


def releases_by_stack(api: Api) -> dict[str, list[str]]:
    """PROJECT/STACK -> the names of its Helm releases. Raises ApiError."""
    owner, found = owners(api), dict[str, list[str]]()
    for namespace, name in sorted(statuses(api)):
        if namespace in owner:
            found.setdefault(owner[namespace], []).append(name)
    return found
