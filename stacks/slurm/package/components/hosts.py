"""The hosts of a Slurm cluster: preflight, the controller, then login and compute hosts in parallel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
from pulumi_command import local, remote

from busbar import names
from busbar.components.engine.hosts import (
    STEP_INPUTS,
    HostArgs,
    SshLogin,
    create_host_command,
    create_host_removal,
    with_id,
)
from busbar.components.engine.join_tokens import TOKEN_ARGUMENTS, create_password
from busbar.components.engine.local_command import create_hosts_command
from busbar.components.nfs_server import NfsServer
from busbar.hosts import k3s
from busbar.hosts.inventory import Host
from busbar.preflight import facts
from stacks.slurm.package import preflight, render
from stacks.slurm.package.config import Slurm

# Includes up to 5 minutes for an apt that already runs (unattended-upgrades at the first boot).
MEMBER_SECONDS = 1200
CONTROLLER_SECONDS = 1800
REMOVAL_SECONDS = 900


class SlurmHosts(pulumi.ComponentResource):
    """Makes a Command that queries all hosts, two per host (removal and installation), and those of NFS.

    A changed slurm.conf only changes the controller's Command: slurmctld distributes the file. `steps`: the
    installations. `facts`: host name -> its facts.
    """

    facts: pulumi.Output[Mapping[str, dict[str, Any]]]
    steps: list[remote.Command]

    def __init__(
        self, name: str, opts: pulumi.ResourceOptions | None = None, *, slurm: Slurm, login: SshLogin
    ) -> None:
        super().__init__("busbar:slurm:SlurmHosts", name, None, opts)
        self._name, self._slurm, self._login = name, slurm, login
        self._hosts = preflight.hosts_of(slurm)
        self._cancel_jobs = str(slurm.removal.cancel_jobs).lower()
        # Changed arguments would make another key, with which no daemon responds.
        generated = pulumi.ResourceOptions(parent=self, ignore_changes=[*TOKEN_ARGUMENTS])
        self._key = create_password(f"{name}-key", generated).result
        self._database = create_password(f"{name}-database", generated).result
        install_id: pulumi.Output[str] = pulumi.Output.unsecret(self._key.apply(k3s.install_id))
        self._install_id = install_id
        self.checked = self._preflight(name)
        self.facts = self.checked.stdout.apply(facts.unpack)
        self._nfs = self._export_homes(f"{name}-nfs")
        controller, *others = self._hosts
        self.controller = self._install_controller(controller)
        self.steps = [self.controller, *(self._install_member(host) for host in others)]
        # The controller has waited for the jobs of the hosts that leave, and these have files open there.
        self.steps += self._nfs.revoke(self.controller)
        self.register_outputs({"facts": self.facts})

    def _preflight(self, name: str) -> local.Command:
        spec = preflight.spec_of(self._slurm).data()
        stdin = with_id(spec, self._login, self._install_id)
        own = pulumi.ResourceOptions(parent=self)
        # Hosts that passed with the same spec are not checked again.
        return create_hosts_command(
            f"{name}-preflight", "slurm preflight", stdin, own, with_previous_result=True
        )

    def _export_homes(self, name: str) -> NfsServer:
        """The server of the homes, if home.nfs is set. It is removed last: a mount without server hangs."""
        export, clients = preflight.home_export(self._slurm)
        return NfsServer(
            name,
            pulumi.ResourceOptions(parent=self, depends_on=[self.checked]),
            login=self._login,
            install_id=self._install_id,
            export=export,
            fronts=self._hosts,
            workers=clients,
            folder_mode="0755",
        )

    def _common(self, host: Host) -> dict[str, str]:
        """Values of the scripts of all roles."""
        export, clients = preflight.home_export(self._slurm)
        server = export.host.address if export and host in clients else ""
        return {
            "SLURM_PACKAGES": self._slurm.packages,
            "CONTAINERS": self._slurm.container_packages or "",
            "HOME_PATH": self._slurm.home.folder,
            "HOME_SERVER": server,
        }

    def _install_controller(self, host: Host) -> remote.Command:
        slurm = self._slurm
        values = {
            "CANCEL_JOBS": self._cancel_jobs,
            "DRAIN_SECONDS": str(slurm.removal.timeout_seconds),
            "KEEP_DATA": str(slurm.accounting.keep_data).lower(),
        }
        files = self.facts.apply(lambda found: render.files(slurm, found))
        payload: dict[str, pulumi.Input[str]] = {name.replace(".", "_"): files[name] for name in render.NAMES}
        if slurm.accounting.enabled:
            payload["database_password"] = self._database
            payload["slurmdbd_conf"] = pulumi.Output.all(self.facts, self._database).apply(
                lambda known: render.slurmdbd_conf(slurm, known[0], known[1])
            )
        payload |= {"quarantine": render.quarantine(slurm), "users": render.users(slurm)}
        seconds = CONTROLLER_SECONDS + slurm.removal.timeout_seconds
        after = [self.checked, *self._nfs.steps]
        return self._install(host, "controller", "slurm/controller", seconds, values, after, payload)

    def _install_member(self, host: Host) -> remote.Command:
        slurm, is_compute = self._slurm, host.role == "worker"
        values = {
            "UNIT": "slurmd" if is_compute else "sackd",
            "CONTROLLER": f"{slurm.hosts.controller.address}:{render.CONTROLLER_PORT}",
            "GPUS": str(slurm.pools[host.pool or ""].gpus) if is_compute else "0",
        }
        if is_compute and slurm.container_packages:
            values["CONTAINER_USER"] = next(iter(slurm.users.accounts), "nobody")
        payload = {"health": render.health(slurm, host) if is_compute else "", "users": render.users(slurm)}
        role = "compute" if is_compute else "login"
        return self._install(host, role, "slurm/member", MEMBER_SECONDS, values, [self.controller], payload)

    def _install(
        self,
        host: Host,
        role: str,
        script: str,
        seconds: int,
        values: Mapping[str, str],
        after: Sequence[pulumi.Resource],
        payload: Mapping[str, pulumi.Input[str]],
    ) -> remote.Command:
        name = names.on_host(f"{self._name}-{role}", host.name)
        values = {**values, **self._common(host)}
        on = HostArgs(
            login=self._login, host=host, owner=name, install_id=self._install_id, fronts=self._hosts
        )
        # The controller is removed last, because until then it knows which jobs run.
        ahead = self._nfs.removals if role == "controller" else after
        removal_opts = pulumi.ResourceOptions(parent=self, depends_on=ahead)
        # A host is not installed anew for this setting.
        at_removal = {**values, "CANCEL_JOBS": self._cancel_jobs}
        removal = create_host_removal(on, script, REMOVAL_SECONDS, at_removal, removal_opts)
        # A host in quarantine may be off. It keeps what it has, and catches up when the quarantine ends.
        kept = [*STEP_INPUTS] if host.name in self._slurm.quarantine else None
        return create_host_command(
            name,
            on,
            script,
            seconds,
            {"NODE_NAME": host.name, **values},
            pulumi.ResourceOptions(parent=self, depends_on=[removal, *after], ignore_changes=kept),
            payload={"slurm_key": self._key, **payload},
        )
