"""What happens when a host is removed: local Commands that change nothing until the engine deletes them.

They run on the machine that runs Pulumi and log in to the host themselves: the `delete` of a remote Command
fails where its host is gone, and with it the whole update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pulumi
from pulumi_command import local

from busbar.hosts.inventory import Host, Inventory
from busbar.preflight.spec import Target
from components.local_command import busbar_command
from components.ssh import SshLogin


@dataclass(frozen=True, kw_only=True)
class HostRemovalArgs:
    """`script` with `values` and VERB=remove undoes the installation of `host`, the resource `owner`."""

    inventory: Inventory
    login: SshLogin
    host: Host
    script: str
    owner: str
    install_id: pulumi.Input[str]
    timeout_seconds: int
    values: Mapping[str, str] = field(default_factory=dict)


def create_host_removal(name: str, args: HostRemovalArgs, opts: pulumi.ResourceOptions) -> local.Command:
    """Register the removal of a host. The installation depends on it, so that half of one is removed too."""
    fronts = (*args.inventory.load_balancers, *args.inventory.servers)
    return _create(
        name,
        "host",
        {
            "login": args.login.preflight_spec(),
            "host": target(args.host),
            "script": args.script,
            "values": {
                **args.values,
                "OWNER": owner_mark(args.owner),
                "INSTALL_ID": args.install_id,
            },
            "timeout_seconds": args.timeout_seconds,
            "others": [target(other) for other in fronts if other is not args.host],
            "folder": f".busbar/{pulumi.get_stack()}",
            "resource": args.owner,
        },
        opts,
    )


def create_node_removal(
    name: str, node: str, inventory: Inventory, login: SshLogin, opts: pulumi.ResourceOptions
) -> local.Command:
    """Register the drain and deletion of a worker's Node, which has to be deleted before the worker."""
    servers = [target(server) for server in inventory.servers]
    spec = {"login": login.preflight_spec(), "node": node, "servers": servers}
    return _create(name, "node", spec, opts)


def create_teardown(
    name: str, inventory: Inventory, login: SshLogin, opts: pulumi.ResourceOptions
) -> local.Command:
    """Register what `destroy` does first: the servers are told that none of them has to leave etcd.

    If `destroy` is interrupted, the next update makes this resource again and takes that back.
    """
    spec = {"login": login.preflight_spec(), "servers": [target(server) for server in inventory.servers]}
    return _create(name, "cluster", spec, opts, create=busbar_command("remove", "keep"))


def owner_mark(name: str) -> str:
    """The owner mark (host/owner.sh) of what the resource `name` installs."""
    return f"{pulumi.get_project()}/{pulumi.get_stack()}/{name}"


def target(host: Host) -> dict[str, Any]:
    """The host as the `busbar` commands take it."""
    return Target.model_validate(host, from_attributes=True).model_dump(exclude_none=True)


def _create(
    name: str,
    command: str,
    spec: Mapping[str, Any],
    opts: pulumi.ResourceOptions,
    create: str | None = None,
) -> local.Command:
    return local.Command(
        name,
        create=create,
        delete=busbar_command("remove", command),
        # Secret where the login has a secret.
        stdin=pulumi.Output.json_dumps(dict(spec), sort_keys=True),
        add_previous_output_in_env=False,
        logging=local.Logging.STDERR,
        opts=opts,
    )
