"""The snapshots of etcd of a cluster: on its servers, and in the bucket of k3s.snapshots.s3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from busbar.hosts.host import Host
from busbar.hosts.remote import Hosts, on_each

LIST_SECONDS = 120
S3 = "s3"


@dataclass(frozen=True)
class Snapshot:
    """One snapshot. `where` is the name of a server, or "s3"; `time` is UTC, as in 2026-11-22T04:30:00Z."""

    name: str
    where: str
    path: str
    bytes: int
    time: str


@dataclass(frozen=True)
class ServerState:
    """The response of a server. `problem` prevents its restore; empty if there is none.

    `restoring`: its K3s was stopped by a restore that was not finished. `stored` lists the bucket; None if
    the server has none configured, or its K3s does not run.
    """

    host: Host
    install_id: str
    running: bool
    restoring: bool
    has_s3: bool
    problem: str
    snapshots: tuple[Snapshot, ...]
    stored: tuple[Snapshot, ...] | None

    @classmethod
    def of(cls, host: Host, facts: Mapping[str, Any]) -> ServerState:
        """The state from the facts of host/k3s-restore.sh, VERB=list. Raises KeyError for other facts."""
        stored = facts["stored"]
        return cls(
            host,
            str(facts["install_id"]),
            bool(facts["running"]),
            bool(facts["restoring"]),
            bool(facts["s3"]),
            str(facts["problem"]),
            _snapshots(host.name, facts["snapshots"]),
            None if stored is None else _snapshots(S3, stored),
        )


async def ask(hosts: Hosts, servers: Sequence[Host], path: str = "") -> list[ServerState | str]:
    """Per server, in their order: its state, or the reason why there is none.

    `path`: a file in any folder that counts as a snapshot if it exists.
    """

    async def one(server: Host) -> ServerState:
        values = {"VERB": "list", "SNAPSHOT": path}
        return ServerState.of(server, await hosts.run(server, "k3s-restore", values, seconds=LIST_SECONDS))

    return await on_each(servers, one)


def all_of(states: Sequence[ServerState]) -> list[Snapshot]:
    """All snapshots, the newest first; those in the bucket once."""
    stored = next((state.stored for state in states if state.stored is not None), ())
    found = [*stored, *(each for state in states for each in state.snapshots)]
    return sorted(found, key=lambda each: (each.time, each.name, each.where), reverse=True)


def _snapshots(where: str, facts: Sequence[Mapping[str, Any]]) -> tuple[Snapshot, ...]:
    return tuple(
        Snapshot(str(each["name"]), where, str(each["path"]), int(each["bytes"]), str(each["time"]))
        for each in facts
    )
