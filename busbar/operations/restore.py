"""Restores a cluster from a snapshot of etcd: the steps on its hosts.

The order is that of k3s-io/docs cli/etcd-snapshot.md, several servers: K3s stops on all servers; one is reset
to the snapshot and starts; the others give up their data and join it, one at a time. The old data are moved
aside, not deleted. Every step may be repeated: after an interruption the same command begins anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from busbar.exits import Failed
from busbar.finding import STACK, Fix
from busbar.hosts.inventory import Host, Inventory, Login, api_url
from busbar.hosts.remote import Hosts, Say, ScriptError, UnreachableError, on_each
from busbar.text import counted

STOP_SECONDS = 600
RESET_SECONDS = 1000
START_SECONDS = 1500
AGENT_SECONDS = 540
NODES_SECONDS = 360
# Workers whose agents restart at the same time; K3s's docs advise against more than 50 joins at once.
CONCURRENT_AGENTS = 32

CHECK_SECONDS = 300
SCRIPT = "k3s-restore"
LIST_SECONDS = 120
S3 = "s3"


@dataclass(frozen=True)
class Restored:
    """A finished restore. `kept`: server -> folder of its old data. `waiting`: Nodes that are not Ready."""

    kept: Mapping[str, str]
    waiting: tuple[str, ...]


async def restore(plan: RestorePlan, login: Login, say: Say) -> Restored:
    """Run the restore. Raises Failed, ValueError (unusable SSH key), ScriptError (bastion)."""
    async with Hosts.open(login, say) as hosts:
        return await _Steps(plan, hosts, say).all()


class _Steps:
    def __init__(self, plan: RestorePlan, hosts: Hosts, say: Say) -> None:
        self.plan, self.hosts, self.say = plan, hosts, say
        self.kept: dict[str, str] = {}

    async def all(self) -> Restored:
        await self.stop()
        await self.reset()
        await self.rejoin()
        await self.restart_agents()
        nodes = [each.name for each in (*self.plan.servers, *self.plan.workers)]
        self.say(f"waiting for {len(nodes)} Nodes")
        asked = self.run(self.plan.first, "nodes", seconds=NODES_SECONDS, NODES=" ".join(nodes))
        facts = await self._after_reset(asked)
        return Restored(self.kept, tuple(map(str, facts["waiting"])))

    async def stop(self) -> None:
        """Stop K3s on all servers at the same time; if one does not stop, start all again."""
        self.say(f"stopping K3s on {names_of(self.plan.servers)}")
        if failed := await self.failures(self.plan.servers, "stop", STOP_SECONDS):
            await self.start_again("; ".join(failed))

    async def reset(self) -> None:
        first, snapshot = self.plan.first, self.plan.snapshot
        self.say(f"{first.name}: restoring {snapshot.name}")
        try:
            facts = await self.run(
                first,
                "reset",
                seconds=RESET_SECONDS,
                SNAPSHOT=snapshot.name if snapshot.where == S3 else snapshot.path,
                S3="true" if snapshot.where == S3 else "false",
                RESUMED="true" if self.plan.resumed else "false",
            )
        except (ScriptError, UnreachableError) as error:
            raise Failed(
                f"{error}. K3s is stopped on {names_of(self.plan.servers)}; the data of "
                f"{names_of(self.plan.others) or 'no other server'} were not changed. "
                "Fix: run the same command again"
            ) from None
        if facts["reset"] is not True:
            await self.start_again(f"{first.name}: {facts['reason']}, see its log above")
        self._keep(first, facts)

    async def rejoin(self) -> None:
        """Start the first server, then the others, each as soon as the one before it is a voter."""
        first = self.plan.first
        self.say(f"{first.name}: starting K3s")
        await self._after_reset(self.run(first, "start", seconds=START_SECONDS, RESET="true"))
        running = [first]
        for server in self.plan.others:
            self.say(f"{server.name}: joining {first.name}")
            urls = " ".join(api_url(each.address) for each in running)
            facts = await self._after_reset(self.run(server, "join", seconds=START_SECONDS, SERVERS=urls))
            self._keep(server, facts)
            running.append(server)

    async def restart_agents(self) -> None:
        """Restart the agents. A worker that does not respond is reported, and again by the wait for Nodes."""
        self.say(f"restarting the agents of {counted(len(self.plan.workers), 'worker')}; pods keep running")
        for text in await self.failures(self.plan.workers, "agent", AGENT_SECONDS, CONCURRENT_AGENTS):
            self.say(text)

    async def start_again(self, why: str) -> None:
        """Start the servers with their previous data, before any change. Raises Failed."""
        if self.plan.resumed:
            chosen = self.plan.snapshot
            named = (chosen.name, "--s3") if chosen.where == S3 else (chosen.path,)
            fix = Fix("with this or another snapshot", ("restore", STACK, "--snapshot", *named))
            raise Failed(f"{why}. An earlier restore was not finished, so K3s is not started again", fix)
        self.say(f"{why}; starting K3s again with its previous data")
        failed = await self.failures(self.plan.servers, "start", START_SECONDS)
        state = f"not on all servers: {'; '.join(failed)}" if failed else "on all servers, with its data"
        raise Failed(f"{why}. Nothing was restored; K3s is running again {state}")

    async def run(self, host: Host, verb: str, *, seconds: int, **values: str) -> Mapping[str, Any]:
        given = {"VERB": verb, "INSTALL_ID": self.plan.install_id, **values}
        return await self.hosts.run(host, SCRIPT, given, seconds=seconds)

    async def failures(
        self, hosts: Sequence[Host], verb: str, seconds: int, at_once: int | None = None
    ) -> list[str]:
        """Run `verb` on all hosts; returns the errors of those that failed."""
        done = await on_each(hosts, lambda host: self.run(host, verb, seconds=seconds), at_once=at_once)
        return [each for each in done if isinstance(each, str)]

    async def _after_reset(self, step: Awaitable[Mapping[str, Any]]) -> Mapping[str, Any]:
        try:
            return await step
        except (ScriptError, UnreachableError) as error:
            kept = ", ".join(f"{host}:{folder}" for host, folder in self.kept.items()) or "none"
            raise Failed(
                f"{error}. {self.plan.first.name} has the data of {self.plan.snapshot.name}; "
                f"old data: {kept}",
                "after the repair run the same command again",
            ) from None

    def _keep(self, host: Host, facts: Mapping[str, Any]) -> None:
        if facts["kept"]:
            self.kept[host.name] = str(facts["kept"])
            self.say(f"{host.name}: its previous data is in {facts['kept']}")


@dataclass(frozen=True)
class RestorePlan:
    """A checked restore. `first` is reset to the snapshot, `others` join it in this order.

    `install_id`: of their cluster. `resumed`: an earlier restore was not finished. Servers may then have old
    and restored data, and must not run with these, because they could form two clusters.
    """

    snapshot: Snapshot
    first: Host
    others: tuple[Host, ...]
    workers: tuple[Host, ...]
    install_id: str
    resumed: bool = False

    def refuse_other(self, install_id: str | None) -> None:
        """Raise Failed if the stack's cluster is another one; "": it has none, None: it is unknown."""
        if install_id not in (None, self.install_id):
            where = "correct their addresses in this file, which may be a copy of that cluster's"
            fix = Fix(f"{where}; if this stack has lost its state", ("recover", STACK))
            raise Failed("the servers belong to another cluster than the stack; no changes made", fix)

    @property
    def servers(self) -> tuple[Host, ...]:
        return (self.first, *self.others)


