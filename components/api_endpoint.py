"""An address of the Kubernetes API without load balancers of busbar: that of the servers, or of the site."""

import pulumi
from pulumi_command import local

from busbar.components.engine.local_command import create_cluster_command
from busbar.components.engine.stack import StackConfig

# kube-vip's address comes with a pod, and an appliance checks the servers' health every few seconds.
DEADLINE_SECONDS = 300


class ApiEndpoint(pulumi.ComponentResource):
    """Makes one Command, which ends when /readyz is 200 at the server of the kubeconfig (secret)."""

    steps: list[local.Command]

    def __init__(
        self,
        name: str,
        opts: pulumi.ResourceOptions | None = None,
        *,
        config: StackConfig,
        kubeconfig: pulumi.Input[str],
    ) -> None:
        super().__init__("busbar:index:ApiEndpoint", name, None, opts)
        setting = "hosts.virtual_ip"
        fix = "let this machine reach it by TCP port 6443; see on the servers: journalctl -u keepalived"
        if config.cluster.api_endpoint:
            setting = "api_endpoint"
            servers = ", ".join(server.address for server in config.inventory.servers)
            fix = (
                f"have it pass TCP port 6443 on to port 6443 of the servers ({servers}) without ending TLS, "
                "each checked by GET https://SERVER:6443/readyz"
            )
        ready = create_cluster_command(
            f"{name}-ready",
            "wait api",
            {"setting": setting, "fix": fix, "deadline_seconds": DEADLINE_SECONDS},
            kubeconfig,
            pulumi.ResourceOptions(parent=self),
        )
        self.steps = [ready]
        self.register_outputs({"ready": ready.stdout})
