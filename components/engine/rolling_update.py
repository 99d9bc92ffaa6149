"""The agents of a pool change a few at a time: a batch begins when the one before it is done.

An upgrade changes servers before agents: no worker begins before the servers whose Node is in the cluster are
done. In a new cluster that is server 1, so workers join while the other servers do. A server that is added
has no Node yet and holds up no worker.

The program registers a worker when its turn has come, so the engine and its state have no order of workers,
and a `destroy` removes all workers at the same time. If a worker of a batch has failed, the next ones depend
on it, and the engine does not begin them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Mapping

import pulumi
from pulumi_command import remote

from busbar.finding import shown
from busbar.kube import batches
from busbar.kube.client import ApiError
from busbar.kube.wait import TimedOut


class RollingUpdate:
    """The order of the workers of a pool, of which at most `limit` change at the same time.

    `nodes`: worker name -> its Command, filled later. `jobs`: whether workers that run jobs come last.
    `begin`: known when the cluster may be asked. `kubeconfig`: secret. `servers`: server name -> its Command.
    `unreachable`: the workers that preflight did not reach.
    """

    def __init__(
        self,
        pool: str,
        nodes: Mapping[str, remote.Command],
        *,
        limit: int,
        jobs: bool,
        begin: pulumi.Output[object],
        kubeconfig: pulumi.Input[str],
        servers: Mapping[str, remote.Command],
        unreachable: pulumi.Input[Collection[str]],
    ) -> None:
        self._pool, self._nodes, self._limit, self._jobs = pool, nodes, limit, jobs
        self._begin, self._kubeconfig = begin, kubeconfig
        self._servers, self._unreachable = servers, unreachable
        self._order: asyncio.Future[tuple[list[remote.Command], list[list[str]]]] | None = None
        self._is_reported = False

    def ahead_of(self, worker: str) -> pulumi.Output[list[remote.Command]]:
        """The `depends_on` of a worker, known at its turn: servers, and failed Commands, which prevent it."""
        return pulumi.Output.from_input(self._ahead_of(worker))

    async def _ahead_of(self, worker: str) -> list[remote.Command]:
        if pulumi.runtime.is_dry_run():
            return []
        if self._order is None:
            self._order = asyncio.ensure_future(self._find_order())
        servers, rolled = await self._order
        before = next((earlier for earlier, batch in itertools.pairwise(rolled) if worker in batch), [])
        failed = [name for name in before if not await self._nodes[name].stdout.is_known()]
        if failed and not self._is_reported:
            self._is_reported = True
            pulumi.log.warn(
                f"{', '.join(failed)}: not updated; no other agent of pool {self._pool} restarts. "
                f"Fix: each has an error of its own, with a Fix; then busbar up {shown(pulumi.get_stack())}"
            )
        return [*servers, *(self._nodes[name] for name in failed)]

    async def _find_order(self) -> tuple[list[remote.Command], list[list[str]]]:
        """The servers that every worker waits for, and the batches, which are known when these are done."""
        await self._begin.future()
        unreachable = await pulumi.Output.from_input(self._unreachable).future()
        found = await self._ask(jobs=False, otherwise="its workers wait for all servers")
        servers = [step for name, step in self._servers.items() if not found or name.lower() in found.names]
        for step in servers:
            await step.stdout.is_known()
        # The servers may have taken minutes, so the first answer is an old one.
        found = await self._ask(jobs=self._jobs, otherwise="all its agents count as running")
        return servers, batches.batches(list(self._nodes), self._limit, found, unreachable or ())

    async def _ask(self, *, jobs: bool, otherwise: str) -> batches.Nodes | None:
        """The Nodes of the cluster; None without an answer, and a warning with what follows from that."""
        kubeconfig = await pulumi.Output.from_input(self._kubeconfig).future()
        try:
            return None if kubeconfig is None else await asyncio.to_thread(batches.ask, kubeconfig, jobs=jobs)
        except (ApiError, TimedOut, ValueError) as error:
            pulumi.log.warn(f"pool {self._pool}: {error}; {otherwise}")
            return None
