"""An NFS server for the workers, on its own host, a load balancer or a server."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pulumi
from pulumi_command import local, remote

from busbar import names
from busbar.components.engine.hosts import HostArgs, SshLogin, create_host_command, create_host_removal
from busbar.hosts import nfs
from busbar.hosts.inventory import Host

SCRIPT = "nfs-server"
# Includes up to 5 minutes for an apt that already runs (unattended-upgrades at the first boot).
DEADLINE_SECONDS = 900


class NfsServer(pulumi.ComponentResource):
    """Makes its removal, a Command that exports the folder to all workers, and with `revoke` one more.

    Without an export it makes nothing. `fronts`: load balancers and servers. `workers`: those that mount it.
    `install_id`: that of K3sControlPlane. `environment`: the proxy of the hosts (busbar.hosts.proxy).
    `folder_mode`: of a new folder; by default workers may write there. Former ones may until `revoke`.
    """

    steps: list[remote.Command]
    """The Command that installs the server; a changed worker changes the exports without a restart."""
    removals: list[local.Command]
    """The removal. Workers depend on it to be removed first: a mount of a server that is gone hangs."""

    def __init__(
        self,
        name: str,
        opts: pulumi.ResourceOptions | None = None,
        *,
        login: SshLogin,
        install_id: pulumi.Input[str],
        export: nfs.Export | None,
        fronts: Sequence[Host] = (),
        workers: Sequence[Host] = (),
        environment: Mapping[str, str] | None = None,
        folder_mode: str = "",
    ) -> None:
        super().__init__("busbar:index:NfsServer", name, None, opts)
        self.steps, self.removals = [], []
        self._revoke: Callable[[pulumi.Resource], remote.Command] | None = None
        self.register_outputs({"folder": export.folder if export else ""})
        if not export:
            return
        host, more = export.host, {"FOLDER_MODE": folder_mode} if folder_mode else {}
        on = HostArgs(
            login=login,
            host=host,
            owner=names.on_host(name, host.name),
            install_id=install_id,
            fronts=fronts,
            environment=environment or {},
        )
        values = {
            "FOLDER": export.folder,
            "SQUASH": export.config.squash,
            "ALLOW_SYSTEM_DISK": "true" if export.config.allow_system_disk else "false",
            **more,
        }
        payload = {"exports": nfs.exports(export, workers), "nfs_conf": nfs.CONFIG}

        def step(resource: str, given: Mapping[str, str], *after: pulumi.Resource) -> remote.Command:
            given = {"NODE_NAME": host.name, **values, **given}
            opts = pulumi.ResourceOptions(parent=self, depends_on=after)
            return create_host_command(resource, on, SCRIPT, DEADLINE_SECONDS, given, opts, payload=payload)

        own = pulumi.ResourceOptions(parent=self)
        removal = create_host_removal(on, SCRIPT, DEADLINE_SECONDS, values, own)
        installed = step(on.owner, {"FORMER": "stay"}, removal)
        self.removals, self.steps = [removal], [installed]
        self._revoke = partial(step, names.on_host(f"{name}-exports", host.name), {}, installed)

    def revoke(self, after: pulumi.Resource) -> list[remote.Command]:
        """Register the Command that ends the export to former workers; none without an export."""
        return [self._revoke(after)] if self._revoke else []
