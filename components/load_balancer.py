"""HAProxy in front of the Kubernetes API, on one host or on two that share a virtual IP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pulumi
from pulumi_command import remote

from busbar import names
from busbar.components.engine.hosts import HostArgs, SshLogin, create_host_command, create_host_removal
from busbar.components.engine.stack import StackConfig
from busbar.config import VirtualIp
from busbar.hosts import haproxy, proxy
from busbar.hosts.inventory import API_PORT, Host, api_url

# Includes up to 5 minutes for an apt that already runs (unattended-upgrades at the first boot).
DEADLINE_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class HAProxyLoadBalancerArgs:
    """The hosts, and the CA by which the servers' certificates are verified (`K3sControlPlane.ca_pem`).

    `install_id`: `K3sControlPlane.install_id`. `virtual_ip`: the address that they share.
    `environment`: the proxy of the hosts (busbar.hosts.proxy).
    """

    load_balancers: Sequence[Host]
    servers: Sequence[Host]
    login: SshLogin
    ca_pem: pulumi.Input[str]
    install_id: pulumi.Input[str]
    virtual_ip: VirtualIp | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, config: StackConfig, *, ca_pem: pulumi.Input[str], install_id: pulumi.Input[str]
    ) -> "HAProxyLoadBalancerArgs":
        """The arguments for the load balancers of a configuration."""
        return cls(
            load_balancers=config.inventory.load_balancers,
            servers=config.inventory.servers,
            login=config.login,
            ca_pem=ca_pem,
            install_id=install_id,
            virtual_ip=config.cluster.hosts.virtual_ip,
            environment=proxy.environment(config.inventory),
        )


class HAProxyLoadBalancer(pulumi.ComponentResource):
    """Makes three Commands per load balancer: its removal, its packages (which wait for no server), and one
    that ends when /readyz is 200 through it.
    """

    endpoint: pulumi.Output[str]
    """`https://<virtual IP or address>:6443`, known once the load balancers answer."""
    steps: list[remote.Command]
    """One Command per load balancer, in the order of the configuration."""

    def __init__(
        self, name: str, args: HAProxyLoadBalancerArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("busbar:index:HAProxyLoadBalancer", name, None, opts)
        self._args = args
        self.steps = []
        self._removals: list[pulumi.Resource] = []
        for host in args.load_balancers:
            # The load balancers change one at a time, so that one of them always works.
            self.steps.append(self._install(name, host))
        answered = pulumi.Output.all(*(step.stdout for step in self.steps))
        address = args.virtual_ip.address if args.virtual_ip else args.load_balancers[0].address
        self.endpoint = answered.apply(lambda _: api_url(address))
        self.register_outputs({"endpoint": self.endpoint})

    def _install(self, component: str, host: Host) -> remote.Command:
        name = names.on_host(component, host.name)
        balancers, servers, shared = self._args.load_balancers, self._args.servers, self._args.virtual_ip
        on = HostArgs(
            login=self._args.login,
            host=host,
            owner=name,
            install_id=self._args.install_id,
            fronts=[*balancers, *servers],
            environment=self._args.environment,
        )
        ca_file = {"CA_FILE": haproxy.CA_FILE}
        shared_address = {"VIRTUAL_IP": shared.address if shared else ""}
        after_other_removals = pulumi.ResourceOptions(parent=self, depends_on=[*self._removals])
        removal = create_host_removal(on, "haproxy", DEADLINE_SECONDS, ca_file, after_other_removals)
        self._removals.append(removal)
        packages = create_host_command(
            names.on_host(f"{component}-packages", host.name),
            on,
            "haproxy-packages",
            DEADLINE_SECONDS,
            {"NODE_NAME": host.name, **shared_address},
            pulumi.ResourceOptions(parent=self, depends_on=[removal]),
        )
        return create_host_command(
            name,
            on,
            "haproxy",
            DEADLINE_SECONDS,
            {"NODE_NAME": host.name, "API_PORT": str(API_PORT), **ca_file, **shared_address},
            pulumi.ResourceOptions(parent=self, depends_on=[packages, *self.steps]),
            payload={
                "haproxy_cfg": haproxy.haproxy_config(balancers, servers, shared),
                "keepalived_conf": haproxy.keepalived_config(balancers, shared, host),
                "ca_pem": self._args.ca_pem,
            },
        )
