"""HAProxy in front of the Kubernetes API, on one host or on two that share a virtual IP."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
from pulumi_command import remote

from busbar.hosts import haproxy
from busbar.hosts.host import Host
from busbar.hosts.inventory import API_PORT, Inventory
from components.engine.host_command import HostCommandArgs, create_host_command
from components.engine.removal import HostRemovalArgs, create_host_removal
from components.engine.ssh import SshLogin

# Up to 5 minutes of it for an apt that already runs (unattended-upgrades at the first boot).
DEADLINE_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class HAProxyLoadBalancerArgs:
    """The hosts, and the CA that the servers' certificates are checked against (`K3sControlPlane.ca_pem`).

    `install_id`: `K3sControlPlane.install_id`.
    """

    inventory: Inventory
    login: SshLogin
    ca_pem: pulumi.Input[str]
    install_id: pulumi.Input[str]


class HAProxyLoadBalancer(pulumi.ComponentResource):
    """Makes three Commands per load balancer: its removal, its packages (which wait for no server), and one
    that ends when /readyz is 200 through it.
    """

    endpoint: pulumi.Output[str]
    """`https://<virtual IP or address>:6443`, known once the load balancers answer."""
    nodes: list[remote.Command]
    """One Command per load balancer, in the order of the configuration."""

    def __init__(
        self, name: str, args: HAProxyLoadBalancerArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("busbar:index:HAProxyLoadBalancer", name, None, opts)
        self._args = args
        self.nodes = []
        self._removals: list[pulumi.Resource] = []
        for host in args.inventory.load_balancers:
            # One at a time, so that a change never interrupts both load balancers at once.
            self.nodes.append(self._install(f"{name}-{host.name}", host))
        answered = pulumi.Output.all(*(node.stdout for node in self.nodes))
        self.endpoint = answered.apply(lambda _: args.inventory.api_endpoint)
        self.register_outputs({"endpoint": self.endpoint})

    def _install(self, name: str, host: Host) -> remote.Command:
        inventory = self._args.inventory
        virtual_ip = inventory.cluster.hosts.virtual_ip
        removal = create_host_removal(
            f"{name}-removal",
            HostRemovalArgs(
                inventory=inventory,
                login=self._args.login,
                host=host,
                script="haproxy",
                owner=name,
                install_id=self._args.install_id,
                timeout_seconds=DEADLINE_SECONDS,
                values={"CA_FILE": haproxy.CA_FILE},
            ),
            pulumi.ResourceOptions(parent=self, depends_on=[*self._removals]),
        )
        self._removals.append(removal)
        shared_address = {"VIRTUAL_IP": virtual_ip.address if virtual_ip else ""}
        packages = create_host_command(
            f"{name}-packages",
            HostCommandArgs(
                login=self._args.login,
                host=host,
                script="haproxy-packages",
                timeout_seconds=DEADLINE_SECONDS,
                values={"NODE_NAME": host.name, **shared_address},
                install_id=self._args.install_id,
                owner=name,
            ),
            pulumi.ResourceOptions(parent=self, depends_on=[removal]),
        )
        return create_host_command(
            name,
            HostCommandArgs(
                login=self._args.login,
                host=host,
                script="haproxy",
                timeout_seconds=DEADLINE_SECONDS,
                values={
                    "NODE_NAME": host.name,
                    "API_PORT": str(API_PORT),
                    "CA_FILE": haproxy.CA_FILE,
                    **shared_address,
                },
                payload={
                    "haproxy_cfg": haproxy.haproxy_config(inventory),
                    "keepalived_conf": haproxy.keepalived_config(inventory, host),
                    "ca_pem": self._args.ca_pem,
                },
                install_id=self._args.install_id,
            ),
            pulumi.ResourceOptions(parent=self, depends_on=[packages, *self.nodes]),
        )
