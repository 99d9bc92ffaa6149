"""A thin Kubernetes REST client: JSON in, JSON out, and one kind of error."""

from __future__ import annotations

import json
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError, ReadTimeoutError

from busbar.exits import Misuse, NoVerdict
from busbar.finding import STACK, Fix
from busbar.kube.kubeconfig import Login, find_context, parse, pem

JsonObject = dict[str, Any]

# The text itself, not a path: Pulumi passes it as a secret, never on the disk or in an argv.
KUBECONFIG_TEXT = "BUSBAR_KUBECONFIG"
LIST_PAGE_SIZE = 500
CONNECT_TIMEOUT_SECONDS = 5.0
CONNECTIONS = 32
# client-go retries as often. A server that asks for a longer pause than this is asked sooner.
BUSY_RETRIES, BUSY_SECONDS = 10, 3.0
# The class of an error -> what to do.
_FIXES = (
    (urllib3.exceptions.NameResolutionError, "check the name in `server:` of the kubeconfig"),
    (
        urllib3.exceptions.SSLError,
        "the kubeconfig is that of another cluster, or an older one: get a new one",
    ),
    (
        urllib3.exceptions.NewConnectionError,
        "check that K3s or HAProxy runs, and `server:` of the kubeconfig",
    ),
    (urllib3.exceptions.TimeoutError, "check the network to it: VPN, firewall, load balancer"),
)


# OpenSSL's codes (X509_V_ERR_* in x509_vfy.h) of a chain whose authority is not known, and of a past end.
_UNKNOWN_AUTHORITY = (18, 19, 20, 21)
_EXPIRED = 10
_RENEW = "systemctl restart k3s on each server renews its certificates; check the clock here too"


class _WhileBusy(urllib3.Retry):
    """Retries a GET that is answered 429 or 503 with Retry-After, as while storage is (re)initializing.

    A refused eviction is a POST that is answered 429: its caller decides.
    """

    def get_retry_after(self, response: urllib3.BaseHTTPResponse) -> float | None:
        seconds = super().get_retry_after(response)
        return seconds and min(seconds, BUSY_SECONDS)


_WHILE_BUSY = _WhileBusy(
    BUSY_RETRIES, connect=False, read=False, other=0, allowed_methods=("GET",), raise_on_status=False
)


def _tls(cluster: Mapping[str, Any], certificate: str | None) -> ssl.SSLContext:
    """TLS with the cluster's authority (else the system's) and a client certificate. Raises ValueError."""
    try:
        context = ssl.create_default_context(cadata=pem(cluster, "certificate-authority"))
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            # The kubeconfig asks for it; a warning per request says nothing new.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        if certificate:
            # Python's ssl reads a client certificate from a file only. This one is created 0600.
            with tempfile.NamedTemporaryFile("w", prefix="busbar-") as file:
                file.write(certificate)
                file.flush()
                context.load_cert_chain(file.name)
    except ssl.SSLError as error:
        raise ValueError(f"the certificates of the kubeconfig cannot be used: {error}") from error
    return context


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


class UnknownAuthority(ApiError):
    """The server has a certificate of another authority than that of the kubeconfig."""


ASK_VERIFY = Fix("see what does not run", ("verify", STACK))
"""The fix where a cluster is not responding."""


def read_kubeconfig_again(first_server: str) -> Fix:
    """The fix where all servers have certificates of an UnknownAuthority: the cluster was made anew."""
    return Fix(
        command=("up", STACK, "--converge", first_server),
        when=", which reads the kubeconfig again; then the same with --converge cluster",
    )


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

    def apply(self, path: str, body: Mapping[str, Any], **query: str) -> JsonObject:
        """Set the fields of `body` on the object at `path`, or make it (server-side apply, forced)."""

    def delete(self, path: str, **preconditions: str) -> JsonObject:
        """Delete the object at `path`; 409 where its uid or resourceVersion is not as in `preconditions`."""

    def stream(self, path: str, **query: str) -> Iterator[bytes]:
        """The body at `path` in chunks as they arrive; ends with the body, or after 30 s of silence."""


