"""One host as the program and the `busbar` commands know it, and the base of what those read on stdin."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Role = Literal["lb", "server", "worker", "nfs"]


class Model(BaseModel):
    """A part of what a command reads: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Host(Model):
    """One host. `user` and `port` are the host's own, else those of `ssh`.

    `labels`: those that its Node has beside the pool's, as key and value.
    """

    name: str
    address: str
    port: int
    user: str
    host_key: str
    role: Role
    pool: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
