"""A provider: a package of resource kinds and their common configuration."""

from __future__ import annotations

import threading

from lab.offline.plugins.sdk.resource import ProviderError, Resource
from lab.offline.plugins.sdk.values import Properties


class Provider:
    """Base of the plugins. `version` is the official version whose behaviour is imitated."""

    name: str
    version: str

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def parameterize(self, name: str, version: str, value: bytes) -> None:
        """Become the package NAME by the parameter of a program."""
        raise ProviderError(f"this replacement of the {self.name} plugin takes no parameters")

    def resource(self, type_token: str) -> Resource:
        """The kind for `type_token`; raises ProviderError where it is not offered."""
        raise NotImplementedError

    def invoke(self, token: str, args: Properties) -> Properties:
        """The result of the function `token`."""
        raise ProviderError(f"this replacement of the {self.name} plugin has no function {token!r}")

    def cancel(self) -> None:
        """The user asked to stop."""
        self.cancelled.set()