class RestApi:
    """`Api` over HTTPS, with the server and the credentials of a kubeconfig, and no proxy but that of it.

    It retries only a GET of which a busy server says when to retry. Everything else is the caller's decision
    (busbar.kube.wait), with its own deadline. Safe to use from many threads.
    """

    timeout_seconds = 15.0
    # A silent stream ends after this long, and the reader opens it again: a load balancer that died without
    # closing its connections would otherwise hold the reader until its deadline.
    silence_seconds = 30.0

    def __init__(self, kubeconfig: str, context: str | None = None) -> None:
        """Read `kubeconfig`, the text of the file. Raises ValueError when it cannot be used.

        `context`: by default its current one.
        """
        found = find_context(parse(kubeconfig), context)
        self.server: str = found.server
        self._cluster = found.cluster
        self._login = Login(found)
        # A plugin may give another certificate: then other connections.
        self._pool = lru_cache(maxsize=1)(self._connect)
        self._pool(self._login.current().certificate)
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

    def apply(self, path: str, body: Mapping[str, Any], **query: str) -> JsonObject:
        query = {"fieldManager": "busbar", "force": "true", **query}
        # JSON is YAML too.
        return self._json("PATCH", path, query, body, "application/apply-patch+yaml")

    def delete(self, path: str, **preconditions: str) -> JsonObject:
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
        return self._json("DELETE", path, {}, options)

    def stream(self, path: str, **query: str) -> Iterator[bytes]:
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

    def _json(self, method: str, path: str, *request: Any) -> JsonObject:
        response = self._open(method, path, *request)
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
        """The urllib3 response, its body not yet read. Raises ApiError for any status from 300 on.

        A login by a plugin's credentials that is refused is tried once more with new ones.
        """
        sent = {"accept": "application/json, */*", "user-agent": "busbar", **self._headers}
        if body is not None:
            sent["Content-Type"] = content_type
        url = f"{self.server}{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body)
        timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_SECONDS, read=read_timeout or self.timeout_seconds)

        def once() -> urllib3.BaseHTTPResponse:
            credential = self._login.current()
            shown = {"authorization": f"Bearer {credential.token}"} if credential.token else {}
            return self._pool(credential.certificate).request(
                method, url, body=data, headers=sent | shown, timeout=timeout, preload_content=False,
                redirect=False,
            )  # fmt: skip

        try:
            response = once()
            if response.status == 401 and self._login.is_exec:
                response.close()
                self._login.renew()
                response = once()
        except (HTTPError, OSError) as error:
            cause = getattr(error, "reason", None) or error
            reason = f"{self.server} cannot be reached: {' '.join(str(cause).split())}"
            code = getattr(cause.args[0] if cause.args else None, "verify_code", None)
            fix = next((fix for kind, fix in _FIXES if isinstance(cause, kind)), "")
            fix = _RENEW if code == _EXPIRED else fix
            kind = UnknownAuthority if code in _UNKNOWN_AUTHORITY else ApiError
            raise kind(f"{method} {path}", None, reason, fix=fix) from error
        except ValueError as error:
            raise ApiError(f"{method} {path}", None, str(error)) from error
        if response.status >= 300:
            raise self._refusal(f"{method} {path}", response)
        return response

    def _refusal(self, what: str, response: urllib3.BaseHTTPResponse) -> ApiError:
        try:
            text = response.read(65536)
        except (HTTPError, OSError):
            text = b""
        finally:
            response.close()
            response.release_conn()
        reason, name = _reason_and_name(text)
        fix = "get a new kubeconfig, or check its login: its certificate may have ended"
        return ApiError(what, response.status, reason, name, fix if response.status == 401 else "")

    def _connect(self, certificate: str | None) -> urllib3.PoolManager:
        options: dict[str, Any] = {
            "retries": _WHILE_BUSY,
            "maxsize": CONNECTIONS,
            "ssl_context": _tls(self._cluster, certificate),
            "server_hostname": self._cluster.get("tls-server-name"),
        }
        proxy = self._cluster.get("proxy-url")
        try:
            return urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)
        except HTTPError as error:
            raise ValueError(f"proxy-url of the kubeconfig cannot be used: {error}") from error


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


def connect(environment: Mapping[str, str] | None = None, context: str | None = None) -> RestApi:
    """A client for the cluster that the environment names (default: os.environ).

    `BUSBAR_KUBECONFIG` holds the text of a kubeconfig; else `KUBECONFIG` names a file, as for kubectl.
    `context`: by default its current one. Raises Misuse.
    """
    environment = os.environ if environment is None else environment
    text, source = environment.get(KUBECONFIG_TEXT), KUBECONFIG_TEXT
    if not text:
        path = environment.get("KUBECONFIG")
        if not path:
            raise Misuse(
                f"no kubeconfig: neither {KUBECONFIG_TEXT} nor KUBECONFIG is set. Fix: set KUBECONFIG to the "
                "path of one, as .busbar/STACK/kubeconfig"
            )
        source = f"kubeconfig {path}"
        try:
            text = Path(path).expanduser().read_text()
        except OSError as error:
            raise Misuse(
                f"{source}: {error.strerror or error}. Fix: KUBECONFIG, or --kubeconfig, must name one file"
            ) from error
    try:
        return RestApi(text, context)
    except ValueError as error:
        raise Misuse(f"{source}: {error}") from error
