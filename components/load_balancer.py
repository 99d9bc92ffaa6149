"""HAProxy in front of the Kubernetes API, on one host or on two that share a virtual IP."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
from pulumi_command import remote

from busbar.hosts import haproxy
from busbar.hosts.inventory import API_PORT, Host, Inventory
from components.host_step import HostStep, host_command
from components.ssh import Login

DEADLINE_SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class HAProxyLoadBalancerArgs:
    """The hosts, and the CA that the servers' certificates are checked against (`K3sControlPlane.ca_pem`)."""

    inventory: Inventory
    login: Login
    ca_pem: pulumi.Input[str]


class HAProxyLoadBalancer(pulumi.ComponentResource):
    """One Command a load balancer; each ends when /readyz answers 200 through it."""

    endpoint: pulumi.Output[str]
    """`https://<virtual IP or address>:6443`, known once the load balancers answer."""
    nodes: list[remote.Command]

    def __init__(
        self, name: str, args: HAProxyLoadBalancerArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("busbar:index:HAProxyLoadBalancer", name, None, opts)
        self._args = args
        self.nodes = []
        for host in args.inventory.load_balancers:
            # One after the other, so that a change never touches both halves of the pair at once.
            self.nodes.append(self._balancer(f"{name}-{host.name}", host))
        answered = pulumi.Output.all(*(node.stdout for node in self.nodes))
        self.endpoint = answered.apply(lambda _: args.inventory.api_endpoint)
        self.register_outputs({"endpoint": self.endpoint})

    def _balancer(self, name: str, host: Host) -> remote.Command:
        inventory = self._args.inventory
        shared = inventory.cluster.hosts.virtual_ip
        step = HostStep(
            login=self._args.login,
            host=host,
            script="haproxy",
            timeout_seconds=DEADLINE_SECONDS,
            values={
                "NODE_NAME": host.name,
                "API_PORT": str(API_PORT),
                "CA_FILE": haproxy.CA_FILE,
                "VIRTUAL_IP": shared.address if shared else "",
            },
            payload={
                "haproxy_cfg": haproxy.haproxy_config(inventory),
                "keepalived_conf": haproxy.keepalived_config(inventory, host),
                "ca_pem": self._args.ca_pem,
            },
            removable=True,
        )
        return host_command(name, step, pulumi.ResourceOptions(parent=self, depends_on=self.nodes[-1:]))
