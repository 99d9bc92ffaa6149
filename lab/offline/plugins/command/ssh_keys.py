"""How a remote command authenticates: connection properties to asyncssh options.

As in the official plugin only what the connection names is used: no ~/.ssh/config, no default keys, no
known_hosts file; the agent is $SSH_AUTH_SOCK unless `agentSocketPath` says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import asyncssh

from lab.offline.plugins.sdk.resource import ProviderError


def options(connection: Mapping[str, Any]) -> dict[str, Any]:
    """Options for `asyncssh.connect`; raises ProviderError on a key that cannot be read."""
    chosen: dict[str, Any] = {
        "username": connection.get("user", "root"),
        "config": [],
        "known_hosts": None,
        "client_keys": _client_keys(connection) or None,
        "agent_path": connection.get("agentSocketPath") or os.environ.get("SSH_AUTH_SOCK") or None,
        "gss_auth": False,
        "gss_kex": False,
        "password": connection.get("password"),
        "connect_timeout": connection.get("perDialTimeout", 15) or None,
    }
    pinned = connection.get("hostKey")
    if pinned is not None:
        key = _host_key(pinned)
        chosen["known_hosts"] = ([key], [], [])
        chosen["server_host_key_algs"] = [key.get_algorithm()]
    return chosen


def _client_keys(connection: Mapping[str, Any]) -> list[asyncssh.SSHKey]:
    text = connection.get("privateKey")
    if text is None:
        return []
    try:
        return [asyncssh.import_private_key(text, connection.get("privateKeyPassword"))]
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise ProviderError(f"ssh: cannot use privateKey: {error}") from error


def _host_key(text: str) -> asyncssh.SSHKey:
    try:
        return asyncssh.import_public_key(text)
    except asyncssh.KeyImportError as error:
        raise ProviderError(f"failed to parse host key: {error}") from error
