"""The secret `busbar:registryCredentials`: logins for container registries, as JSON."""

from __future__ import annotations

import json
from typing import Any

from busbar.config.errors import ConfigError

_KEYS = {"username", "password", "auth", "identity_token"}
_FORM = 'expected {"registry.example.com": {"username": "...", "password": "..."}}'


def registry_credentials(text: str) -> dict[str, dict[str, str]]:
    """Registry -> its `auth` as registries.yaml has it (username and password, auth, or identity_token).

    Raises ConfigError where the text is something else; the message shows nothing of it.
    """
    try:
        content: Any = json.loads(text)
    except ValueError as error:
        position = getattr(error, "pos", None)
        raise ConfigError(
            [f"busbar:registryCredentials: is not JSON (character {position}): {_FORM}"]
        ) from None
    if not isinstance(content, dict) or not content:
        raise ConfigError([f"busbar:registryCredentials: is no object of registries: {_FORM}"])
    problems = []
    for registry, login in content.items():
        if not isinstance(login, dict) or not login or not all(isinstance(v, str) for v in login.values()):
            problems.append(f"busbar:registryCredentials: the login of {registry!r} is no object: {_FORM}")
        elif unknown := sorted(set(login) - _KEYS):
            problems.append(
                f"busbar:registryCredentials: unknown key {unknown[0]!r} for {registry!r}: {_FORM}"
            )
    if problems:
        raise ConfigError(problems)
    return content
