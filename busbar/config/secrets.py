"""Secrets have no place inside `busbar:cluster`: found by name, refused, and told where they belong.

Pulumi hands a secret nested in a structured value to the program as plain text, and it ends up readable in
outputs and logs; a top-level secret key stays marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_SSH_KEY = "remove it here and run `pulumi config set --secret busbar:sshPrivateKey < KEYFILE`"
_SSH_PASSWORD = "remove it here and run `pulumi config set --secret busbar:sshPrivateKeyPassword`"
_TOKEN = "remove it: busbar makes the cluster's tokens itself and keeps them as secrets of the stack"
_REGISTRY = "remove it here and put it into the secret busbar:registryCredentials"
_NO_PASSWORDS = "remove it: busbar logs in with a key or the ssh-agent, never with a password"
_S3 = "remove it here and set the secrets busbar:s3AccessKey and busbar:s3SecretKey"
_ELSEWHERE = "remove it: the stack's file and state show it; let a Kubernetes Secret carry it"

_CURES = {
    "private_key": _SSH_KEY,
    "ssh_private_key": _SSH_KEY,
    "private_key_password": _SSH_PASSWORD,
    "ssh_private_key_password": _SSH_PASSWORD,
    "key_password": _SSH_PASSWORD,
    "passphrase": _SSH_PASSWORD,
    "token": _TOKEN,
    "agent_token": _TOKEN,
    "server_token": _TOKEN,
    "access_key": _S3,
    "secret_key": _S3,
    "etcd_s3_access_key": _S3,
    "etcd_s3_secret_key": _S3,
    "s3_access_key": _S3,
    "s3_secret_key": _S3,
    "registry_credentials": _REGISTRY,
}
_SECRET_VARIABLE = re.compile(r"(^|_)(password|passwd|token|secret|secret_key|access_key|api_key)$")


def findings(data: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, message) for everything in `data` that is a secret; the message never holds the value."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            here = f"{path}.{key}" if path else str(key)
            cure = _cure(str(key), here)
            if cure is None and isinstance(value, Mapping) and set(value) == {"secure"}:
                cure = f"remove it: nested secrets reach the program in plain text ({_KEYS})"
            if cure is None:
                yield from findings(value, here)
            elif value is not None and value != "":
                yield here, f"a secret inside busbar:cluster; {cure}"
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from findings(value, f"{path}[{index}]")
    elif isinstance(data, str) and "PRIVATE KEY-----" in data:
        yield path, f"a private key inside busbar:cluster; {_SSH_KEY}"


_KEYS = (
    "secrets are keys of their own: busbar:sshPrivateKey, sshPrivateKeyPassword, registryCredentials, "
    "s3AccessKey, s3SecretKey"
)


def _cure(key: str, path: str) -> str | None:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace("-", "_").lower()
    if path.startswith("k3s.registries.") and name in {"auth", "password", "username", "identity_token"}:
        return _REGISTRY
    if name in {"password", "passwd"}:
        return _NO_PASSWORDS if path.startswith(("ssh.", "hosts.")) else _ELSEWHERE
    if path.startswith("validation.env."):
        return _ELSEWHERE if _SECRET_VARIABLE.search(name) else None
    return _CURES.get(name)
