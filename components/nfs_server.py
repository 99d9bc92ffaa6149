"""An NFS server for the workers, on its own host, a load balancer or a server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pulumi
from pulumi_command import local, remote

from busbar import names
from busbar.components.engine.hosts import HostArgs, SshLogin, create_host_command, create_host_removal
from busbar.hosts import nfs
from busbar.hosts.inventory import Host

SCRIPT = "nfs-server"
# Includes up to 5 minutes for an apt that already runs (unattended-upgrades at the first boot).
DEADLINE_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class NfsServerArgs:
    """The folder of a host, and the workers that mount it.

    `fronts`: load balancers and servers. `install_id`: `K3sControlPlane.install_id`. `environment`: the proxy
    of the hosts (busbar.hosts.proxy). `folder_mode`: mode of a newly made folder; by default workers may
    write there.
    """

    login: SshLogin
    install_id: pulumi.Input[str]
    export: nfs.Export | None
    fronts: Sequence[Host] = ()
    workers: Sequence[Host] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    folder_mode: str = ""


class NfsServer(pulumi.ComponentResource):
    """Makes two Commands: its removal, and one that ends when the folder is exported to all workers.

    Without an export it makes nothing.
    """

    steps: list[remote.Command]
    """The Command that installs the server; a changed worker changes the exports without a restart."""
    removals: list[local.Command]
    """The removal. Workers depend on it to be removed first: a mount of a server that is gone hangs."""

    def __init__(self, name: str, args: NfsServerArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:index:NfsServer", name, None, opts)
        self.steps, self.removals = [], []
        if args.export:
            self._install(names.on_host(name, args.export.host.name), args, args.export)
        self.register_outputs({"folder": args.export.folder if args.export else ""})

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