async def plan(
    inventory: Inventory, login: Login, wanted: str, *, s3: bool = False, server: str | None = None
) -> RestorePlan:
    """Check everything that can be checked while the cluster runs; changes nothing.

    `wanted`: name of a snapshot, or with a leading "/" the path of a file on a server. `s3`: take it from the
    bucket. `server`: the server to reset; by default one that has the snapshot, with `s3` the first one.
    Raises Failed (with all reasons), ValueError (unusable SSH key), ScriptError (bastion).
    """
    servers = inventory.servers
    if server is not None and server not in {each.name for each in servers}:
        raise Failed(f"{server} is not a server of the stack ({names_of(servers)}); no changes made")
    async with Hosts.open(login) as hosts:
        answers = await ask(hosts, servers, wanted if wanted.startswith("/") else "")
        states = [each for each in answers if isinstance(each, ServerState)]
        _refuse([*(each for each in answers if isinstance(each, str)), *_problems(states)])
        snapshot, state = _choose(states, wanted, s3=s3, server=server)
        if not s3:
            values = {"VERB": "check", "SNAPSHOT": snapshot.path}
            try:
                await hosts.run(state.host, SCRIPT, values, seconds=CHECK_SECONDS)
            except (ScriptError, UnreachableError) as error:
                raise Failed(str(error)) from None
    others = tuple(each for each in servers if each != state.host)
    resumed = any(each.restoring for each in states)
    return RestorePlan(snapshot, state.host, others, inventory.workers, state.install_id, resumed)


