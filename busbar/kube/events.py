"""What is wrong with pods, in words: from their status and from their events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from busbar.kube.client import Api, ApiError, JsonObject

MAX_EVENTS_PER_POD = 3
MAX_TROUBLES = 12
_MESSAGE_LIMIT = 300
_NAMED_PODS = 2
# Events that only repeat the reason for which a container waits.
_ECHOES = frozenset({"Failed: Error: ErrImagePull", "Failed: Error: ImagePullBackOff"})

# Waiting reasons that pass by themselves while a pod starts.
_PASSING = frozenset({"ContainerCreating", "PodInitializing"})

# Waiting reasons that no amount of waiting cures: somebody has to change the image, the registry's
# credentials, or the pod (kubernetes pkg/kubelet/images/types.go, pkg/kubelet/kuberuntime).
HOPELESS_WAITING = frozenset(
    {
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "StartError",
    }
)
# These are retried by the kubelet and may heal (a registry that is being restarted): hopeless only when
# they last.
LASTING_WAITING = frozenset({"ImagePullBackOff", "ErrImagePull", "CrashLoopBackOff", "RegistryUnavailable"})


@dataclass(frozen=True)
class Trouble:
    """One thing that keeps a pod from doing its work.

    `hopeless`: only a change by somebody helps. `lasting`: hopeless once it has stood for a while.
    """

    pod: str
    reason: str
    message: str
    hopeless: bool = False
    lasting: bool = False

    @property
    def what(self) -> str:
        """The trouble without the pod's name."""
        return self.reason + (f": {self.message}" if self.message else "")

    def __str__(self) -> str:
        return f"{self.pod}: {self.what}"


def troubles_of(pod: JsonObject) -> Iterator[Trouble]:
    """Everything in the pod's own status that is not as it should be; nothing for a healthy pod."""
    name = pod["metadata"]["name"]
    status = pod.get("status") or {}
    if status.get("phase") == "Failed" and status.get("reason"):
        yield Trouble(name, status["reason"], _short(status.get("message")), hopeless=True)
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield Trouble(
                name,
                condition.get("reason") or "Unschedulable",
                _short(condition.get("message")),
                lasting=True,
            )
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for container in containers:
        yield from _container_troubles(name, container)


def _container_troubles(pod: str, container: JsonObject) -> Iterator[Trouble]:
    state = container.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    who = f"container {container.get('name')}"
    reason = waiting.get("reason") or ""
    if reason and reason not in _PASSING:
        yield Trouble(
            pod,
            reason,
            _short(f"{who}: {waiting.get('message') or ''}"),
            hopeless=reason in HOPELESS_WAITING,
            lasting=reason in LASTING_WAITING,
        )
        # The reason of the crash is in the last run, not in the wait for the next one.
        last = (container.get("lastState") or {}).get("terminated") or {}
        if last:
            yield Trouble(pod, last.get("reason") or "Error", _short(f"{who}: {_ending(last)}"))
    if ended and ended.get("exitCode") != 0:
        yield Trouble(pod, ended.get("reason") or "Error", _short(f"{who}: {_ending(ended)}"))


def _ending(ended: JsonObject) -> str:
    message = (ended.get("message") or "").strip()
    return f"ended with exit code {ended.get('exitCode')}" + (f": {message}" if message else "")


def warnings_about(events: Iterable[JsonObject], names: Iterable[str]) -> dict[str, list[str]]:
    """The newest warning events of each named object, each once, oldest first: `FailedMount: ...`."""
    wanted = set(names)
    found: dict[str, list[tuple[str, str]]] = {}
    for event in events:
        name = (event.get("involvedObject") or {}).get("name")
        text = f"{event.get('reason')}: {_short(event.get('message'))}"
        if event.get("type") == "Warning" and name in wanted and text not in _ECHOES:
            found.setdefault(name, []).append((_when(event), text))
    return {
        name: list(dict.fromkeys(text for _, text in sorted(entries)[-MAX_EVENTS_PER_POD:]))
        for name, entries in found.items()
    }


def _when(event: JsonObject) -> str:
    """RFC 3339 in UTC sorts as text; an event carries its time in one of four places."""
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or (event.get("metadata") or {}).get("creationTimestamp")
        or ""
    )


def report(pods: Sequence[JsonObject], events: Sequence[JsonObject], also: Iterable[str] = ()) -> list[str]:
    """One line a problem: the pods' own troubles, then warning events of these pods and of `also`.

    Pods with the same trouble share a line: a job of 440 workers fails in 440 equal ways. At most
    MAX_TROUBLES lines, and one that says how many more there are.
    """
    who: dict[str, list[str]] = {}
    unhappy: list[str] = list(also)
    for pod in pods:
        name = pod["metadata"]["name"]
        troubles = list(troubles_of(pod))
        for trouble in troubles:
            _note(who, name, trouble.what)
        if troubles or (pod.get("status") or {}).get("phase") == "Pending":
            unhappy.append(name)
    for name, texts in warnings_about(events, unhappy).items():
        for text in texts:
            _note(who, name, text)
    lines = [f"{_named(names)}: {what}" for what, names in who.items()]
    if len(lines) > MAX_TROUBLES:
        lines = [*lines[:MAX_TROUBLES], f"... and {len(lines) - MAX_TROUBLES} more"]
    return lines


def _note(who: dict[str, list[str]], name: str, what: str) -> None:
    names = who.setdefault(what.replace(name, "<pod>"), [])
    if name not in names:
        names.append(name)


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED_PODS])
    return shown if len(names) <= _NAMED_PODS else f"{shown} and {len(names) - _NAMED_PODS} more"


def namespace_report(api: Api, namespace: str, also: Iterable[str] = ()) -> list[str]:
    """`report` for all pods of a namespace; when the API does not answer, a line that says so."""
    try:
        pods = api.list(f"/api/v1/namespaces/{namespace}/pods")
        events = api.list(f"/api/v1/namespaces/{namespace}/events")
    except ApiError as error:
        return [f"the pods of namespace {namespace} cannot be listed: {error}"]
    return report(pods, events, also)


def readiness(pods: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """How many of the pods are Ready, and how many there are."""
    ready = total = 0
    for pod in pods:
        total += 1
        conditions = (pod.get("status") or {}).get("conditions") or []
        ready += any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    return ready, total


def _short(text: str | None) -> str:
    flat = " ".join((text or "").split())
    return flat if len(flat) <= _MESSAGE_LIMIT else f"{flat[: _MESSAGE_LIMIT - 1]}…"
