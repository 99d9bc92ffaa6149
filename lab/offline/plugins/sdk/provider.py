"""A provider: a package of resource kinds and their common configuration."""

from __future__ import annotations

import threading

from lab.offline.plugins.sdk.resource import Call, Difference, Failure, ProviderError, Resource
from lab.offline.plugins.sdk.values import Properties


class Provider:
    """Base of the three plugins. `version` is the official version whose behaviour is imitated."""

    name: str
    version: str

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def check_config(self, call: Call, news: Properties) -> list[Failure]:
        """What is wrong with the provider's own configuration."""
        return []

    def diff_config(self, call: Call, olds: Properties, news: Properties) -> Difference | None:
        """How a changed configuration acts on the provider resource; None leaves it to the engine."""
        return None

    def configure(self, variables: dict[str, str], args: Properties) -> None:
        """Take the configuration over; called once, before any operation."""

    def resource(self, type_token: str) -> Resource:
        """The kind for `type_token`; raises ProviderError where it is not offered."""
        raise NotImplementedError

    def invoke(self, token: str, args: Properties) -> Properties:
        """The result of the function `token`."""
        raise ProviderError(f"this replacement of the {self.name} plugin has no function {token!r}")

    def cancel(self) -> None:
        """The user asked to stop."""
        self.cancelled.set()
