"""Connects to a host, with the official plugin's retries and messages.

Source: pulumi-command 1.2.1 provider/pkg/provider/remote/connection.go; delays from the Pulumi SDK's
go/common/util/retry (first 0.1 s, times 1.5, at most 5 s).
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import asyncssh

from lab.offline.plugins.command.ssh_keys import options
from lab.offline.plugins.sdk.resource import ProviderError

_FIRST_DELAY_SECONDS = 0.1
_DELAY_FACTOR = 1.5
_LONGEST_DELAY_SECONDS = 5.0
_DEFAULT_DIAL_ERROR_LIMIT = 10
_UNLIMITED = -1

_Dialled = TypeVar("_Dialled")


async def dial(
    connection: Mapping[str, Any], show: Callable[[str], None], cancelled: threading.Event
) -> asyncssh.SSHClientConnection:
    """A connection to the host, through its `proxy` where it has one.

    Raises ProviderError after `dialErrorLimit` failed attempts, on bad keys, and when cancelled.
    """
    proxy = connection.get("proxy")
    tunnel = None
    if proxy:
        tunnel = await _persist(
            "Dial proxy", proxy, show, cancelled, lambda: _connect(proxy, None), "proxy: "
        )
    return await _persist(
        "Dial", connection, show, cancelled, lambda: _connect(connection, tunnel), "proxy: " if proxy else ""
    )


async def _connect(
    connection: Mapping[str, Any], tunnel: asyncssh.SSHClientConnection | None
) -> asyncssh.SSHClientConnection:
    host, port = connection["host"], int(connection.get("port", 22))
    chosen = options(connection)
    try:
        return await asyncssh.connect(host, port, tunnel=tunnel or (), **chosen)
    except (ConnectionResetError, asyncssh.ConnectionLost):
        # A server that has no key of the pinned type may hang up before we have seen that.
        offered = await asyncssh.get_server_host_key(host, port, tunnel=tunnel or (), config=[])
        pinned = chosen.get("server_host_key_algs")
        if pinned and offered and offered.get_algorithm() not in pinned:
            raise asyncssh.KeyExchangeFailed(
                f'we offered: ["{pinned[0]}"], peer offered: ["{offered.get_algorithm()}"]'
            ) from None
        raise


async def _persist(
    what: str,
    connection: Mapping[str, Any],
    show: Callable[[str], None],
    cancelled: threading.Event,
    attempt: Callable[[], Awaitable[_Dialled]],
    prefix: str,
) -> _Dialled:
    limit = int(connection.get("dialErrorLimit", _DEFAULT_DIAL_ERROR_LIMIT))
    delay, failures = _FIRST_DELAY_SECONDS, 0
    while True:
        try:
            return await attempt()
        except (TimeoutError, OSError, asyncssh.Error) as error:
            reason = as_go_error(error, connection)
        failures += 1
        if limit > _UNLIMITED and failures > limit:
            raise ProviderError(f"{prefix}after {failures - 1} failed attempts: {reason}")
        show(f"{what} {failures}/{'inf' if limit == _UNLIMITED else limit} failed: retrying")
        if await asyncio.to_thread(cancelled.wait, delay):
            raise ProviderError(f"{prefix}context canceled")
        delay = min(delay * _DELAY_FACTOR, _LONGEST_DELAY_SECONDS)


def as_go_error(error: BaseException, connection: Mapping[str, Any]) -> str:
    """The failure in the wording of Go's ssh and net packages, which people and programs search for."""
    where = f"dial tcp {connection['host']}:{int(connection.get('port', 22))}"
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return "ssh: handshake failed: ssh: host key mismatch"
    if isinstance(error, asyncssh.KeyExchangeFailed):
        return f"ssh: handshake failed: ssh: no common algorithm for host key; {error.reason}"
    if isinstance(error, asyncssh.PermissionDenied):
        tried = ["none"]
        if (
            connection.get("privateKey")
            or connection.get("agentSocketPath")
            or os.environ.get("SSH_AUTH_SOCK")
        ):
            tried.append("publickey")
        if connection.get("password"):
            tried.append("password")
        return (
            "ssh: handshake failed: ssh: unable to authenticate, "
            f"attempted methods [{' '.join(tried)}], no supported methods remain"
        )
    if isinstance(error, asyncssh.Error):
        return f"ssh: handshake failed: {error.reason or error}"
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return f"{where}: i/o timeout"
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return f"{where}: connect: {os.strerror(error.errno).lower()}"
    return f"{where}: {error}"
