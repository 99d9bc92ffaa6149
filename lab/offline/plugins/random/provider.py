"""The package `random`: RandomPassword, RandomString and RandomId."""

from __future__ import annotations

from lab.offline.plugins.random.values import RandomId, RandomPassword, RandomString
from lab.offline.plugins.sdk.provider import Provider
from lab.offline.plugins.sdk.resource import ProviderError, Resource

_KINDS: dict[str, type[Resource]] = {
    "random:index/randomPassword:RandomPassword": RandomPassword,
    "random:index/randomString:RandomString": RandomString,
    "random:index/randomId:RandomId": RandomId,
}


class RandomProvider(Provider):
    """Behaves as pulumi-random 4.21."""

    name = "random"
    version = "4.21.4"

    def resource(self, type_token: str) -> Resource:
        if type_token not in _KINDS:
            raise ProviderError(f"this replacement of the random plugin has no resource {type_token!r}")
        return _KINDS[type_token]()
