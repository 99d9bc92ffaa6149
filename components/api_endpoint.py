"""The address of the Kubernetes API: load balancers, one that the servers share, or the site's own."""

from dataclasses import dataclass

import pulumi
from pulumi_command import local

from busbar.components.control_plane import K3sControlPlane
from busbar.components.engine.local_command import create_cluster_command
from busbar.components.engine.stack import StackConfig
from busbar.components.load_balancer import HAProxyLoadBalancer, HAProxyLoadBalancerArgs
from busbar.components.preflight import Preflight

# kube-vip's address comes with a pod, and an appliance checks the servers' health every few seconds.
DEADLINE_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class ApiEndpointArgs:
    """The endpoint. `kubeconfig`: secret; its server is the endpoint. `setting`: the configuration key that
    sets it. `fix`: what to check if it is not responding."""

    kubeconfig: pulumi.Input[str]
    setting: str
    fix: str


class ApiEndpoint(pulumi.ComponentResource):
    """Makes one Command, which ends when /readyz is 200 at an address without a load balancer of busbar."""

    steps: list[local.Command]

    def __init__(self, name: str, args: ApiEndpointArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:index:ApiEndpoint", name, None, opts)
        ready = create_cluster_command(
            f"{name}-ready",
            "wait api",
            {"setting": args.setting, "fix": args.fix, "deadline_seconds": DEADLINE_SECONDS},
            args.kubeconfig,
            pulumi.ResourceOptions(parent=self),
        )
        self.steps = [ready]
        self.register_outputs({"ready": ready.stdout})


def create_api_front(
    name: str,
    config: StackConfig,
    preflight: Preflight,
    control_plane: K3sControlPlane,
    parent: pulumi.Resource,
) -> HAProxyLoadBalancer | ApiEndpoint:
    """Make the load balancer or endpoint through which workers, operators and kubeconfigs reach the API.

    `name`: the name of the cluster.
    """
    if config.inventory.load_balancers:
        return HAProxyLoadBalancer(
            f"{name}-load-balancer",
            HAProxyLoadBalancerArgs.of(
                config, ca_pem=control_plane.ca_pem, install_id=control_plane.install_id
            ),
            # Its packages are installed at the same time as server 1; its configuration needs the CA.
            pulumi.ResourceOptions(parent=parent, depends_on=[preflight]),
        )
    if config.cluster.api_endpoint:
        setting = "api_endpoint"
        servers = ", ".join(server.address for server in config.inventory.servers)
        fix = (
            f"have it pass TCP port 6443 on to port 6443 of the servers ({servers}) without ending TLS, each "
            "checked by GET https://SERVER:6443/readyz"
        )
    else:
        setting = "hosts.virtual_ip"
        fix = "let this machine reach it by TCP port 6443; see on the servers: journalctl -u keepalived"
    return ApiEndpoint(
        f"{name}-api-endpoint",
        ApiEndpointArgs(kubeconfig=control_plane.kubeconfig, setting=setting, fix=fix),
        # All servers first get the address into their certificates.
        pulumi.ResourceOptions(parent=parent, depends_on=control_plane.steps),
    )
