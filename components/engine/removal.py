"""The removal of hosts: local Commands that change nothing until the engine deletes them.

They run on the machine that runs Pulumi and log in to the host themselves. The `delete` of a remote Command
would fail if its host is gone, and the whole update with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
from pulumi_command import local

from busbar import names
from busbar.components.engine.host_command import HostArgs, owner_mark
from busbar.components.engine.local_command import busbar_command
from busbar.components.engine.ssh import SshLogin, with_login
from busbar.hosts.host import Host


def create_host_removal(
    on: HostArgs,
    script: str,
    timeout_seconds: int,
    values: Mapping[str, str],
    opts: pulumi.ResourceOptions,
) -> local.Command:
    """Register the removal of what `on.owner` installs: `script` runs with `values` and VERB=remove.

    The installation depends on it, so that an incomplete one is removed too.
    """
    spec = {
        "host": target(on.host),
        "script": script,
        "timeout_seconds": timeout_seconds,
        "others": [target(other) for other in on.fronts if other != on.host],
        "folder": stack_folder(),
        "resource": on.owner,
    }
    marked = {**values, "OWNER": owner_mark(on.owner)}
    # Output.all would make an Output of each part of a nested value, such as the login.
    stdin: pulumi.Output[str] = pulumi.Output.from_input(on.install_id).apply(
        lambda known: with_login({**spec, "values": {**marked, "INSTALL_ID": known}}, on.login)
    )
    return _create(names.removal_of(on.owner), "host", stdin, opts)


def create_teardown(
    name: str, servers: Sequence[Host], login: SshLogin, opts: pulumi.ResourceOptions
) -> local.Command:
    """Register the first step of `destroy`: it tells the servers that none of them has to leave etcd.

    If `destroy` is interrupted, the next update makes this resource again, which revokes that.
    """
    spec = {"servers": [target(server) for server in servers]}
    return _create(name, "cluster", with_login(spec, login), opts, create=busbar_command("remove", "keep"))


def stack_folder() -> str:
    """The folder for results of this stack's commands, relative to the project folder."""
    return f".busbar/{pulumi.get_stack()}"


def target(host: Host) -> dict[str, Any]:
    """The host as input of `busbar` commands."""
    return {key: value for key, value in host.data().items() if value is not None}


def _create(
    name: str,
    command: str,
    stdin: pulumi.Output[str],
    opts: pulumi.ResourceOptions,
    create: str | None = None,
) -> local.Command:
    return local.Command(
        name,
        create=create,
        delete=busbar_command("remove", command),
        stdin=stdin,
        add_previous_output_in_env=False,
        logging=local.Logging.STDERR,
        opts=opts,
    )
