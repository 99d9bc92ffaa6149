"""Waiting until an object is ready, or gone."""

from __future__ import annotations

import time
from collections.abc import Iterator

from busbar.kube.transport import Unreachable
from lab.offline.plugins.kubernetes import readiness, wait_for
from lab.offline.plugins.kubernetes.client import ApiError, Object
from lab.offline.plugins.kubernetes.cluster import Cluster
from lab.offline.plugins.kubernetes.kinds import Kind, annotation, metadata
from lab.offline.plugins.kubernetes.readiness import Check, Readiness
from lab.offline.plugins.sdk.resource import Call

_DEFAULT_SECONDS = 600.0
_WATCH_SECONDS = 15.0
_SERVICE_SECONDS = 2.0
_RETRY_SECONDS = 1.0
# Deleting one of these may go on without us; other kinds are always waited for.
_SKIPPABLE_DELETES = frozenset(
    {
        *(("", kind) for kind in ("Namespace", "Pod", "ReplicationController")),
        *(("apps", kind) for kind in ("DaemonSet", "Deployment", "StatefulSet")),
        ("batch", "Job"),
    }
)


class NotReady(Exception):
    """The object is there but not ready; `live` is how it was seen last."""

    def __init__(self, message: str, live: Object, reasons: list[str]) -> None:
        super().__init__(message)
        self.live = live
        self.reasons = reasons


def seconds_allowed(call: Call, inputs: Object) -> float:
    """The time for a wait: customTimeouts, else the annotation, else ten minutes."""
    if call.timeout_seconds:
        return call.timeout_seconds
    text = annotation(inputs, "pulumi.com/timeoutSeconds")
    return float(text) if text.isdigit() else _DEFAULT_SECONDS


