"""An NFS server for the workers, on a host of its own, a load balancer or a server."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
from pulumi_command import remote

from busbar.hosts import nfs
from busbar.hosts.inventory import Inventory
from components.engine.host_command import HostCommandArgs, create_host_command
from components.engine.removal import HostRemovalArgs, create_host_removal
from components.engine.ssh import SshLogin

# Up to 5 minutes of it for an apt that already runs (unattended-upgrades at the first boot).
DEADLINE_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class NfsServerArgs:
    """The hosts and the login to them. `install_id`: `K3sControlPlane.install_id`."""

    inventory: Inventory
    login: SshLogin
    install_id: pulumi.Input[str]


class NfsServer(pulumi.ComponentResource):
    """Makes two Commands: its removal, and one that ends when the folder is exported to all workers.

    Without `nfs_server` in the configuration it makes nothing.
    """

    nodes: list[remote.Command]
    """The Command that installs it; a changed worker changes the exports without a restart."""
    removals: list[pulumi.Resource]
    """What workers depend on: they are removed first. One that mounts from a server that is gone hangs."""

    def __init__(self, name: str, args: NfsServerArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:index:NfsServer", name, None, opts)
        self.nodes, self.removals = [], []
        export = nfs.export_of(args.inventory)
        if export:
            self._install(f"{name}-{export.host.name}", args, export)
        self.register_outputs({"folder": export.folder if export else ""})

    def _install(self, name: str, args: NfsServerArgs, export: nfs.Export) -> None:
        values = {
            "FOLDER": export.folder,
            "SQUASH": export.config.squash,
            "ALLOW_SYSTEM_DISK": "true" if export.config.allow_system_disk else "false",
        }
        removal = create_host_removal(
            f"{name}-removal",
            HostRemovalArgs(
                login=args.login,
                host=export.host,
                fronts=args.inventory.fronts,
                script="nfs-server",
                owner=name,
                install_id=args.install_id,
                timeout_seconds=DEADLINE_SECONDS,
                values=values,
            ),
            pulumi.ResourceOptions(parent=self),
        )
        self.removals = [removal]
        self.nodes = [
            create_host_command(
                name,
                HostCommandArgs(
                    login=args.login,
                    host=export.host,
                    script="nfs-server",
                    timeout_seconds=DEADLINE_SECONDS,
                    values={"NODE_NAME": export.host.name, **values},
                    payload={"exports": nfs.exports(export, args.inventory.workers), "nfs_conf": nfs.CONFIG},
                    install_id=args.install_id,
                ),
                pulumi.ResourceOptions(parent=self, depends_on=[removal]),
            )
        ]