def _problems(states: Sequence[ServerState]) -> list[str]:
    found = [f"{state.host.name}: {state.problem}" for state in states if state.problem]
    clusters = {state.install_id for state in states}
    if len(clusters) > 1:
        which = ", ".join(f"{state.host.name} {state.install_id}" for state in states)
        found.append(f"the servers belong to different clusters ({which})")
    return found


def _refuse(reasons: Sequence[str]) -> None:
    if reasons:
        what = "A restore needs every server of the configuration; no changes made"
        gone = "repair them, or take those gone for good out of hosts.servers, of which an odd number stays"
        fix = Fix(f"{gone}; where the API answers, then first", ("up", STACK))
        raise Failed("\n".join([*reasons, what]), fix)


def _choose(
    states: Sequence[ServerState], wanted: str, *, s3: bool, server: str | None
) -> tuple[Snapshot, ServerState]:
    possible = [state for state in states if server in (None, state.host.name)]
    if s3:
        return _stored(states, possible[0], wanted)
    for state in possible:
        for snapshot in state.snapshots:
            if wanted in (snapshot.name, snapshot.path):
                return snapshot, state
    where = server or names_of([state.host for state in states])
    raise Failed(_missing(f"no snapshot {wanted} on {where}", states))


def _stored(states: Sequence[ServerState], first: ServerState, wanted: str) -> tuple[Snapshot, ServerState]:
    if not first.has_s3:
        raise Failed(f"{first.host.name}: k3s.snapshots.s3 is not configured there; no changes made")
    listed = [state.stored for state in states if state.stored is not None]
    if not listed:
        # Without a running K3s the bucket cannot be listed. K3s downloads before it changes anything.
        return Snapshot(wanted, S3, wanted, 0, ""), first
    for snapshot in listed[0]:
        if snapshot.name == wanted:
            return snapshot, first
    raise Failed(_missing(f"no snapshot {wanted} in the bucket", states))


def _missing(what: str, states: Sequence[ServerState]) -> str:
    found = [f"  {each.name} ({each.where}, {each.time})" for each in all_of(states)]
    return "\n".join([f"{what}; no changes made. Available:", *(found or ["  none"])])


def names_of(hosts: Sequence[Host]) -> str:
    return ", ".join(host.name for host in hosts)


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
            facts["install_id"],
            facts["restoring"],
            facts["s3"],
            facts["problem"],
            tuple(Snapshot(**each, where=host.name) for each in facts["snapshots"]),
            None if stored is None else tuple(Snapshot(**each, where=S3) for each in stored),
        )


async def ask(hosts: Hosts, servers: Sequence[Host], path: str = "") -> list[ServerState | str]:
    """Per server its state, or why there is none. `path`: a file that counts as a snapshot if it exists."""

    async def one(server: Host) -> ServerState:
        values = {"VERB": "list", "SNAPSHOT": path, "NODES": " ".join(each.name for each in servers)}
        return ServerState.of(server, await hosts.run(server, SCRIPT, values, seconds=LIST_SECONDS))

    return await on_each(servers, one)


def all_of(states: Sequence[ServerState]) -> list[Snapshot]:
    """All snapshots, the newest first; those in the bucket once."""
    stored = next((state.stored for state in states if state.stored is not None), ())
    found = [*stored, *(each for state in states for each in state.snapshots)]
    return sorted(found, key=lambda each: (each.time, each.name, each.where), reverse=True)
