"""Downloads on all hosts at once what they install later; nothing waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from busbar.hosts.inventory import Host, Login
from busbar.hosts.remote import Hosts, Say, ScriptError, on_each
from busbar.manifests.names import digest, short
from busbar.models import StrictModel

CONCURRENT = 64


class Preparation(StrictModel):
    """The stdin of `busbar prepare`."""

    login: Login
    hosts: tuple[Host, ...]
    values: dict[str, dict[str, str]]
    """Role -> values of host/prepare.sh."""
    timeout_seconds: int
    """Time limit for all hosts together."""

    def digest(self, host: Host) -> str:
        """Identifies a machine with what is downloaded there."""
        return short(digest({**self.values[host.role], "host": [host.address, host.port, host.host_key]}))


async def prepare(spec: Preparation, previous: Mapping[str, str], say: Say) -> dict[str, str]:
    """Prepare the hosts whose digest is not in `previous`; returns the digests of all that are prepared."""
    wanted = {host.name: spec.digest(host) for host in spec.hosts}
    prepared = {name: each for name, each in wanted.items() if previous.get(name) == each}
    missing = [host for host in spec.hosts if host.name not in prepared]
    reasons: list[str] = []

    async def run(on: Hosts, host: Host) -> None:
        await on.run(host, "prepare", spec.values[host.role], seconds=spec.timeout_seconds)
        prepared[host.name] = wanted[host.name]

    try:
        async with asyncio.timeout(spec.timeout_seconds), Hosts.open(spec.login) as on:
            found = await on_each(missing, lambda host: run(on, host), at_once=CONCURRENT)
            reasons = [each for each in found if each]
    except TimeoutError:
        reasons = [f"timed out after {spec.timeout_seconds} s"]
    except (ScriptError, ValueError) as error:
        reasons = [str(error)]
    if reasons:
        count = len(spec.hosts) - len(prepared)
        say(
            f"note: {count} of {len(spec.hosts)} hosts have not downloaded everything ahead: {reasons[0]}. "
            "Their installation downloads what is missing."
        )
    return prepared
