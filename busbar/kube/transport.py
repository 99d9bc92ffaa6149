"""Requests to the server of a kubeconfig, with its login. Needs urllib3."""

from __future__ import annotations

import json
import ssl
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

import urllib3

from busbar.kube.kubeconfig import Context, Login, pem

CONNECT_TIMEOUT_SECONDS = 5.0
CONNECTIONS = 32
# client-go retries as often. A server that asks for a longer pause than this is asked sooner.
BUSY_RETRIES, BUSY_SECONDS = 10, 3.0


# The class of an error -> what to do.
_FIXES = (
    (urllib3.exceptions.NameResolutionError, "check the name in `server:` of the kubeconfig"),
    (
        urllib3.exceptions.SSLError,
        "the kubeconfig is that of another cluster, or of an older authority: get a new one",
    ),
    (urllib3.exceptions.NewConnectionError, "check that it runs, and `server:` of the kubeconfig"),
    (urllib3.exceptions.TimeoutError, "check the network to it: VPN, firewall, load balancer"),
)


class Unreachable(Exception):
    """No answer came, or there are no credentials; the text says why, and `fix` what to do."""

    fix = ""


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


class Transport:
    """Sends requests by no proxy but the kubeconfig's. Safe to use from many threads."""

    def __init__(self, context: Context) -> None:
        """Raises ValueError where the context cannot be used."""
        self.server: str = context.server
        self._cluster = context.cluster
        self._login = Login(context)
        # A plugin may give another certificate: then other connections.
        self._pool = lru_cache(maxsize=1)(self._connect)
        self._pool(self._login.current().certificate)

    def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        body: Any = None,
        content_type: str = "application/json",
        *,
        read_timeout: float,
        headers: Mapping[str, str],
    ) -> urllib3.BaseHTTPResponse:
        """The response of any status, its body not yet read. `read_timeout`: seconds of silence.

        A GET that a busy server answers with Retry-After is sent again. A refused login by a plugin's
        credentials is tried once more with new ones. Raises Unreachable.
        """
        sent = {"accept": "application/json, */*", "user-agent": "busbar", **headers}
        if body is not None:
            sent["Content-Type"] = content_type
        url = f"{self.server}{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body)
        timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_SECONDS, read=read_timeout)

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
            return response
        except (urllib3.exceptions.HTTPError, OSError) as error:
            cause = getattr(error, "reason", None) or error
            reason = " ".join(str(cause).split())
            unreachable = Unreachable(f"{self.server} cannot be reached: {reason}")
            unreachable.fix = next((fix for kind, fix in _FIXES if isinstance(cause, kind)), "")
            raise unreachable from error
        except ValueError as error:
            raise Unreachable(str(error)) from error

    def ended(self) -> str:
        """When the client certificate ended, as a sentence; empty if it has not, or there is none."""
        return self._login.ended()

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
        except urllib3.exceptions.HTTPError as error:
            raise ValueError(f"proxy-url of the kubeconfig cannot be used: {error}") from error


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
