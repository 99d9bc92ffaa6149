"""Sends a host the script of its installation, outside of preflight."""

from __future__ import annotations

from busbar.hosts import scripts
from busbar.hosts.host import Host
from busbar.hosts.login import Login
from busbar.hosts.remote import Hosts, ScriptError, UnreachableError
from busbar.preflight.query import SCRIPT_SECONDS


class DeliveryError(Exception):
    """The host does not have its script; the text names the host and says what to do."""


async def deliver(login: Login, host: Host) -> None:
    """Run `host/preflight.sh` with the script as its payload, as preflight does in an update.

    What it finds on the host is not looked at. Raises DeliveryError.
    """
    try:
        async with Hosts.open(login) as hosts:
            await hosts.run(
                host,
                "preflight",
                {"NODE_ADDRESS": host.address, "ROLE": host.role},
                scripts.delivery(host.role),
                seconds=SCRIPT_SECONDS,
            )
    except (ScriptError, UnreachableError, ValueError) as error:
        raise DeliveryError(str(error)) from None
