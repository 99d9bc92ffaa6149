"""Restores a cluster from a snapshot of etcd: the steps on its hosts.

The order is that of k3s-io/docs cli/etcd-snapshot.md, several servers: K3s stops on all servers; one is reset
to the snapshot and starts; the others give up their data and join it, one at a time. The old data are moved
aside, not deleted. Every step may be repeated, and so may the whole: after an interruption the same command
starts from the beginning.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from busbar.hosts.host import Host
from busbar.hosts.inventory import API_PORT, url_host
from busbar.hosts.login import Login
from busbar.hosts.remote import Hosts, Say, ScriptError, UnreachableError, on_each
from busbar.operations.restore_plan import SCRIPT, RestoreError, RestorePlan, names_of
from busbar.operations.snapshots import S3
from busbar.text import counted

STOP_SECONDS = 600
RESET_SECONDS = 1000
START_SECONDS = 1500
AGENT_SECONDS = 540
NODES_SECONDS = 360
# Workers whose agents restart at the same time; K3s's docs advise against more than 50 joins at once.
CONCURRENT_AGENTS = 32


@dataclass(frozen=True)
class Restored:
    """A finished restore. `kept`: server -> folder of its old data. `waiting`: Nodes that are not Ready."""

    kept: Mapping[str, str]
    waiting: tuple[str, ...]


async def restore(plan: RestorePlan, login: Login, say: Say) -> Restored:
    """Run the restore. Raises RestoreError, ValueError (unusable SSH key), ScriptError (bastion)."""
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
        facts = await self._after_reset(
            self.run(self.plan.first, "nodes", seconds=NODES_SECONDS, NODES=" ".join(nodes))
        )
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
            raise RestoreError(
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
            urls = " ".join(f"https://{url_host(each.address)}:{API_PORT}" for each in running)
            self._keep(
                server, await self._after_reset(self.run(server, "join", seconds=START_SECONDS, SERVERS=urls))
            )
            running.append(server)

    async def restart_agents(self) -> None:
        """Restart the agents. A worker that does not respond is reported, and again by the wait for Nodes."""
        self.say(f"restarting the agents of {counted(len(self.plan.workers), 'worker')}; pods keep running")
        for text in await self.failures(self.plan.workers, "agent", AGENT_SECONDS, CONCURRENT_AGENTS):
            self.say(text)

    async def start_again(self, why: str) -> None:
        """Start the servers with their previous data, before any change. Raises RestoreError."""
        if self.plan.resumed:
            raise RestoreError(
                f"{why}. An earlier restore was not finished, so K3s is not started again. Fix: repair what "
                "is named above and run busbar restore again, with this or another snapshot"
            )
        self.say(f"{why}; starting K3s again with its previous data")
        failed = await self.failures(self.plan.servers, "start", START_SECONDS)
        state = (
            f"not on all servers: {'; '.join(failed)}" if failed else "on all servers, with its previous data"
        )
        raise RestoreError(f"{why}. Nothing was restored; K3s is running again {state}")

    async def run(self, host: Host, verb: str, *, seconds: int, **values: str) -> Mapping[str, Any]:
        return await self.hosts.run(host, SCRIPT, {"VERB": verb, **values}, seconds=seconds)

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
            raise RestoreError(
                f"{error}. {self.plan.first.name} has the data of {self.plan.snapshot.name}; "
                f"old data: {kept}. Fix: repair what is named above and run the same command again"
            ) from None

    def _keep(self, host: Host, facts: Mapping[str, Any]) -> None:
        if facts["kept"]:
            self.kept[host.name] = str(facts["kept"])
            self.say(f"{host.name}: its previous data is in {facts['kept']}")
