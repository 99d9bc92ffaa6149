"""Removes hosts: those no longer configured, or all at `destroy`. A machine that is gone is not an error.

A host that is not responding counts as gone only if another host of the cluster responds: otherwise the
network of this machine may be down. Hosts that could not be cleaned are recorded.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from busbar import names
from busbar.capability import CANCEL_JOBS
from busbar.finding import STACK, Fix, with_fix
from busbar.hosts.inventory import Host, Login
from busbar.hosts.remote import Hosts, Say, ScriptError, UnreachableError
from busbar.models import StrictModel
from busbar.writing import write_whole

FOLDER = "uncleaned"


@dataclass(frozen=True)
class Record:
    """A host that could not be cleaned: the software that is still installed on it, and the time."""

    host: str
    address: str
    reason: str
    resource: str
    time: str
    path: Path

    def __str__(self) -> str:
        what = f"could not be cleaned: {self.host} ({self.reason}, {self.time})"
        by_hand, then = ("docs", "hosts", "'By hand'"), f"; then remove {self.path}"
        return with_fix(what, Fix("before the machine is used again, wipe or uninstall it", by_hand, then))


def write_record(folder: Path, resource: str, host: Host, reason: str) -> Path:
    """Record one host, on which nothing could be removed; returns the file."""
    path = folder / FOLDER / f"{resource}.json"
    time = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    found = {"host": host.name, "address": host.address, "reason": reason}
    write_whole(path, json.dumps({**found, "resource": resource, "time": time}) + "\n")
    return path


def recorded(folder: Path) -> bool:
    """Whether a host is recorded, without asking whether its resource exists again."""
    return any((folder / FOLDER).glob("*.json"))


def read_records(folder: Path, *, listed: Collection[str]) -> list[Record]:
    """The records of a stack. Those of `listed` resources, which exist again, are dropped."""
    records = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        if path.stem in listed:
            path.unlink()
        else:
            records.append(Record(**json.loads(path.read_text()), path=path))
    return records


# Time in seconds for a rebooting host to respond again.
CONNECT_SECONDS = 45.0
NODE_SECONDS = 600
TEARDOWN_SECONDS = 30


class HostRemoval(StrictModel):
    """The stdin of `busbar remove host`."""

    login: Login
    host: Host
    script: str
    """The script of host/ that installed the host; it runs with VERB=remove and `values`."""
    values: dict[str, str]
    timeout_seconds: int
    others: tuple[Host, ...]
    """Load balancers and other servers; the Node and etcd member of a server leave through one of these."""
    folder: str
    """Folder of the records about hosts that could not be cleaned."""
    resource: str


class Teardown(StrictModel):
    """Stdin of `busbar remove cluster` and `keep`, which tell servers that the cluster goes or stays."""

    login: Login
    servers: tuple[Host, ...]
    install_id: str = ""
    """The id of the cluster: a server that another one has by now is told nothing."""


async def remove_host(spec: HostRemoval, say: Say) -> str | None:
    """Remove what busbar installed. Returns why nothing could be removed, or None. Raises ScriptError."""
    ends = {"CANCEL_JOBS": "true"} if os.environ.get(CANCEL_JOBS) == "true" else {}
    values = {**spec.values, "VERB": "remove", **ends}
    async with Hosts.open(spec.login, say) as hosts:
        try:
            facts = await hosts.run(
                spec.host, spec.script, values, seconds=spec.timeout_seconds, connect_seconds=CONNECT_SECONDS
            )
        except UnreachableError as error:
            await _check_gone(hosts, spec, error)
            if spec.host.role == "server" and not await _leave(hosts, spec, say):
                say(f"{spec.host.name}: no other server of its cluster is running; its etcd member stays")
            return error.finding.what
        if facts.get("node_again"):
            await _leave(hosts, spec, say)
    return None


async def announce_teardown(spec: Teardown, say: Say, *, kept: bool = False) -> None:
    """Tell responding servers that the cluster is being removed, or (`kept`) not; the others are reported."""
    values = {"VERB": "keep" if kept else "teardown", "INSTALL_ID": spec.install_id}
    async with Hosts.open(spec.login, say) as hosts:

        async def tell(server: Host) -> None:
            try:
                await hosts.run(server, "k3s-nodes", values, seconds=TEARDOWN_SECONDS)
            except UnreachableError as error:
                say(str(error))

        async with asyncio.TaskGroup() as group:
            for server in spec.servers:
                group.create_task(tell(server))


async def _check_gone(hosts: Hosts, spec: HostRemoval, error: UnreachableError) -> None:
    if error.answers:
        raise ScriptError(
            f"{error}. A removal logs in as the last update did; if that has changed, list it again, update, "
            f"and take it out then. If the machine is of others now: `pulumi state delete --stack "
            f"{STACK}` of {names.removal_of(spec.resource)} leaves it"
        )
    if not await _any_answers(hosts, spec.others):
        asked = ", ".join(other.name for other in spec.others) or "there is none"
        raise ScriptError(
            f"{spec.host.name}: {error.finding.what}; no other host of the cluster answers either "
            f"({asked}), so it is not known to be gone. Fix: check "
            "the network of this machine (VPN, bastion); if all machines are gone: `pulumi stack rm --force "
            f"--preserve-config --stack {STACK}`, which forgets them and keeps the stack file"
        )


async def _any_answers(hosts: Hosts, others: Sequence[Host]) -> bool:
    async def answers(other: Host) -> bool:
        try:
            await hosts.check(other)
        except UnreachableError as error:
            return error.answers
        return True

    return any(await asyncio.gather(*(answers(other) for other in others)))


async def _leave(hosts: Hosts, spec: HostRemoval, say: Say) -> bool:
    """Delete a host's Node, a server also from etcd; False where no server of its cluster runs any more.

    If one server fails, the next one is tried. Raises the first ScriptError if all failed.
    """
    failed: ScriptError | None = None
    values = {"NODE_NAME": spec.host.name, "VERB": "remove", "INSTALL_ID": spec.values["INSTALL_ID"]}
    for server in (other for other in spec.others if other.role == "server"):
        try:
            facts = await hosts.run(server, "k3s-nodes", values, seconds=NODE_SECONDS)
        except (ScriptError, UnreachableError) as error:
            say(str(error))
            if isinstance(error, ScriptError):
                failed = failed or error
            continue
        if facts.get("cluster") is True:
            return True
    if failed:
        raise failed
    return False
