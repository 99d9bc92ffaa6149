"""Plain requests to a Kubernetes API server.

The official Python client takes about half a second to import, and its models would be in the way: the
provider handles every kind as a plain object.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import urllib3

from lab.plugins.kubernetes.kubeconfig import Cluster, KubeconfigError

Object = dict[str, Any]

_CONNECT_SECONDS = 10.0
_READ_SECONDS = 60.0
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"


class Unreachable(Exception):
    """No answer from the API server."""


class ApiError(Exception):
    """The API server refused; `reason` is Kubernetes' reason, such as NotFound or Conflict."""

    def __init__(self, status: Mapping[str, Any], code: int) -> None:
        super().__init__(status.get("message") or f"the server answered {code}")
        self.code = code
        self.reason = str(status.get("reason", ""))
        self.details: Mapping[str, Any] = status.get("details") or {}


class KubeClient:
    """A connection pool to one API server. Safe to use from many threads."""

    def __init__(self, cluster: Cluster) -> None:
        self._base = cluster.server
        self._headers = {"accept": "application/json", "user-agent": "busbar-lab/1"} | _login(cluster)
        self._pool = urllib3.PoolManager(
            num_pools=2,
            maxsize=32,
            retries=False,
            ssl_context=_tls(cluster) if cluster.server.startswith("https") else None,
            server_hostname=cluster.server_name,
            timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS),
        )

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
        url = self._base + path + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers | ({"content-type": content_type} if data is not None else {})
        try:
            answer = self._pool.request(method, url, body=data, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f'{method.title()} "{url}": {_cause(error)}') from error
        if answer.status >= 400:
            raise ApiError(_status(answer.data), answer.status)
        parsed = json.loads(answer.data)
        return parsed if isinstance(parsed, dict) else {}

    def watch(self, path: str, query: Mapping[str, Any], seconds: float) -> Iterator[Object]:
        """Watch events of `path` for at most `seconds`; ends early when the server closes the watch."""
        limits = {"watch": "true", "timeoutSeconds": max(1, int(seconds)), **query}
        timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=seconds + 5)
        url = f"{self._base}{path}?{urlencode(limits)}"
        try:
            answer = self._pool.request(
                "GET", url, headers=self._headers, preload_content=False, timeout=timeout
            )
            if answer.status >= 400:
                raise ApiError(_status(answer.read()), answer.status)
            pending = b""
            try:
                while part := answer.read1():  # what is there now, not what fills a buffer
                    *lines, pending = (pending + part).split(b"\n")
                    yield from (json.loads(line) for line in lines if line.strip())
            finally:
                answer.close()
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f'Watch "{url}": {_cause(error)}') from error


def _login(cluster: Cluster) -> dict[str, str]:
    if cluster.token:
        return {"authorization": f"Bearer {cluster.token}"}
    if cluster.username:
        pair = base64.b64encode(f"{cluster.username}:{cluster.password or ''}".encode()).decode()
        return {"authorization": f"Basic {pair}"}
    return {}


def _tls(cluster: Cluster) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=cluster.ca)
        if cluster.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if cluster.client_certificate and cluster.client_key:
            # Python's ssl reads a client certificate from a file only.
            descriptor, path = tempfile.mkstemp(prefix="busbar-")  # created 0600
            try:
                with os.fdopen(descriptor, "w") as file:
                    file.write(cluster.client_certificate + "\n" + cluster.client_key)
                context.load_cert_chain(path)
            finally:
                os.unlink(path)
    except (ssl.SSLError, ValueError) as error:
        raise KubeconfigError(f"certificates in the kubeconfig cannot be used: {error}") from error
    return context


def _status(data: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(data)
    except ValueError:
        return {"message": data.decode(errors="replace").strip()}
    return parsed if isinstance(parsed, dict) else {"message": str(parsed)}


def _cause(error: BaseException) -> str:
    # urllib3 wraps the socket's message once or twice.
    while (inner := getattr(error, "reason", None) or error.__cause__) and isinstance(inner, BaseException):
        error = inner
    return str(error)
