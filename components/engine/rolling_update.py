"""The agents of a pool change a few at a time: a batch begins when the one before it is done.

The program registers a worker when its turn has come, so the engine knows no order of workers: nothing of it
is in the state, and a `destroy` removes all workers at the same time. Where one of a batch has failed, the
next ones depend on it, and the engine does not begin them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pulumi
from pulumi_command import remote

from busbar.kube import batches
from busbar.kube.client import ApiError
from busbar.kube.wait import TimedOut


@dataclass(frozen=True, kw_only=True)
class RollingUpdateArgs:
    """`limit` workers of `pool` change at the same time. `jobs`: whether those that run jobs come late.

    `begin`: known when the first one may change. `kubeconfig`: secret. `unreachable`: the workers that
    preflight did not reach.
    """

    pool: str
    limit: int
    jobs: bool
    begin: pulumi.Output[object]
    kubeconfig: pulumi.Input[str]
    unreachable: pulumi.Input[Collection[str]]


class RollingUpdate:
    """What each worker waits for. `nodes`: the Command of every worker by its name, filled later."""

    def __init__(self, args: RollingUpdateArgs, nodes: Mapping[str, remote.Command]) -> None:
        self._args = args
        self._nodes = nodes
        self._batches: asyncio.Future[list[list[str]]] | None = None
        self._is_reported = False

    def ahead_of(self, worker: str) -> pulumi.Output[list[remote.Command]]:
        """For `depends_on`: known when the worker may change; the Commands that keep it from that."""
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
                f"{', '.join(failed)}: not updated; no other agent of pool {self._args.pool} restarts. "
                "Fix: see the error above; fix the cause and retry"
            )
        return [self._nodes[name] for name in failed]

    async def _ask(self) -> list[list[str]]:
        args = self._args
        await args.begin.future()
        kubeconfig = await pulumi.Output.from_input(args.kubeconfig).future()
        unreachable = await pulumi.Output.from_input(args.unreachable).future()
        found = None
        try:
            if kubeconfig is not None:
                found = await asyncio.to_thread(batches.ask, kubeconfig, jobs=args.jobs)
        except (ApiError, TimedOut, ValueError) as error:
            pulumi.log.warn(f"pool {args.pool}: {error}; all its agents count as running")
        return batches.batches(list(self._nodes), args.limit, found, unreachable or ())
