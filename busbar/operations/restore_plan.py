"""Plans a restore, and refuses it for any reason before anything changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from busbar.exits import Failed
from busbar.hosts.host import Host
from busbar.hosts.inventory import Inventory
from busbar.hosts.login import Login
from busbar.hosts.remote import Hosts, ScriptError, UnreachableError
from busbar.operations.snapshots import S3, ServerState, Snapshot, all_of, ask

CHECK_SECONDS = 300
SCRIPT = "k3s-restore"


class RestoreError(Failed):
    """The restore was refused, or failed; the text has the state of the cluster, and the fix."""


@dataclass(frozen=True)
class RestorePlan:
    """A checked restore. `first` is reset to the snapshot, `others` join it in this order.

    `resumed`: an earlier restore was not finished. Servers may then have old and restored data, and must not
    run with these, because they could form two clusters.
    """

    snapshot: Snapshot
    first: Host
    others: tuple[Host, ...]
    workers: tuple[Host, ...]
    resumed: bool = False

    @property
    def servers(self) -> tuple[Host, ...]:
        return (self.first, *self.others)


async def plan(
    inventory: Inventory, login: Login, wanted: str, *, s3: bool = False, server: str | None = None
) -> RestorePlan:
    """Check everything that can be checked while the cluster runs; changes nothing.

    `wanted`: name of a snapshot, or with a leading "/" the path of a file on a server. `s3`: take it from the
    bucket. `server`: the server to reset; by default one that has the snapshot, with `s3` the first one.
    Raises RestoreError (with all reasons), ValueError (unusable SSH key), ScriptError (bastion).
    """
    servers = inventory.servers
    if server is not None and server not in {each.name for each in servers}:
        raise RestoreError(f"{server} is not a server of the stack ({names_of(servers)}); no changes made")
    async with Hosts.open(login) as hosts:
        answers = await ask(hosts, servers, wanted if wanted.startswith("/") else "")
        states = [each for each in answers if isinstance(each, ServerState)]
        _refuse([*(each for each in answers if isinstance(each, str)), *_problems(states)])
        snapshot, state = _choose(states, wanted, s3=s3, server=server)
        if not s3:
            try:
                await hosts.run(
                    state.host,
                    SCRIPT,
                    {"VERB": "check", "SNAPSHOT": snapshot.path},
                    seconds=CHECK_SECONDS,
                )
            except (ScriptError, UnreachableError) as error:
                raise RestoreError(str(error)) from None
    others = tuple(each for each in servers if each != state.host)
    workers = inventory.workers
    return RestorePlan(snapshot, state.host, others, workers, any(each.restoring for each in states))


def _problems(states: Sequence[ServerState]) -> list[str]:
    found = [f"{state.host.name}: {state.problem}" for state in states if state.problem]
    clusters = {state.install_id for state in states}
    if len(clusters) > 1:
        which = ", ".join(f"{state.host.name} {state.install_id}" for state in states)
        found.append(f"the servers belong to different clusters ({which})")
    return found


def _refuse(reasons: Sequence[str]) -> None:
    if reasons:
        raise RestoreError(
            "\n".join(reasons) + "\nA restore needs every server of the configuration; no changes made. Fix: "
            "repair them, or take servers that are gone for good out of hosts.servers first"
        )


def _choose(
    states: Sequence[ServerState], wanted: str, *, s3: bool, server: str | None
) -> tuple[Snapshot, ServerState]:
    possible = [state for state in states if server in (None, state.host.name)]
    if s3:
        return _choose_stored(states, possible[0], wanted)
    for state in possible:
        for snapshot in state.snapshots:
            if wanted in (snapshot.name, snapshot.path):
                return snapshot, state
    where = server or names_of([state.host for state in states])
    raise RestoreError(_missing(f"no snapshot {wanted} on {where}", states))


def _choose_stored(
    states: Sequence[ServerState], first: ServerState, wanted: str
) -> tuple[Snapshot, ServerState]:
    if not first.has_s3:
        raise RestoreError(f"{first.host.name}: k3s.snapshots.s3 is not configured there; no changes made")
    listed = [state.stored for state in states if state.stored is not None]
    if not listed:
        # Without a running K3s the bucket cannot be listed. K3s downloads before it changes anything.
        return Snapshot(wanted, S3, wanted, 0, ""), first
    for snapshot in listed[0]:
        if snapshot.name == wanted:
            return snapshot, first
    raise RestoreError(_missing(f"no snapshot {wanted} in the bucket", states))


def _missing(what: str, states: Sequence[ServerState]) -> str:
    found = [f"  {each.name} ({each.where}, {each.time})" for each in all_of(states)]
    return "\n".join([f"{what}; no changes made. Available:", *(found or ["  none"])])


def names_of(hosts: Sequence[Host]) -> str:
    return ", ".join(host.name for host in hosts)
