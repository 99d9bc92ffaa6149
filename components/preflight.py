"""The phases of all hosts at once: each is checked before any is changed, and downloads what it will need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_command import local

from busbar.components.engine.hosts import SshLogin, target, with_login
from busbar.components.engine.local_command import create_hosts_command
from busbar.components.engine.stack import StackConfig
from busbar.hosts import k3s, proxy
from busbar.hosts.inventory import Host
from busbar.preflight.facts import machine, read, unpack, unreachable
from busbar.preflight.spec import spec_of, without_login

# Time limit in seconds without image archives. What is not there by then is downloaded by the installation.
PREPARE_SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class PreflightArgs:
    """All hosts and their requirements (busbar.preflight.spec).

    `requirements`: role, or `worker/<pool>` -> HostRequirements. `nfs`: NfsRequirements.
    `quarantined`: workers whose hardware may be broken. `api_endpoint`: address of an endpoint of the site.
    `install_id`: `JoinTokens.install_id`, by which hosts of another cluster are found, if given.
    """

    hosts: Sequence[Host]
    requirements: Mapping[str, Mapping[str, Any]]
    login: SshLogin
    nfs: Mapping[str, Any] | None = None
    quarantined: Sequence[str] = ()
    api_endpoint: str | None = None
    install_id: pulumi.Input[str] | None = None

    @classmethod
    def of(cls, config: StackConfig, install_id: pulumi.Input[str]) -> "PreflightArgs":
        """The arguments for all hosts of a configuration."""
        spec = spec_of(config.cluster, login={}, project=config.project)
        return cls(
            hosts=config.inventory.hosts,
            requirements=spec["requirements"],
            login=config.login,
            nfs=spec.get("nfs"),
            quarantined=spec.get("quarantined", ()),
            api_endpoint=spec.get("api_endpoint"),
            install_id=install_id,
        )


class Preflight(pulumi.ComponentResource):
    """Makes one Command: `busbar preflight` over all hosts in parallel, failing with all findings at once.

    `hosts`: host name -> its facts {"gpus", "gpu_model", "driver", "rails", ...}. `machines`: host name ->
    identity of its machine (busbar.preflight.facts.machine). `unreachable`: the workers that did not respond
    to the last query.
    """

    hosts: pulumi.Output[Mapping[str, dict[str, Any]]]
    machines: pulumi.Output[Mapping[str, str]]
    unreachable: pulumi.Output[Sequence[str]]

    def __init__(self, name: str, args: PreflightArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:index:Preflight", name, None, opts)
        spec = without_login(args.hosts, args.requirements, args.nfs, args.quarantined, args.api_endpoint)
        stdin: pulumi.Output[str] = pulumi.Output.from_input(args.install_id).apply(
            lambda known: with_login({**spec, "install_id": known}, args.login)
        )
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
    """Register the Command by which all servers and workers download what they install.

    Nothing depends on it, and it does not fail: the installation of a host downloads what is missing.
    """
    inventory, settings = config.inventory, config.cluster.k3s
    roles, environment = ("server", "worker"), proxy.environment(inventory)
    values = {role: {**k3s.download_values(settings, role, config.project), **environment} for role in roles}
    if config.cluster.hosts.virtual_ip and not inventory.load_balancers:
        values["server"]["PACKAGES"] = "keepalived"
    spec = {
        "hosts": [target(host) for host in (*inventory.servers, *inventory.workers)],
        "values": values,
        "timeout_seconds": max(k3s.install_seconds(settings, role, PREPARE_SECONDS) for role in roles),
    }
    return create_hosts_command(
        name, "prepare", with_login(spec, config.login), opts, with_previous_result=True
    )
