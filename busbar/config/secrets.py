"""The secrets of a stack: refused inside `busbar:cluster`, and the format of busbar:registryCredentials.

Pulumi passes a secret nested in a structured value to the program as plain text, and it ends up readable in
outputs and logs; a top-level secret key stays marked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from busbar.config.errors import ConfigError, Finding, KeyPath
from busbar.config.schema import SECRETS

_SSH_KEY = "remove it and run `pulumi config set --secret busbar:sshPrivateKey < KEYFILE`"
_SSH_PASSWORD = "remove it and run `pulumi config set --secret busbar:sshPrivateKeyPassword`"
_TOKEN = "remove it; busbar generates the cluster's tokens and stores them as secrets of the stack"
_REGISTRY = "remove it and set the secret busbar:registryCredentials"
_NO_PASSWORDS = "remove it; busbar logs in with a key or the ssh-agent, never with a password"
_S3 = "remove it and set the secrets busbar:s3AccessKey and busbar:s3SecretKey"
_ELSEWHERE = "remove it; the stack file and the state would show it. Use a Kubernetes Secret"
_NESTED = (
    "remove it; nested secrets reach the program in plain text. Secrets are top-level keys: "
    + ", ".join(f"busbar:{key}" for key in SECRETS)
)

# Pattern of a whole key, in snake case -> what to do.
_FIXES = (
    (r"(ssh_)?private_key", _SSH_KEY),
    (r"((ssh_)?private_)?key_password|passphrase", _SSH_PASSWORD),
    (r"((agent|server)_)?token", _TOKEN),
    (r"((etcd_)?s3_)?(access|secret)_key", _S3),
    (r"registry_credentials", _REGISTRY),
    (r"(.*_)?api_key", _ELSEWHERE),
)
# NGC's personal keys, and tokens of GitHub and Hugging Face, under whatever key.
_SECRET_TEXT = re.compile(r"nvapi-[\w-]{20,}|gh[opsu]_\w{30,}|github_pat_\w{30,}|hf_[A-Za-z0-9]{30,}")
_SECRET_VARIABLE = re.compile(r"(^|_)(password|passwd|token|secret|secret_key|access_key|api_key)$")


def secrets_in(data: Any, path: KeyPath = ()) -> Iterator[Finding]:
    """Yield one for every secret in `data`; it never holds the value."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            here = (*path, str(key))
            fix = _fix(here)
            if fix is None and isinstance(value, Mapping) and set(value) == {"secure"}:
                fix = _NESTED
            if fix is None:
                yield from secrets_in(value, here)
            elif value is not None and value != "":
                yield Finding(here, "is a secret inside busbar:cluster", fix)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from secrets_in(value, (*path, index))
    elif isinstance(data, str) and "PRIVATE KEY-----" in data:
        yield Finding(path, "is a private key inside busbar:cluster", _SSH_KEY)
    elif isinstance(data, str) and _SECRET_TEXT.search(data):
        yield Finding(path, "is a secret inside busbar:cluster", _ELSEWHERE)


def _fix(path: KeyPath) -> str | None:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(path[-1])).replace("-", "_").lower()
    if path[:2] == ("k3s", "registries") and name in {"auth", "password", "username", "identity_token"}:
        return _REGISTRY
    if path[:2] == ("k3s", "rotate"):
        return None  # numbers of rotations
    if name in {"password", "passwd"}:
        return _NO_PASSWORDS if path[0] in ("ssh", "hosts") and path[1:] else _ELSEWHERE
    if path[:2] == ("validation", "env") and path[2:]:
        return _ELSEWHERE if _SECRET_VARIABLE.search(name) else None
    return next((fix for pattern, fix in _FIXES if re.fullmatch(pattern, name)), None)


def plain_text(key: str, project: str = "busbar") -> Finding:
    """The finding for a secret key of the stack whose value is not encrypted."""
    fix = f"replace the secret everywhere, then run `pulumi config set --secret {project}:{key}`"
    return Finding((f"{project}:{key}",), "is stored in plain text", fix)


_LOGIN_KEYS = {"username", "password", "auth", "identity_token"}
_LOGIN_FORM = 'expected {"registry.example.com": {"username": "...", "password": "..."}}'


def registry_credentials(text: str) -> dict[str, dict[str, str]]:
    """Registry -> its `auth` as in registries.yaml (username and password, auth, or identity_token).

    Raises ConfigError for any other text; the message shows nothing of it.
    """
    key = "busbar:registryCredentials"
    try:
        content: Any = json.loads(text)
    except ValueError as error:
        position = getattr(error, "pos", None)
        raise ConfigError([Finding((key,), f"is not JSON (character {position}): {_LOGIN_FORM}")]) from None
    if not isinstance(content, dict) or not content:
        raise ConfigError([Finding((key,), f"is not an object of registries: {_LOGIN_FORM}")])
    problems = []
    for registry, login in content.items():
        if not isinstance(login, dict) or not login or not all(isinstance(v, str) for v in login.values()):
            problems.append(
                Finding((key,), f"the login of {registry!r} is not an object of texts: {_LOGIN_FORM}")
            )
        elif unknown := sorted(set(login) - _LOGIN_KEYS):
            problems.append(Finding((key,), f"unknown key {unknown[0]!r} of {registry!r}: {_LOGIN_FORM}"))
    if problems:
        raise ConfigError(problems)
    return content
