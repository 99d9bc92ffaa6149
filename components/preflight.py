"""The phases of all hosts at once: each is checked before any is changed, and downloads what it will need."""

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
from pulumi_command import local

from busbar.components.engine.hosts import target, with_id, with_login
from busbar.components.engine.local_command import create_hosts_command
from busbar.components.engine.stack import StackConfig
from busbar.hosts import k3s, proxy
from busbar.preflight.facts import machine, read, unpack, unreachable
from busbar.preflight.spec import spec_of

# Time limit in seconds without image archives. What is not there by then is downloaded by the installation.
PREPARE_SECONDS = 600


class Preflight(pulumi.ComponentResource):
    """Makes one Command: `busbar preflight` over all hosts in parallel, failing with all findings at once.

    `hosts`: host name -> its facts {"gpus", "gpu_model", "driver", "rails", ...}. `machines`: host name ->
    identity of its machine (busbar.preflight.facts.machine). `unreachable`: the workers that did not respond
    to the last query. By `install_id`, that of JoinTokens, hosts of another cluster are found.
    """

    hosts: pulumi.Output[Mapping[str, dict[str, Any]]]
    machines: pulumi.Output[Mapping[str, str]]
    unreachable: pulumi.Output[Sequence[str]]

    def __init__(
        self,
        name: str,
        opts: pulumi.ResourceOptions | None = None,
        *,
        config: StackConfig,
        install_id: pulumi.Input[str],
    ) -> None:
        super().__init__("busbar:index:Preflight", name, None, opts)
        spec = spec_of(config.cluster, project=config.project).data()
        stdin = with_id(spec, config.login, install_id)
        own = pulumi.ResourceOptions(parent=self)
        # Hosts that passed with the same spec are not checked again.
        checked = create_hosts_command(f"{name}-hosts", "preflight", stdin, own, with_previous_result=True)
        self.hosts = checked.stdout.apply(unpack)
        self.machines = checked.stdout.apply(
            lambda text: {name: machine(record) for name, record in read(text).items()}
        )
        self.unreachable = checked.stdout.apply(lambda text: sorted(unreachable(read(text))))
        self.register_outputs({"hosts": self.hosts})


def prepare_hosts(name: str, config: StackConfig, opts: pulumi.ResourceOptions) -> local.Command:
    """Register the Command by which all hosts download what they install. It fails nothing."""
    inventory, settings = config.inventory, config.cluster.k3s
    roles, environment = ("server", "worker"), proxy.environment(inventory)
    values = {role: {**k3s.download_values(settings, role, config.project), **environment} for role in roles}
    values["lb"] = {"PACKAGES": "haproxy", **environment}
    if config.cluster.hosts.virtual_ip:
        values["lb"]["PACKAGES"] += " keepalived"
        if not inventory.load_balancers:
            values["server"]["PACKAGES"] = "keepalived"
    spec = {
        "hosts": [target(host) for host in (*inventory.fronts, *inventory.workers)],
        "values": values,
        "timeout_seconds": max(k3s.install_seconds(settings, role, PREPARE_SECONDS) for role in roles),
    }
    return create_hosts_command(
        name, "prepare", with_login(spec, config.login), opts, with_previous_result=True
    )
