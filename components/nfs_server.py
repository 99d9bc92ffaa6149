"""An NFS server for the workers, on its own host, a load balancer or a server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
from pulumi_command import local, remote

from busbar import names
from busbar.components.engine.host_command import HostArgs, create_host_command
from busbar.components.engine.removal import create_host_removal
from busbar.components.engine.ssh import SshLogin
from busbar.components.engine.stack import StackConfig
from busbar.config import nfs_server, section
from busbar.hosts import nfs, proxy
from busbar.hosts.host import Host

SCRIPT = "nfs-server"
# Includes up to 5 minutes for an apt that already runs (unattended-upgrades at the first boot).
DEADLINE_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class NfsServerArgs:
    """The host that exports a folder, and the workers that mount it.

    `fronts`: load balancers and servers. `install_id`: `K3sControlPlane.install_id`. `settings`: as
    `nfs_server` of `busbar:cluster`. `environment`: the proxy of the hosts (busbar.hosts.proxy).
    `folder_mode`: mode of a newly made folder; by default workers may write there.
    """

    login: SshLogin
    install_id: pulumi.Input[str]
    host: Host | None
    fronts: Sequence[Host] = ()
    workers: Sequence[Host] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    folder_mode: str = ""

    @classmethod
    def of(cls, config: StackConfig, install_id: pulumi.Input[str]) -> "NfsServerArgs":
        """The arguments of a configuration."""
        inventory, settings = config.inventory, config.cluster.nfs_server
        return cls(
            login=config.login,
            install_id=install_id,
            host=inventory.nfs_server,
            fronts=inventory.fronts,
            workers=inventory.workers,
            settings=settings.model_dump() if settings else {},
            environment=proxy.environment(inventory),
        )


class NfsServer(pulumi.ComponentResource):
    """Makes two Commands: its removal, and one that ends when the folder is exported to all workers.

    Without a host it makes nothing.
    """

    steps: list[remote.Command]
    """The Command that installs the server; a changed worker changes the exports without a restart."""
    removals: list[local.Command]
    """The removal. Workers depend on it to be removed first: a mount of a server that is gone hangs."""

    def __init__(self, name: str, args: NfsServerArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:index:NfsServer", name, None, opts)
        self.steps, self.removals = [], []
        folder = ""
        if args.host:
            settings = section(nfs_server.NfsServer, "nfs_server", args.settings)
            self._install(names.on_host(name, args.host.name), args, nfs.Export(args.host, settings))
            folder = settings.folder
        self.register_outputs({"folder": folder})

    def _install(self, name: str, args: NfsServerArgs, export: nfs.Export) -> None:
        values = {
            "FOLDER": export.folder,
            "SQUASH": export.config.squash,
            "ALLOW_SYSTEM_DISK": "true" if export.config.allow_system_disk else "false",
            **({"FOLDER_MODE": args.folder_mode} if args.folder_mode else {}),
        }
        on = HostArgs(
            login=args.login,
            host=export.host,
            owner=name,
            install_id=args.install_id,
            fronts=args.fronts,
            environment=args.environment,
        )
        removal = create_host_removal(
            on, SCRIPT, DEADLINE_SECONDS, values, pulumi.ResourceOptions(parent=self)
        )
        self.removals = [removal]
        self.steps = [
            create_host_command(
                name,
                on,
                SCRIPT,
                DEADLINE_SECONDS,
                {"NODE_NAME": export.host.name, **values},
                pulumi.ResourceOptions(parent=self, depends_on=[removal]),
                payload={"exports": nfs.exports(export, args.workers), "nfs_conf": nfs.CONFIG},
            )
        ]
