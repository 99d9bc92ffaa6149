"""Hooks that keep further agents of a pool from restarting once one of them has failed in this update.

Agents that wait for their turn see the failure in the cluster (host/k3s-rollout.sh). One that begins later
cannot tell there whether it happened in this update or in an earlier one, which this one may repair; the
program can: it lives as long as the update.
"""

from __future__ import annotations

from collections.abc import Mapping

import pulumi

from busbar.hosts import scripts


class RolloutStop:
    """The hooks of one pool; `hosts`: name of the Command that installs a worker -> name of the worker."""

    def __init__(self, pool: str, hosts: Mapping[str, str]) -> None:
        self._pool, self._hosts = pool, hosts
        self._failed: list[str] = []
        name = f"pool-{pool}-rollout"
        self.on_error = pulumi.ErrorHook(f"{name}-failed", self.note)
        """For Commands; it never asks for a retry."""
        self.before = pulumi.ResourceHook(f"{name}-may-begin", self.refuse)
        """For Commands, before they are created or updated: it fails the step."""

    def note(self, args: pulumi.ErrorHookArgs) -> bool:
        """Note a worker that failed while it held its turn."""
        if scripts.TURN_KEPT in args.errors[0]:
            self._failed.append(self._hosts[args.name])
        return False

    def refuse(self, args: pulumi.ResourceHookArgs) -> None:
        """Raise RuntimeError if a worker of the pool has failed so before."""
        if self._failed:
            raise RuntimeError(
                f"{self._hosts[args.name]}: {', '.join(self._failed)} failed in this update; no other agent "
                f"of pool {self._pool} restarts. Fix: see the error of that worker; fix the cause and retry"
            )
