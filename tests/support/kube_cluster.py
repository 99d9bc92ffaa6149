"""A cluster in memory for the tests: objects by path, a clock that only tests move, logs that break."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from busbar.kube.client import ApiError, JsonObject


class Clock:
    """Time passes only while somebody waits. `at(seconds, act)` lets the world change meanwhile."""

    def __init__(self) -> None:
        self.time = 0.0
        self._agenda: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        return self.time

    def pause(self, seconds: float) -> None:
        # A wait that pauses for nothing would never end; the smallest step keeps tests finite.
        self.time += max(seconds, 0.01)
        due = [entry for entry in self._agenda if entry[0] <= self.time]
        self._agenda = [entry for entry in self._agenda if entry[0] > self.time]
        for _, act in sorted(due, key=lambda entry: entry[0]):
            act()

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        self._agenda.append((seconds, act))


class Cluster:
    """`busbar.kube.client.Api` over dictionaries.

    `objects` maps a path to an object or, for a collection, to a list. `failures` are raised, one a call,
    before anything is answered. `logs` is a list of callables, one a connection to a log.
    """

    server = "https://10.0.0.1:6443"

    def __init__(self, objects: dict[str, Any] | None = None) -> None:
        self.objects: dict[str, Any] = objects or {}
        self.failures: list[ApiError | None] = []
        self.logs: list[Callable[[Mapping[str, str]], Iterator[bytes]]] = []
        self.log_queries: list[dict[str, str]] = []
        self.created: list[tuple[str, JsonObject]] = []
        self.patched: list[tuple[str, JsonObject]] = []
        self.deleted: list[tuple[str, dict[str, str]]] = []

    def _fail(self) -> None:
        if self.failures and (failure := self.failures.pop(0)):
            raise failure

    def get(self, path: str, **query: str) -> JsonObject:
        self._fail()
        if path not in self.objects:
            raise not_found(path)
        found: JsonObject = self.objects[path]
        return found

    def list(self, path: str, **query: str) -> list[JsonObject]:
        self._fail()
        if path not in self.objects:
            raise not_found(path)
        found: list[JsonObject] = self.objects[path]
        return found

    def create(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        self._fail()
        where = f"{path}/{body['metadata']['name']}"
        if where in self.objects:
            raise ApiError(f"POST {path}", 409, "already exists")
        self.objects[where] = dict(body)
        self.created.append((path, dict(body)))
        return dict(body)

    def merge(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        self._fail()
        self.patched.append((path, dict(body)))
        return dict(body)

    def apply(self, path: str, body: Mapping[str, Any], **query: str) -> JsonObject:
        self._fail()
        raise NotImplementedError(path)

    def delete(self, path: str, **preconditions: str) -> JsonObject:
        self._fail()
        self.deleted.append((path, preconditions))
        return {}

    def stream(self, path: str, **query: str) -> Iterator[bytes]:
        self.log_queries.append(dict(query))
        if not self.logs:
            raise ApiError(f"GET {path}", 400, "container is waiting to start")
        return self.logs.pop(0)(query)


def connected(monkeypatch: pytest.MonkeyPatch, api: Cluster) -> None:
    """Commands work on this cluster, and time only passes while they wait."""
    monkeypatch.setattr("busbar.kube.client.connect", lambda *_: api)
    monkeypatch.setattr("busbar.kube.wait.SystemClock", Clock)


def not_found(path: str) -> ApiError:
    return ApiError(f"GET {path}", 404, "not found")


def unreachable(path: str = "/") -> ApiError:
    return ApiError(f"GET {path}", None, "connection refused")


def node(name: str, ready: bool = True, capacity: Mapping[str, str] | None = None, **allocatable: str) -> Any:
    offered = {key.replace("__", "/").replace("_", "."): value for key, value in allocatable.items()}
    return {
        "metadata": {"name": name},
        "status": {
            "allocatable": offered,
            "capacity": dict(capacity) if capacity is not None else offered,
            "conditions": [{"type": "Ready", "status": str(ready), "message": "kubelet stopped"}],
        },
    }


def pod(name: str, role: str = "worker", *, phase: str = "Running", **status: Any) -> Any:
    labels = {"training.kubeflow.org/job-role": role}
    metadata = {"name": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "status": {"phase": phase, **status}}


def container(state: Mapping[str, Any], last: Mapping[str, Any] | None = None) -> Any:
    return {"name": "nccl", "state": dict(state), "lastState": dict(last or {})}


def warning(about: str, reason: str, message: str, when: str = "2026-01-01T00:00:00Z") -> Any:
    return {
        "type": "Warning",
        "reason": reason,
        "message": message,
        "involvedObject": {"name": about},
        "lastTimestamp": when,
    }


def unschedulable(message: str) -> Any:
    """The condition of a pod that fits nowhere."""
    return {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
