"""The agents of a pool change a few at a time: a batch begins when the one before it is done.

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

from busbar.kube import batches
from busbar.kube.client import ApiError
from busbar.kube.wait import TimedOut


class RollingUpdate:
    """The order of the workers of a pool, of which at most `limit` change at the same time.

    `nodes`: worker name -> its Command, filled later. `jobs`: whether workers that run jobs come last.
    `begin`: known when the first one may change. `kubeconfig`: secret. `unreachable`: the workers that
    preflight did not reach.
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
        unreachable: pulumi.Input[Collection[str]],
    ) -> None:
        self._pool, self._nodes, self._limit, self._jobs = pool, nodes, limit, jobs
        self._begin, self._kubeconfig, self._unreachable = begin, kubeconfig, unreachable
        self._batches: asyncio.Future[list[list[str]]] | None = None
        self._is_reported = False

    def ahead_of(self, worker: str) -> pulumi.Output[list[remote.Command]]:
        """The `depends_on` of a worker: known when it may change; failed Commands, which prevent that."""
        return pulumi.Output.from_input(self._ahead_of(worker))

    async def _ahead_of(self, worker: str) -> list[remote.Command]:
        if pulumi.runtime.is_dry_run():
            return []
        if self._batches is None:
            self._batches = asyncio.ensure_future(self._ask())
        rolled = await self._batches
        before = next((earlier for earlier, batch in itertools.pairwise(rolled) if worker in batch), [])
        failed = [name for name in before if not await self._nodes[name].stdout.is_known()]
        if failed and not self._is_reported:
            self._is_reported = True
            pulumi.log.warn(
                f"{', '.join(failed)}: not updated; no other agent of pool {self._pool} restarts. "
                "Fix: see the error above; fix the cause and retry"
            )
        return [self._nodes[name] for name in failed]

    async def _ask(self) -> list[list[str]]:
        await self._begin.future()
        kubeconfig = await pulumi.Output.from_input(self._kubeconfig).future()
        unreachable = await pulumi.Output.from_input(self._unreachable).future()
        found = None
        try:
            if kubeconfig is not None:
                found = await asyncio.to_thread(batches.ask, kubeconfig, jobs=self._jobs)
        except (ApiError, TimedOut, ValueError) as error:
            pulumi.log.warn(f"pool {self._pool}: {error}; all its agents count as running")
        return batches.batches(list(self._nodes), self._limit, found, unreachable or ())
