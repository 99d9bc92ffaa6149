"""Plain requests to a Kubernetes API server: the provider handles every kind as a plain object."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import urllib3

from busbar.kube.kubeconfig import Context
from busbar.kube.transport import Transport, Unreachable

Object = dict[str, Any]

_READ_SECONDS = 60.0
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"


class ApiError(Exception):
    """The API server refused; `reason` is Kubernetes' reason, such as NotFound or Conflict."""

    def __init__(self, status: Mapping[str, Any], code: int) -> None:
        super().__init__(status.get("message") or f"the server answered {code}")
        self.code = code
        self.reason = str(status.get("reason", ""))
        self.details: Mapping[str, Any] = status.get("details") or {}


class KubeClient:
    """A connection pool to one API server. Safe to use from many threads."""

    def __init__(self, context: Context) -> None:
        """Raises ValueError where the context cannot be used."""
        self._transport = Transport(context)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Object:
        """The object in the answer; raises ApiError when refused, Unreachable when there is no answer."""
        try:
            answer = self._transport.send(
                method, path, query or {}, body, content_type, read_timeout=_READ_SECONDS
            )
            data = answer.data
        except (Unreachable, urllib3.exceptions.HTTPError) as error:
            raise Unreachable(f'{method.title()} "{path}": {error}') from error
        if answer.status >= 400:
            raise ApiError(_status(data), answer.status)
        parsed = json.loads(data)
        return parsed if isinstance(parsed, dict) else {}

    def watch(self, path: str, query: Mapping[str, Any], seconds: float) -> Iterator[Object]:
        """Watch events of `path` for at most `seconds`; ends early when the server closes the watch."""
        limits = {"watch": "true", "timeoutSeconds": max(1, int(seconds)), **query}
        try:
            answer = self._transport.send("GET", path, limits, read_timeout=seconds + 5)
            if answer.status >= 400:
                raise ApiError(_status(answer.read()), answer.status)
            pending = b""
            try:
                while part := answer.read1():  # what is there now, not what fills a buffer
                    *lines, pending = (pending + part).split(b"\n")
                    yield from (json.loads(line) for line in lines if line.strip())
            finally:
                answer.close()
        except (Unreachable, urllib3.exceptions.HTTPError) as error:
            raise Unreachable(f'Watch "{path}": {error}') from error


def _status(data: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(data)
    except ValueError:
        return {"message": data.decode(errors="replace").strip()}
    return parsed if isinstance(parsed, dict) else {"message": str(parsed)}
