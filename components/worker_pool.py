"""Workers that are alike: K3s agents with GPUs and HCAs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pulumi
from pulumi_command import remote

from busbar.hosts import k3s
from busbar.hosts.inventory import Host, Inventory
from components.control_plane import K3sControlPlane, binary_values, image_lines
from components.host_step import HostStep, host_command
from components.ssh import Login

AGENT_DEADLINE_SECONDS = 1200
DRAIN_DEADLINE_SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class InfiniBandWorkerPoolArgs:
    """One pool of `inventory` by name, and the control plane whose API address its workers join."""

    inventory: Inventory
    pool: str
    login: Login
    control_plane: K3sControlPlane
    project: Path | None = None


class InfiniBandWorkerPool(pulumi.ComponentResource):
    """Two Commands a worker: the agent itself, and the farewell that drains and removes the Node."""

    nodes: list[remote.Command]
    """One Command a worker, in the order of the configuration."""
    node_names: pulumi.Output[list[str]]
    """Names of the Nodes, known once all of them are Ready."""

    def __init__(
        self, name: str, args: InfiniBandWorkerPoolArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("busbar:index:InfiniBandWorkerPool", name, None, opts)
        self._args = args
        workers = args.inventory.workers_of(args.pool)
        self._values = self._common_values()
        self.nodes = [self._worker(f"{name}-{host.name}", host) for host in workers]
        ready = pulumi.Output.all(*(node.stdout for node in self.nodes))
        self.node_names = ready.apply(lambda _: [host.name for host in workers])
        self.register_outputs({"node_names": self.node_names})

    def _common_values(self) -> dict[str, str]:
        settings = self._args.inventory.cluster.k3s
        project = self._args.project or Path.cwd()
        return {**binary_values(settings, project), "IMAGES": image_lines(settings, "worker", project)}

    def _worker(self, name: str, host: Host) -> remote.Command:
        args = self._args
        inventory = args.inventory
        pool = inventory.cluster.pools[args.pool]
        config = args.control_plane.agent_token.apply(
            lambda token: k3s.agent_config(
                inventory.cluster.k3s, pool, node_name=host.name, server=inventory.api_endpoint, token=token
            )
        )
        agent = host_command(
            name,
            HostStep(
                login=args.login,
                host=host,
                script="k3s-agent",
                timeout_seconds=AGENT_DEADLINE_SECONDS,
                values={**self._values, "NODE_NAME": host.name, "NODE_ADDRESS": host.address},
                payload={"config": config, "registries": args.control_plane.registries_yaml},
                removable=True,
            ),
            pulumi.ResourceOptions(parent=self),
        )
        # Depends on the agent, so it goes first: drain, delete the Node, then uninstall. When the cluster
        # itself goes there is nothing to drain from.
        host_command(
            f"{name}-farewell",
            HostStep(
                login=args.login,
                host=inventory.servers[0],
                script="k3s-remove-node",
                timeout_seconds=DRAIN_DEADLINE_SECONDS,
                values={"NODE_NAME": host.name},
                removable=True,
                create=False,
            ),
            pulumi.ResourceOptions(parent=self, depends_on=[agent], deleted_with=args.control_plane.nodes[0]),
        )
        return agent
