"""The `connection` input of remote resources: defaults, secrecy, and what must not be missing."""

from __future__ import annotations

from typing import Any, Final

from lab.offline.plugins.sdk.resource import Failure
from lab.offline.plugins.sdk.values import Properties, Secret, Unknown, reveal

_DEFAULTS: Final[Properties] = {"user": "root", "port": 22, "dialErrorLimit": 10, "perDialTimeout": 15}
_SECRETS: Final = ("password", "privateKey", "privateKeyPassword")


def check(news: Properties) -> tuple[Properties, list[Failure]]:
    """`news` with the connection completed and marked secret, and what is missing."""
    given = news.get("connection")
    while isinstance(given, Secret):
        given = given.value
    if isinstance(given, Unknown):
        return {**news, "connection": Secret(given)}, []
    if not isinstance(given, dict):
        return news, [Failure("connection", "Missing required property 'connection'")]
    failures = [] if _present(given) else [Failure("connection.host", "Missing required property 'host'")]
    completed = _complete(given)
    proxy = given.get("proxy")
    while isinstance(proxy, Secret):
        proxy = proxy.value
    if isinstance(proxy, dict):
        if not _present(proxy):
            failures.append(Failure("connection.proxy.host", "Missing required property 'host'"))
        completed["proxy"] = _complete(proxy)
    return {**news, "connection": Secret(completed)}, failures


def _present(connection: Properties) -> bool:
    return reveal(connection.get("host")) is not None


def _complete(connection: Properties) -> dict[str, Any]:
    completed = {**_DEFAULTS, **{key: value for key, value in connection.items() if value is not None}}
    for key in _SECRETS:
        if key in completed and not isinstance(completed[key], Secret):
            completed[key] = Secret(completed[key])
    return completed
