"""A steady load on the Kubernetes API: clients that write and read back, one that watches, and the account.

Writers create ConfigMaps of distinct names, so that each write that was acknowledged can be looked for later.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

from busbar.kube.client import ApiError, RestApi
from tests.support.drills import count_requests

WRITERS = 3
PAUSE_SECONDS = 0.05  # between two writes of one writer
GIVE_UP_SECONDS = 180
WATCH_SECONDS = 30
MORE_WRITES = 60

GONE = 410
NAMESPACES = "/api/v1/namespaces"


class QuickApi(RestApi):
    """A client that gives up early, so that an outage is measured and not waited for."""

    timeout_seconds = 5
    silence_seconds = 10


def rest_api(kubeconfig: Path) -> QuickApi:
    """A client with the rights of a kubeconfig file."""
    return QuickApi(kubeconfig.read_text())


@dataclass
class Account:
    """What became of the requests; `outage` is the longest time in seconds until a repeated one succeeded."""

    acknowledged: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    watched: set[str] = field(default_factory=set)
    requests: int = 0
    repeated: int = 0
    repeated_twice: int = 0
    outage: float = 0.0
    reconnects: int = 0

    def __str__(self) -> str:
        return (
            f"{len(self.acknowledged)} writes acknowledged, {len(self.lost)} lost; {self.requests} requests, "
            f"{self.repeated} repeated, {self.repeated_twice} more than once, the longest for "
            f"{self.outage:.1f} s; {len(self.acknowledged - self.watched)} writes not seen by the watch, "
            f"which connected again {self.reconnects} times"
        )


class ApiLoad:
    """Puts a load on a cluster while the context is open; after it, `account` is complete."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._namespace = f"load-{uuid4().hex[:8]}"
        self._path = f"{NAMESPACES}/{self._namespace}/configmaps"
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self.account = Account()

    def __enter__(self) -> ApiLoad:
        body = {"metadata": {"name": self._namespace}}
        self._repeat(lambda: self._api().create(NAMESPACES, body))
        works: list[Callable[[], None]] = [lambda number=n: self._write(number) for n in range(WRITERS)]  # type: ignore[misc]
        self._threads = [threading.Thread(target=self._guard, args=(work,)) for work in [*works, self._watch]]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._settle()
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
            self._repeat(lambda: self._api().delete(f"{NAMESPACES}/{self._namespace}"))
            count_requests(self.account.requests, self.account.repeated)
        if kind is None and self._errors:
            raise self._errors[0]

    @property
    def writes(self) -> int:
        """How many writes were acknowledged so far."""
        with self._lock:
            return len(self.account.acknowledged)

    def goes_on(self) -> None:
        """Wait until MORE_WRITES more were acknowledged."""
        wanted, deadline = self.writes + MORE_WRITES, time.monotonic() + GIVE_UP_SECONDS
        while self.writes < wanted:
            assert time.monotonic() < deadline, f"not within {GIVE_UP_SECONDS} s: {MORE_WRITES} more writes"
            time.sleep(0.5)

    def _settle(self) -> None:
        """Look for every acknowledged write in the cluster, and give the watch time to see the last one."""
        self._stop.set()
        for thread in self._threads[:-1]:
            thread.join()
        listed = self._repeat(lambda: self._api().list(self._path))
        found = {each["metadata"]["name"] for each in listed}
        self.account.lost |= self.account.acknowledged - found
        deadline = time.monotonic() + WATCH_SECONDS
        while self.account.acknowledged - self.account.watched and time.monotonic() < deadline:
            time.sleep(0.2)

    def _api(self) -> QuickApi:
        return rest_api(self._kubeconfig)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._errors.append(error)
            raise

    def _write(self, writer: int) -> None:
        api, number = self._api(), 0
        while not self._stop.is_set():
            name = f"{writer}-{number}"
            body = {"metadata": {"name": name}}
            self._repeat(lambda body=body: api.create(self._path, body))  # type: ignore[misc]
            with self._lock:
                self.account.acknowledged.add(name)
            if self._repeat(lambda name=name: self._read(api, name)) is None:  # type: ignore[misc]
                self.account.lost.add(name)
            number += 1
            self._stop.wait(PAUSE_SECONDS)

    def _read(self, api: QuickApi, name: str) -> Any:
        try:
            return api.get(f"{self._path}/{name}")
        except ApiError as error:
            if error.not_found:
                return None
            raise

    def _repeat(self, request: Callable[[], Any]) -> Any:
        """Do the request until it succeeds, and count. An object that exists was made by the one before."""
        began, tries = time.monotonic(), 0
        while True:
            try:
                answer = request()
                break
            except ApiError as error:
                tries += 1
                if tries > 1 and error.conflict:
                    answer = None
                    break
                if time.monotonic() - began > GIVE_UP_SECONDS:
                    raise
                time.sleep(0.1)
        with self._lock:
            self.account.requests += 1
            self.account.repeated += tries > 0
            self.account.repeated_twice += tries > 1
            if tries:
                self.account.outage = max(self.account.outage, time.monotonic() - began)
        return answer

    def _watch(self) -> None:
        api, version = self._api(), "0"
        ends = time.monotonic()
        while not self._stop.is_set() or time.monotonic() < ends:
            if not self._stop.is_set():
                ends = time.monotonic() + WATCH_SECONDS
            elif not self.account.acknowledged - self.account.watched:
                return
            try:
                for event in self._events(api, version):
                    found = event["object"]["metadata"]
                    version = found["resourceVersion"]
                    self.account.watched.add(found["name"])
            except ApiError as error:
                version = "0" if error.status == GONE else version
                self.account.reconnects += 1
                self._stop.wait(0.2)

    def _events(self, api: QuickApi, version: str) -> Iterator[Any]:
        """The events since a version, for 5 seconds."""
        pending = b""
        for chunk in api.stream(self._path, watch="true", resourceVersion=version, timeoutSeconds="5"):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError("watch", event["object"].get("code"), str(event["object"].get("message")))
                yield event
