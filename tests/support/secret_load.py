"""Secrets that are written through each server and read through the next one, while keys change."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType

from busbar.kube.client import ApiError
from tests.support.api_clients import QuickApi, rest_api

SECRETS, LABEL = "/api/v1/namespaces/default/secrets", "busbar/drill=secrets"
# K3s writes some five Secrets per second with a new key.
PAUSE_SECONDS = 2
# What an apiserver says of data that it has no key for (staging/src/k8s.io/apiserver/pkg/storage/value).
_NO_KEY = re.compile(r"transform|no matching|decrypt|\bAES\b", re.IGNORECASE)


class SecretLoad:
    """Runs while the context is open.

    `written`: names whose creation was acknowledged. `unreadable`: what a server said that had no key for a
    Secret. A server that is down or starts counts for nothing.
    """

    def __init__(self, kubeconfig: str, servers: Sequence[str]) -> None:
        self._apis = [rest_api(kubeconfig, server) for server in servers]
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.written: set[str] = set()
        self.unreadable: list[str] = []

    def __enter__(self) -> SecretLoad:
        self._threads = [threading.Thread(target=self._run, args=(at,)) for at in range(len(self._apis))]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def found(self) -> list[set[str]]:
        """The names that each server lists."""
        lists = [api.list(SECRETS, labelSelector=LABEL) for api in self._apis]
        return [{each["metadata"]["name"] for each in listed} for listed in lists]

    def delete(self) -> None:
        """Remove what was written."""
        for name in self.found()[0]:
            self._apis[0].delete(f"{SECRETS}/{name}")

    def _run(self, at: int) -> None:
        own, following, number = self._apis[at], self._apis[(at + 1) % len(self._apis)], 0
        while not self._stop.wait(PAUSE_SECONDS):
            name = f"drill-{at}-{number}"
            number += 1
            if self._try(partial(self._create, own, name)):
                with self._lock:
                    self.written.add(name)
                self._try(partial(self._read, following, name))

    def _create(self, api: QuickApi, name: str) -> None:
        key, _, value = LABEL.partition("=")
        api.create(SECRETS, {"metadata": {"name": name, "labels": {key: value}}, "stringData": {"of": name}})

    def _read(self, api: QuickApi, name: str) -> None:
        api.get(f"{SECRETS}/{name}")

    def _try(self, request: Callable[[], None]) -> bool:
        try:
            request()
        except ApiError as error:
            if _NO_KEY.search(error.reason):
                with self._lock:
                    self.unreadable.append(error.reason)
            return False
        return True
