"""The base of a resource kind, without gRPC."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field

from lab.offline.plugins.sdk.engine import Log
from lab.offline.plugins.sdk.values import Properties

ADD, ADD_REPLACE, DELETE, DELETE_REPLACE, UPDATE, UPDATE_REPLACE = (
    "ADD",
    "ADD_REPLACE",
    "DELETE",
    "DELETE_REPLACE",
    "UPDATE",
    "UPDATE_REPLACE",
)


class ProviderError(Exception):
    """The operation failed; nothing new is to be stored."""


@dataclass(frozen=True)
class Failure:
    """An input that is not acceptable; `property` is empty when the failure is not about a single one."""

    property: str
    reason: str


@dataclass(frozen=True)
class Call:
    """The circumstances of one operation on one resource."""

    urn: str
    log: Log
    preview: bool = False
    ignore_changes: tuple[str, ...] = ()
    old_inputs: Properties | None = None  # None where the engine does not send them
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        """The resource's name in the program, the last part of its URN."""
        return self.urn.split("::", 3)[-1]

    @property
    def type(self) -> str:
        """The resource's own type token, without its parents' types."""
        return self.urn.split("::")[2].split("$")[-1]

    def log_message(self, severity: str, text: str) -> None:
        """Log a diagnostic of the resource."""
        self.log(severity, self.urn, text)

    def show(self, text: str) -> None:
        """Show progress of the resource, without a diagnostic."""
        self.log("info", self.urn, text, status=True)


@dataclass(frozen=True)
class Difference:
    """What would change: property path to one of ADD, DELETE, UPDATE or their _REPLACE forms."""

    changes: dict[str, str] = field(default_factory=dict)

    @property
    def replaces(self) -> list[str]:
        """The paths that cannot be changed in place."""
        return [path for path, kind in self.changes.items() if kind.endswith("_REPLACE")]


class Resource:
    """One kind of resource. Properties may hold `Secret` and, in previews, `UNKNOWN`."""

    def check(self, call: Call, olds: Properties, news: Properties) -> tuple[Properties, list[Failure]]:
        """The inputs to store, with defaults and names filled in, and what is wrong with them."""
        return news, []

    def diff(self, call: Call, id: str, state: Properties, news: Properties) -> Difference:
        """How the stored resource differs from what is wanted now."""
        raise NotImplementedError

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        """Make it; returns its ID and its state. In a preview nothing may be touched."""
        raise NotImplementedError

    def read(
        self, call: Call, id: str, state: Properties, inputs: Properties
    ) -> tuple[str, Properties, Properties] | None:
        """Its ID, state and inputs as they are now, or None when it is gone. By default: as stored."""
        return id, state, inputs

    def update(self, call: Call, id: str, state: Properties, news: Properties) -> Properties:
        """Change it in place; returns its new state."""
        raise NotImplementedError

    def delete(self, call: Call, id: str, state: Properties) -> None:
        """Remove it; a missing one is not an error."""


def unique(prefix: str, digits: int = 8) -> str:
    """`prefix` and some random hex digits, as the engine's own libraries name things."""
    return prefix + secrets.token_hex((digits + 1) // 2)[:digits]
