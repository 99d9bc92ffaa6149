"""The first stage: every worker is asked for its parts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from busbar.exits import NoVerdict
from busbar.finding import Finding
from busbar.hosts import scripts
from busbar.preflight.spec import Answer, query
from busbar.preflight.survey import CONCURRENT, query_all
from busbar.text import listed
from stacks.accept.package.evidence import HOSTS, Inventory, write_json
from stacks.accept.package.stages.running import Planned, Running

if TYPE_CHECKING:
    from busbar.hosts.inventory import Host
    from busbar.hosts.remote import Hosts

# Seconds of a preflight of CONCURRENT hosts.
HOSTS_SECONDS = 20


def ask_workers(on: Running) -> Inventory:
    """Ask every worker that is not in quarantine; nothing is changed. Raises NoVerdict if none answers."""
    workers = {name for pool in on.site.pools.values() for name in pool.workers}
    hosts = [host for host in on.spec.hosts if host.name in workers]
    also = scripts.part("accept/inventory")

    async def ask(hosts: Hosts, host: Host) -> Answer | Finding:
        return await query(hosts, host, on.spec.values(host), also=also)

    answers = asyncio.run(query_all(on.spec.login, on.spec.hosts, hosts, ask))
    found = Inventory(
        run=on.run,
        hosts={name: each.report for name, each in answers.items() if isinstance(each, Answer)},
        failed={name: each.what for name, each in answers.items() if isinstance(each, Finding)},
    )
    if not found.hosts:
        raise NoVerdict(
            f"no worker answers: {listed([f'{name}: {why}' for name, why in found.failed.items()])}"
        )
    return found


def inventory(on: Running) -> dict[str, str]:
    """Keep the reports of all workers."""
    write_json(on.at("inventory") / HOSTS, ask_workers(on).model_dump(mode="json"))
    return {}


STAGE = Planned(
    "inventory", inventory, False, lambda nodes: HOSTS_SECONDS * -(-nodes // CONCURRENT), logs_in=True
)
