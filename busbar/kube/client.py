"""A thin Kubernetes REST client: JSON in, JSON out, and one kind of error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any, Protocol

from busbar.exits import NoVerdict
from busbar.kube.kubeconfig import find_context, parse

JsonObject = dict[str, Any]

LIST_PAGE_SIZE = 500


class ApiError(NoVerdict):
    """The API refused a request, or could not be reached (`status` None).

    `fix`: what to do, empty where that is not known; a command that ends with the error prints it.
    `object_name`: of the object, as the API's answer has it. The refusal of a creation has it only where
    admission has read the object: an authorizer knows no more than the path.
    """

    def __init__(
        self, what: str, status: int | None, reason: str, object_name: str = "", fix: str = ""
    ) -> None:
        super().__init__(f"{what}: {f'HTTP {status}: ' if status else ''}{reason}")
        self.fix = fix
        self.status = status
        self.reason = reason
        self.object_name = object_name

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later without any change."""
        return self.status is None or self.status == 429 or self.status >= 500

    @property
    def not_found(self) -> bool:
        """Whether the object, or the kind, does not exist."""
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """Whether the name is taken, or the object has changed since the request was prepared."""
        return self.status == 409


class Api(Protocol):
    """The requests that busbar makes. Every method raises ApiError and has its own time limit."""

    def get(self, path: str, **query: str) -> JsonObject:
        """The object at `path`, such as /api/v1/nodes/worker-1."""

    def list(self, path: str, **query: str) -> list[JsonObject]:
        """All items of the collection at `path`, page by page."""

    def create(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        """Create `body` in the collection at `path`."""

    def merge(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        """Merge-patch the object at `path`."""

    def delete(self, path: str, **preconditions: str) -> JsonObject:
        """Delete the object at `path`; 409 where its uid or resourceVersion is not as in `preconditions`."""

    def stream(self, path: str, **query: str) -> Iterator[bytes]:
        """The body at `path` in chunks as they arrive; ends with the body, or after 30 s of silence."""


class RestApi:
    """`Api` over HTTPS, with the server and the credentials of a kubeconfig.

    It retries only a GET of which a busy server says when to retry. Everything else is the caller's decision
    (busbar.kube.wait), with its own deadline.
    """

    timeout_seconds = 15.0
    # A silent stream ends after this long, and the reader opens it again: a load balancer that died without
    # closing its connections would otherwise hold the reader until its deadline.
    silence_seconds = 30.0

    def __init__(self, kubeconfig: str, context: str | None = None) -> None:
        """Read `kubeconfig`, the text of the file. Raises ValueError when it cannot be used.

        `context`: by default its current one.
        """
        # Here: only a command that talks to a cluster needs urllib3.
        from busbar.kube.transport import Transport

        self._transport = Transport(find_context(parse(kubeconfig), context))
        self.server: str = self._transport.server
        self._headers: Mapping[str, str] = {}

    def sending(self, headers: Mapping[str, str]) -> RestApi:
        """The same client with headers in every request, for a service behind the API's proxy."""
        other = copy(self)
        other._headers = headers
        return other

    def get(self, path: str, **query: str) -> JsonObject:
        return self._json("GET", path, query)

    def list(self, path: str, **query: str) -> list[JsonObject]:
        items: list[JsonObject] = []
        query = {"limit": str(LIST_PAGE_SIZE), **query}
        while True:
            page = self._json("GET", path, query)
            items += page.get("items") or []
            more = (page.get("metadata") or {}).get("continue")
            if not more:
                return items
            query["continue"] = more

    def create(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        return self._json("POST", path, {}, body)

    def merge(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        return self._json("PATCH", path, {}, body, "application/merge-patch+json")

    def delete(self, path: str, **preconditions: str) -> JsonObject:
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
        return self._json("DELETE", path, {}, options)

    def stream(self, path: str, **query: str) -> Iterator[bytes]:
        from urllib3.exceptions import HTTPError, ReadTimeoutError

        response = self._open("GET", path, query, read_timeout=self.silence_seconds)
        try:
            # read1 returns what has arrived; read(n) would wait for a full buffer.
            while chunk := response.read1():
                yield chunk
        except ReadTimeoutError:
            return
        except (HTTPError, OSError) as error:
            raise ApiError(f"GET {path}", None, f"connection lost ({type(error).__name__})") from error
        finally:
            # An unfinished stream cannot be reused: close it before it returns to the pool.
            response.close()
            response.release_conn()

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> JsonObject:
        from urllib3.exceptions import HTTPError

        response = self._open(method, path, query, body, content_type)
        try:
            answer = json.loads(response.read())
        except (HTTPError, OSError, ValueError) as error:
            raise ApiError(f"{method} {path}", None, f"unreadable answer: {error}") from error
        finally:
            response.release_conn()
        if not isinstance(answer, dict):
            raise ApiError(f"{method} {path}", None, f"JSON object expected, got {type(answer).__name__}")
        return answer

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        read_timeout: float | None = None,
    ) -> Any:
        """The urllib3 response, its body not yet read. Raises ApiError for any status from 300 on."""
        from urllib3.exceptions import HTTPError

        from busbar.kube.transport import Unreachable

        try:
            seconds = read_timeout or self.timeout_seconds
            response = self._transport.send(
                method, path, query, body, content_type, read_timeout=seconds, headers=self._headers
            )
        except Unreachable as error:
            raise ApiError(f"{method} {path}", None, str(error), fix=error.fix) from error
        if response.status >= 300:
            try:
                text = response.read(65536)
            except (HTTPError, OSError):
                text = b""
            finally:
                response.close()
                response.release_conn()
            reason, name = _reason_and_name(text)
            fix = ""
            if response.status == 401:
                ended = self._transport.ended()
                reason += f"; {ended}" if ended else ""
                fix = "get a new kubeconfig, or check its login"
            raise ApiError(f"{method} {path}", response.status, reason, name, fix)
        return response


def _reason_and_name(text: bytes) -> tuple[str, str]:
    """The message of a `Status` object with its causes, and its object; else the first line of the body."""
    try:
        status = json.loads(text)
    except ValueError:
        status = None
    if isinstance(status, dict) and status.get("message"):
        message, details = str(status["message"]), status.get("details") or {}
        causes = details.get("causes") or []
        # A refused eviction names its disruption budget only there.
        more = [each["message"] for each in causes if each.get("message") and each["message"] not in message]
        return " ".join([message, *more]), str(details.get("name") or "")
    return text.decode("utf-8", "replace").strip().split("\n", 1)[0][:300] or "no reason given", ""