class Waiter:
    """Waits on behalf of one operation on one object."""

    def __init__(self, cluster: Cluster, call: Call, inputs: Object, live: Object | None = None) -> None:
        self._client = cluster.client
        self._endpoint = cluster.kinds.endpoint(Kind.of(live or inputs))
        self._call = call
        self._inputs = inputs

    def ready(self, live: Object) -> Object:
        """The object once it is ready. Raises NotReady at the deadline or when it can never become ready."""
        check = self._check(live)
        if check is None:
            return live
        deadline = time.monotonic() + seconds_allowed(self._call, self._inputs)
        found, shown = Readiness(False), ""
        for seen in self._states(live, deadline):
            if seen is None:
                continue
            live, found = seen, check(seen)
            if found.ready and self._serves(live):
                self._call.show("")
                return live
            if found.fatal:
                name = metadata(live)["name"]
                raise NotReady(
                    f"Resource '{name}' was created but failed to initialize",
                    live,
                    [*found.fatal, *self._pod_problems(live)],
                )
            if found.progress != shown:
                shown = found.progress
                self._call.show(shown)
        name = metadata(live)["name"]
        reasons = [*(found.problems or (found.progress,)), *self._pod_problems(live)]
        stop = "was cancelled" if self._call.cancelled.is_set() else "timed out waiting to be Ready"
        raise NotReady(f"'{name}' {stop}", live, [reason for reason in reasons if reason])

    def ready_now(self, live: Object) -> None:
        """Raises NotReady where an object of a kind with a check of its own is not ready at this moment."""
        check = readiness.check_for(live)
        if check is None or annotation(self._inputs, "pulumi.com/skipAwait") == "true":
            return
        found = check(live)
        if not found.ready:
            reasons = [*found.fatal, *(found.problems or (found.progress,)), *self._pod_problems(live)]
            name = metadata(live)["name"]
            raise NotReady(f"Resource '{name}' was created but failed to initialize", live, reasons)

    def gone(self, live: Object) -> None:
        """Return when the object no longer exists. Raises NotReady at the deadline."""
        kind = Kind.of(live)
        skip = annotation(self._inputs, "pulumi.com/skipAwait") == "true"
        if skip and (kind.group, kind.kind) in _SKIPPABLE_DELETES:
            return
        deadline = time.monotonic() + seconds_allowed(self._call, self._inputs)
        uid = metadata(live).get("uid")
        for seen in self._states(live, deadline):
            if seen is None or (uid and metadata(seen).get("uid") != uid):
                return
            live = seen
        finalizers = ", ".join(metadata(live).get("finalizers") or [])
        self._call.log_message("warning", f"finalizers might be preventing deletion ({finalizers})")
        raise NotReady("timed out waiting for the condition", live, [])

    def _check(self, live: Object) -> Check | None:
        if annotation(self._inputs, "pulumi.com/skipAwait") == "true":
            return None
        wanted = annotation(self._inputs, "pulumi.com/waitFor")
        return wait_for.check_for(wanted) if wanted else readiness.check_for(live)

    def _states(self, live: Object, deadline: float) -> Iterator[Object | None]:
        """The object each time it changes, None when it is gone; ends at the deadline or when cancelled."""
        found = metadata(live)
        path = self._endpoint.object(found.get("namespace"), found["name"])
        while not self._call.cancelled.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            try:
                current = self._client.request("GET", path)
            except ApiError as error:
                if error.code == 404:
                    yield None
                    current = {}
                elif error.code < 500:
                    raise
                else:
                    current = {}
            except Unreachable as error:
                self._call.show(f"waiting for the API server: {error}")
                current = {}
            if current:
                yield current
                # A Service does not change when its endpoints do, so it is looked at more often.
                window = _SERVICE_SECONDS if current.get("kind") == "Service" else _WATCH_SECONDS
                yield from self._events(current, min(left, window))
            self._call.cancelled.wait(min(left, _RETRY_SECONDS))

    def _events(self, current: Object, seconds: float) -> Iterator[Object | None]:
        found = metadata(current)
        query = {
            "fieldSelector": f"metadata.name={found['name']}",
            "resourceVersion": found.get("resourceVersion", ""),
        }
        try:
            for event in self._client.watch(
                self._endpoint.collection(found.get("namespace")), query, seconds
            ):
                if event.get("type") == "DELETED":
                    yield None
                elif event.get("type") in ("ADDED", "MODIFIED"):
                    yield event["object"]
                else:
                    return
                if self._call.cancelled.is_set():
                    return
        except (ApiError, Unreachable):
            return  # the caller reads the object again

    def _serves(self, live: Object) -> bool:
        """For a Service that selects pods: whether one of them is ready to take its traffic."""
        spec = live.get("spec") or {}
        if Kind.of(live) != Kind("", "v1", "Service") or not spec.get("selector"):
            return True
        if spec.get("clusterIP") == "None" or spec.get("type") == "ExternalName":
            return True
        found = metadata(live)
        slices = self._client.request(
            "GET",
            f"/apis/discovery.k8s.io/v1/namespaces/{found['namespace']}/endpointslices",
            query={"labelSelector": f"kubernetes.io/service-name={found['name']}"},
        )
        ready = any(
            (endpoint.get("conditions") or {}).get("ready")
            for item in slices.get("items") or []
            for endpoint in item.get("endpoints") or []
        )
        if not ready:
            self._call.show("Finding Pods to direct traffic to")
        return ready

    def _pod_problems(self, live: Object) -> list[str]:
        kind, found = Kind.of(live), metadata(live)
        labels = ((live.get("spec") or {}).get("selector") or {}).get("matchLabels")
        if kind.group not in ("apps", "batch") or not isinstance(labels, dict):
            return []
        try:
            pods = self._client.request(
                "GET",
                f"/api/v1/namespaces/{found['namespace']}/pods",
                query={"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())},
            )
        except (ApiError, Unreachable):
            return []
        return [text for pod in pods.get("items") or [] for text in readiness.pod_problems(pod)]
