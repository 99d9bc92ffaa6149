"""Finds and ends what holds the devices of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from busbar.exits import Failed
from busbar.kube.client import Api
from busbar.kube.gpus import IDLE_LABEL, MEASURED_BY, active_pods, requests
from busbar.kube.objects import NAMESPACES, OWNER, delete, find
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.text import listed

END_SECONDS = 180
"""How long pods may take to end; their grace period is 30 s by default."""


class Workload(NamedTuple):
    """The object that made pods which hold GPUs or HCAs, such as an MPIJob, or one such pod."""

    kind: str
    namespace: str
    name: str
    path: str
    uid: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def workloads(api: Api) -> list[Workload]:
    """All that hold devices; a pod that gives its devices to jobs of its own is none. Raises ApiError."""
    found: dict[str, Workload] = {}
    for pod in active_pods(api):
        made, namespace = pod["metadata"], pod["metadata"]["namespace"]
        marks = {*(made.get("labels") or {}), *(made.get("annotations") or {})}
        if not requests(pod["spec"]) or {IDLE_LABEL, MEASURED_BY} & marks:
            continue
        kind, path = "Pod", f"/api/v1/namespaces/{namespace}/pods/{made['name']}"
        while owner := next(
            (each for each in made.get("ownerReferences") or () if each.get("controller")), None
        ):
            version = owner["apiVersion"]
            base = f"/{'apis' if '/' in version else 'api'}/{version}/namespaces/{namespace}"
            above = f"{base}/{owner['kind'].lower()}s/{owner['name']}"
            if (item := find(api, above)) is None:
                break
            kind, path, made = owner["kind"], above, item["metadata"]
        found[path] = Workload(kind, namespace, made["name"], path, made["uid"])
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
        raise Failed(f"{timeout}; nothing was removed", "kubectl get pods -A; then retry") from timeout


def owners(api: Api) -> dict[str, str]:
    """Namespace -> PROJECT/STACK of the stack that has made it. Raises ApiError."""
    spaces = {
        each["metadata"]["name"]: each["metadata"].get("annotations") or {} for each in api.list(NAMESPACES)
    }
    return {name: marks[OWNER].rpartition("/")[0] for name, marks in spaces.items() if OWNER in marks}
