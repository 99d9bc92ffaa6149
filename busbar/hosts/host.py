"""One host as the program and the `busbar` commands know it."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Host:
    """One host. `user` and `port` are the host's own, else those of `ssh`.

    `role`: lb, server, worker or nfs. `labels`: key and value of its Node's labels beside those of the pool.
    Also an argument of components, so its types are those that Pulumi's analyser accepts.
    """

    name: str
    address: str
    port: int
    user: str
    host_key: str
    role: str = Field(pattern="^(lb|server|worker|nfs)$")
    pool: str | None = None
    labels: Sequence[Sequence[str]] = ()

    def data(self) -> dict[str, Any]:
        """The host as plain data, ready for JSON."""
        return asdict(self)
