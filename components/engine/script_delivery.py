"""A hook that sends a host the missing script of its step, and has the engine retry the step.

Preflight delivers the script to every host that it queries (busbar/hosts/scripts.py). A host that was
reinstalled or rebooted since, or that did not respond then, may not have it.
"""

from __future__ import annotations

from collections.abc import Mapping

import pulumi

from busbar.components.engine.ssh import SshLogin
from busbar.hosts import scripts
from busbar.hosts.host import Host


def create_delivery_hook(name: str, login: SshLogin, hosts: Mapping[str, Host]) -> pulumi.ErrorHook:
    """The hook for Commands with a `delivered` script; `hosts`: name of the Command -> its host.

    The engine calls it after a Command has failed. It asks for one retry, and only if the Command failed
    because the script was missing and it could be sent.
    """

    async def on_error(args: pulumi.ErrorHookArgs) -> bool:
        line = scripts.not_delivered(scripts.DELIVERED[hosts[args.name].role])
        if len(args.errors) != 1 or line not in args.errors[0].splitlines():
            return False
        # Imported here, because an update in which every host has its script does not need it.
        from busbar.hosts.login import Login
        from busbar.hosts.remote import Hosts, ScriptError, UnreachableError
        from busbar.preflight.query import SCRIPT_SECONDS

        host = hosts[args.name]
        values, payload = {"NODE_ADDRESS": host.address, "ROLE": host.role}, scripts.delivery(host.role)
        try:
            async with Hosts.open(Login.model_validate(await login.spec.future())) as opened:
                # This is the delivery of preflight. Its findings on the host are ignored.
                await opened.run(host, "preflight", values, payload, seconds=SCRIPT_SECONDS)
        except (ScriptError, UnreachableError, ValueError) as error:
            pulumi.log.warn(str(error))
            return False
        return True

    return pulumi.ErrorHook(name, on_error)
