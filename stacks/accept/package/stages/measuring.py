"""Runs a script of accept on hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from busbar.hosts.remote import Hosts, on_each
from busbar.preflight.survey import CONCURRENT
from stacks.accept.package.evidence import Printed
from stacks.accept.package.stages.running import Running

if TYPE_CHECKING:
    from busbar.hosts.inventory import Host


def measure_on(
    on: Running, names: Iterable[str], verb: str, seconds: int, *, script: str = "measure", **values: str
) -> Printed:
    """The output of the script, which runs on all these hosts at once. Raises ScriptError for the bastion."""
    chosen = [host for host in on.spec.hosts if host.name in {*names}]

    async def ask() -> list[dict[str, Any] | str]:
        async with Hosts.open(on.spec.login) as hosts:

            async def one(host: Host) -> dict[str, Any]:
                return await hosts.run(host, f"accept/{script}", {"VERB": verb, **values}, seconds=seconds)

            return await on_each(chosen, one, at_once=None if script == "measure" else CONCURRENT)

    found = {host.name: each for host, each in zip(chosen, asyncio.run(ask()), strict=True)}
    return Printed(
        run=on.run,
        hosts={name: each for name, each in found.items() if not isinstance(each, str)},
        failed={name: each for name, each in found.items() if isinstance(each, str)},
    )
