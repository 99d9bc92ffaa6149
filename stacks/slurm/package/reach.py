"""How a measurement reaches Slurm on hosts: over SSH, on the controller and on each compute host."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from busbar.fabric.slurm import SCRIPT, SCRIPT_SECONDS, opened
from busbar.hosts.inventory import Host, Login
from busbar.hosts.remote import Hosts, on_each


class OverSsh:
    """Implements busbar.fabric.slurm.Reach. Each question has its own connection: a broken one loses one."""

    # It belongs to root, and is made when the host is installed.
    log_folder = "/var/lib/busbar"

    def __init__(self, runner: asyncio.Runner, hosts: Hosts, controller: Host, nodes: Sequence[Host]) -> None:
        self._runner, self._hosts, self._controller = runner, hosts, controller
        self._nodes = {host.name: host for host in nodes}

    def ask(
        self, verb: str, payload: Mapping[str, str] | None = None, *, node: str | None = None, **values: str
    ) -> dict[str, Any]:
        """Query the host of a node, or the controller. Raises ScriptError, UnreachableError."""
        host = self._nodes[node] if node else self._controller
        given = {"NODE_NAME": host.name, "VERB": verb, **{key.upper(): text for key, text in values.items()}}
        return self._runner.run(self._hosts.run(host, SCRIPT, given, payload, seconds=SCRIPT_SECONDS))

    def gone(self, nodes: Sequence[str]) -> dict[str, str]:
        """Node -> reason, for the nodes whose host is not responding, or has no running slurmd."""
        found = self.daemons(nodes)
        why = {name: "has no running slurmd" if name in found else "is not responding" for name in nodes}
        return {name: text for name, text in why.items() if not found.get(name, {}).get("active")}

    def daemons(self, nodes: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Node -> the facts of VERB=daemon, for the nodes whose host is responding."""

        async def query(host: Host) -> dict[str, Any]:
            values = {"NODE_NAME": host.name, "VERB": "daemon"}
            return await self._hosts.run(host, SCRIPT, values, seconds=SCRIPT_SECONDS)

        hosts = [self._nodes[name] for name in nodes]
        answers = self._runner.run(on_each(hosts, query, at_once=32))
        return {name: each for name, each in zip(nodes, answers, strict=True) if not isinstance(each, str)}


@contextmanager
def over_ssh(login: Login, controller: Host, nodes: Sequence[Host]) -> Iterator[OverSsh]:
    """The hosts of Slurm; `nodes`: the hosts of its nodes, by the names of these.

    Raises ValueError (unusable key) and ScriptError (bastion).
    """
    with opened(login) as (runner, hosts):
        yield OverSsh(runner, hosts, controller, nodes)
