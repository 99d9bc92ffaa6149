"""What keeps pods from running, from their status and from their events."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from busbar.kube.client import Api, ApiError, JsonObject
from busbar.text import listed

MAX_EVENTS_PER_POD = 3
MAX_ISSUES = 12
_MESSAGE_LIMIT = 300
_NAMED_PODS = 2
# The id of a sandbox, a container or an object, which every attempt has anew; not the digest of an image.
_ID = re.compile(
    r"(?<!sha256:)\b(?:[0-9a-f]{64}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\b"
)
# Events that only repeat the reason for which a container waits.
_REPEATED_EVENTS = frozenset({"Failed: Error: ErrImagePull", "Failed: Error: ImagePullBackOff"})

# Waiting reasons of a pod that is starting.
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})

# Waiting reasons that need a change of the image, the registry's credentials, or the pod
# (kubernetes pkg/kubelet/images/types.go, pkg/kubelet/kuberuntime).
PERMANENT_REASONS = frozenset(
    {"InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RunContainerError", "StartError"}
)
# The kubelet retries these and may succeed (a registry that is being restarted): errors when they persist.
RETRIED_REASONS = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "RegistryUnavailable", "CrashLoopBackOff"}
    | {"CreateContainerConfigError", "CreateContainerError"}
)


@dataclass(frozen=True)
class PodIssue:
    """One problem of a pod.

    `permanent`: the pod cannot run without a change. `persistent`: the same, once it has lasted a while.
    """

    pod: str
    reason: str
    message: str
    permanent: bool = False
    persistent: bool = False

    @property
    def what(self) -> str:
        """The issue without the pod's name."""
        return self.reason + (f": {self.message}" if self.message else "")

    def __str__(self) -> str:
        return f"{self.pod}: {self.what}"


def owners(pod: JsonObject) -> set[str]:
    """The kinds of what owns a pod."""
    return {str(each.get("kind")) for each in pod["metadata"].get("ownerReferences") or []}


def is_of_job(pod: JsonObject) -> bool:
    """True if a job of any kind, such as Job or MPIJob, owns the pod."""
    return any(kind.endswith("Job") for kind in owners(pod))


def issues_of(pod: JsonObject) -> Iterator[PodIssue]:
    """The problems in the pod's own status; none for a healthy pod."""
    name = pod["metadata"]["name"]
    status = pod.get("status") or {}
    if status.get("phase") == "Failed" and status.get("reason"):
        yield PodIssue(name, status["reason"], _short(status.get("message")), permanent=True)
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            reason = condition.get("reason") or "Unschedulable"
            yield PodIssue(name, reason, _short(condition.get("message")), persistent=True)
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for container in containers:
        yield from _container_issues(name, container)


def _container_issues(pod: str, container: JsonObject) -> Iterator[PodIssue]:
    state = container.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    label = f"container {container.get('name')}"
    reason = waiting.get("reason") or ""
    runs = [ended] if ended.get("exitCode") else []
    if reason and reason not in _STARTING:
        permanent, persistent = reason in PERMANENT_REASONS, reason in RETRIED_REASONS
        yield PodIssue(pod, reason, _short(f"{label}: {waiting.get('message') or ''}"), permanent, persistent)
        # The reason of the crash is in the last run, not in the wait for the next one.
        runs.append((container.get("lastState") or {}).get("terminated") or {})
    for run in filter(None, runs):
        message = f": {text}" if (text := (run.get("message") or "").strip()) else ""
        what = f"{label}: ended with exit code {run.get('exitCode')}{message}"
        yield PodIssue(pod, run.get("reason") or "Error", _short(what))


def events_about(
    events: Iterable[JsonObject], names: Iterable[str], types: Sequence[str] = ("Warning",)
) -> dict[str, list[str]]:
    """The newest events of each named object, each once, oldest first: `FailedMount: ...`."""
    wanted = set(names)
    found: dict[str, dict[str, str]] = {}
    for event in events:
        name = (event.get("involvedObject") or {}).get("name")
        text = f"{event.get('reason')}: {_short(event.get('message'))}"
        if event.get("type") in types and name in wanted and text not in _REPEATED_EVENTS:
            times = found.setdefault(name, {})
            times[text] = max(_when(event), times.get(text, ""))
    return {
        name: sorted(times, key=lambda text: (times[text], text))[-MAX_EVENTS_PER_POD:]
        for name, times in found.items()
    }


def _when(event: JsonObject) -> str:
    """The event's time, which is in one of four fields; RFC 3339 in UTC sorts as text."""
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or (event.get("metadata") or {}).get("creationTimestamp")
        or ""
    )


def issue_report(
    pods: Sequence[JsonObject], events: Sequence[JsonObject], also: Iterable[str] = ()
) -> list[str]:
    """One line per problem: the pods' own issues, then warning events of these pods and of `also`.

    Pods with the same issue share a line. At most MAX_ISSUES lines, and one with the number of the others.
    """
    pods_by_issue: dict[str, list[str]] = {}
    affected: list[str] = list(also)
    for pod in pods:
        name = pod["metadata"]["name"]
        issues = list(issues_of(pod))
        for issue in issues:
            _add(pods_by_issue, name, issue.what)
        if issues or (pod.get("status") or {}).get("phase") == "Pending":
            affected.append(name)
    for name, texts in events_about(events, affected).items():
        for text in texts:
            _add(pods_by_issue, name, text)
    lines = [f"{listed(names, _NAMED_PODS)}: {what}" for what, names in pods_by_issue.items()]
    if len(lines) > MAX_ISSUES:
        lines = [*lines[:MAX_ISSUES], f"... and {len(lines) - MAX_ISSUES} more"]
    return lines


def _add(pods_by_issue: dict[str, list[str]], name: str, what: str) -> None:
    names = pods_by_issue.setdefault(what.replace(name, "<pod>"), [])
    if name not in names:
        names.append(name)


def namespace_report(api: Api, namespace: str) -> list[str]:
    """`issue_report` for all pods of a namespace; one line with the error where they cannot be listed."""
    try:
        pods = api.list(f"/api/v1/namespaces/{namespace}/pods")
        events = api.list(f"/api/v1/namespaces/{namespace}/events")
    except ApiError as error:
        return [f"the pods of namespace {namespace} cannot be listed: {error}"]
    return issue_report(pods, events)


def readiness(pods: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """How many of the pods are Ready, and how many there are."""
    ready = total = 0
    for pod in pods:
        total += 1
        conditions = (pod.get("status") or {}).get("conditions") or []
        ready += any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    return ready, total


def _short(text: str | None) -> str:
    """One line without ids; of a long text both ends: nested errors name their cause last."""
    flat = _ID.sub("<id>", " ".join((text or "").split()))
    if len(flat) <= _MESSAGE_LIMIT:
        return flat
    half = _MESSAGE_LIMIT // 2
    return f"{flat[:half]}…{flat[1 - half :]}"
