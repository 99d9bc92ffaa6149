"""HAProxy in front of the Kubernetes API, on one host or on two that share a virtual IP."""

import pulumi
from pulumi_command import remote

from busbar import names
from busbar.components.engine.hosts import create_host_command, create_host_removal
from busbar.components.engine.stack import StackConfig
from busbar.hosts import haproxy
from busbar.hosts.inventory import API_PORT, Host

# Includes up to 5 minutes for an apt that already runs (unattended-upgrades at the first boot).
DEADLINE_SECONDS = 900


class HAProxyLoadBalancer(pulumi.ComponentResource):
    """Makes two Commands per load balancer: its removal, and one that ends when /readyz is 200 through it.

    `ca_pem`, which verifies the servers' certificates, and `install_id` are those of K3sControlPlane.
    """

    steps: list[remote.Command]
    """One Command per load balancer, in the order of the configuration."""

    def __init__(
        self,
        name: str,
        opts: pulumi.ResourceOptions | None = None,
        *,
        config: StackConfig,
        ca_pem: pulumi.Input[str],
        install_id: pulumi.Input[str],
    ) -> None:
        super().__init__("busbar:index:HAProxyLoadBalancer", name, None, opts)
        self._config, self._ca_pem, self._install_id = config, ca_pem, install_id
        self.steps = []
        self._removals: list[pulumi.Resource] = []
        for host in config.inventory.load_balancers:
            # The load balancers change one at a time, so that one of them always works.
            self.steps.append(self._install(name, host))
        self.register_outputs({"endpoint": config.inventory.api_endpoint})

    def _install(self, component: str, host: Host) -> remote.Command:
        name = names.on_host(component, host.name)
        config, inventory = self._config, self._config.inventory
        balancers, shared = inventory.load_balancers, config.cluster.hosts.virtual_ip
        on = config.host_args(host, name, self._install_id)
        ca_file = {"CA_FILE": haproxy.CA_FILE}
        shared_address = {"VIRTUAL_IP": shared.address if shared else ""}
        after_other_removals = pulumi.ResourceOptions(parent=self, depends_on=[*self._removals])
        removal = create_host_removal(on, "haproxy", DEADLINE_SECONDS, ca_file, after_other_removals)
        self._removals.append(removal)
        return create_host_command(
            name,
            on,
            "haproxy",
            DEADLINE_SECONDS,
            {"NODE_NAME": host.name, "API_PORT": str(API_PORT), **ca_file, **shared_address},
            pulumi.ResourceOptions(parent=self, depends_on=[removal, *self.steps]),
            payload={
                "haproxy_cfg": haproxy.haproxy_config(balancers, inventory.servers, shared),
                "keepalived_conf": haproxy.keepalived_config(balancers, shared, host),
                "ca_pem": self._ca_pem,
            },
        )
