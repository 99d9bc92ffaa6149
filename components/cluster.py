"""The whole bring-up as one component: from a list of machines to a cluster with a measured fabric."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pulumi

from busbar import names, outputs
from busbar.components.api_endpoint import ApiEndpoint
from busbar.components.control_plane import K3sControlPlane
from busbar.components.engine.cluster import create_cluster_provider, deleted_with
from busbar.components.engine.helm import Installed, check_after_deletions
from busbar.components.engine.join_tokens import JoinTokens
from busbar.components.engine.node_steps import fail_unless_ready, remove_stale_nodes, set_taints
from busbar.components.engine.stack import (
    StackConfig,
    Step,
    export_all,
    fail_unless_made,
    fail_unless_passed,
    read_stack,
)
from busbar.components.gpu_operator import GpuOperator
from busbar.components.load_balancer import HAProxyLoadBalancer
from busbar.components.mpi_operator import MpiOperator
from busbar.components.nccl_validation import FabricValidation
from busbar.components.network_operator import NetworkOperator
from busbar.components.nfs_server import NfsServer
from busbar.components.preflight import Preflight, prepare_hosts
from busbar.components.worker_pool import InfiniBandWorkerPool
from busbar.hosts import nfs, proxy
from busbar.manifests.scheduling import taints_of
from busbar.preflight.facts import rail_addresses


class Cluster(pulumi.ComponentResource):
    """A highly available K3s cluster on machines reachable over SSH, its fabric measured with NCCL.

    The names of all its resources begin with its own, which must never change: another name would uninstall
    the hosts. The outputs are those of docs/outputs.md. A number is None if nothing was measured.
    """

    outputs: pulumi.Output[dict[str, Any]]
    """All outputs of the contract but the kubeconfig."""
    kubeconfig: pulumi.Output[str]
    """Secret; its server is `api_endpoint`."""

    def __init__(
        self,
        name: str,
        opts: pulumi.ResourceOptions | None = None,
        *,
        data: Mapping[str, Any],
        secrets: Mapping[str, pulumi.Output[str]],
        project: Path,
    ) -> None:
        """`data`: the object `busbar:cluster`. `secrets`: those that are set, by key
        (busbar.config.stackfile.SECRETS). `project`: the folder that relative paths in `data` start from.

        Raises pulumi.RunError with every finding of the configuration, before anything is registered.
        """
        config = StackConfig.of(data, secrets, project)
        super().__init__("busbar:index:Cluster", name, None, opts)
        self._name = name
        inventory, rotate = config.inventory, config.cluster.k3s.rotate
        tokens = JoinTokens(name, servers=rotate.server_token, agents=rotate.agent_token, parent=self)

        # Every host is checked before any of them is changed.
        preflight = Preflight(f"{name}-preflight", self._after(), config=config, install_id=tokens.install_id)

        # All hosts download what they install later. Nothing waits for it.
        prepare_hosts(f"{name}-prepare", config, self._after(preflight))

        # The servers, one after another.
        servers = K3sControlPlane(
            f"{name}-{names.CONTROL_PLANE}",
            self._after(preflight),
            config=config,
            tokens=tokens,
            machines=preflight.machines,
        )
        kubeconfig, install_id = servers.kubeconfig, servers.install_id

        # Load balancers come up beside server 1; their configuration needs its CA. Another endpoint is used
        # when all servers have its address in their certificates.
        api_front = (
            HAProxyLoadBalancer(
                f"{name}-load-balancer",
                self._after(preflight),
                config=config,
                ca_pem=servers.ca_pem,
                install_id=install_id,
            )
            if inventory.load_balancers
            else ApiEndpoint(
                f"{name}-api-endpoint",
                self._after(*servers.steps),
                config=config,
                kubeconfig=kubeconfig,
            )
        )

        # Workers: in a new cluster beside servers 2 and 3, else after all servers (engine/rolling_update.py).
        nfs_server = NfsServer(
            f"{name}-nfs-server",
            self._after(preflight),
            login=config.login,
            install_id=install_id,
            export=nfs.export_of(inventory),
            fronts=inventory.fronts,
            workers=inventory.workers,
            environment=proxy.environment(inventory),
        )
        taints = set_taints(
            f"{name}-{names.CONTROL_PLANE}-taints",
            inventory,
            kubeconfig,
            pulumi.ResourceOptions(parent=servers, depends_on=[servers.prepared, api_front]),
        )
        configured = inventory.cluster.pools
        pools = {
            pool: InfiniBandWorkerPool(
                f"{name}-pool-{pool}",
                self._after(servers.prepared, api_front, *nfs_server.removals),
                config=config,
                pool=pool,
                prefix=f"{name}-{names.WORKER}",
                install_id=install_id,
                kubeconfig=kubeconfig,
                servers=servers.servers,
                agent_token=servers.agent_token,
                registries_yaml=servers.registries_yaml,
                unreachable=preflight.unreachable,
            )
            for pool in sorted(configured)
        }
        workers = [*pools.values()]

        # Operators come after all workers and servers, and each waits for the resources that it offers.
        provider = create_cluster_provider(
            kubeconfig,
            install_id,
            self._after(*servers.majority, api_front, deleted_with=servers.foundation),
            name=f"{name}-kubernetes",
        )
        # Without its first server the cluster is gone, and nothing on it is uninstalled.
        on_cluster = {"provider": provider, "transformations": [deleted_with(servers.foundation)]}
        hardware = {worker.name: configured[worker.pool or ""] for worker in inventory.usable}
        tolerated = taints_of(configured.values())
        gpu = GpuOperator(
            f"{name}-{names.GPU_OPERATOR}",
            self._after(*workers, **on_cluster),
            kubeconfig=kubeconfig,
            config=config.cluster.gpu_operator,
            nodes={node: each.gpus for node, each in hardware.items()},
            taints=tolerated,
        )
        network = NetworkOperator(
            f"{name}-{names.NETWORK_OPERATOR}",
            # The GPU Operator brings node-feature-discovery, whose CRD the network chart's rules need. There
            # is no wait for GPUs, which need minutes to appear.
            self._after(*workers, *gpu.releases, **on_cluster),
            kubeconfig=kubeconfig,
            config=config.cluster.network_operator,
            nodes={node: each.rails for node, each in hardware.items()},
            taints=tolerated,
            rails=preflight.hosts.apply(rail_addresses),
        )
        mpi = MpiOperator(
            f"{name}-mpi-operator",
            self._after(*workers, **on_cluster),
            kubeconfig=kubeconfig,
            config=config.cluster.mpi_operator,
        )

        # The measurements wait for all of this. Their image is pulled when the workers of a pool have joined.
        fabric = FabricValidation(
            f"{name}-nccl",
            self._after(**on_cluster),
            inventory=inventory,
            kubeconfig=kubeconfig,
            facts=preflight.hosts,
            workers=pools,
            after=[*servers.steps, taints, gpu, network, mpi],
        )

        versions = {
            "k3s": servers.k3s_version,
            "gpu_operator": gpu.version,
            "network_operator": network.version,
            "mpi_operator": mpi.version,
        }
        self.kubeconfig = kubeconfig
        self.outputs = pulumi.Output.all(
            cluster_id=tokens.install_id, versions=versions, facts=preflight.hosts, results=fabric.results
        ).apply(lambda found: outputs.build_outputs(config.cluster, **found))
        self._inventory, self._servers, self._nfs_server = inventory, servers, nfs_server
        # The namespaces and Helm releases, for the check at the end of an update.
        self.installed: Sequence[Installed] = [
            each for made in (gpu, network, mpi, fabric) for each in made.installed
        ]
        self._steps: list[Step] = [*servers.steps, *api_front.steps, taints, *nfs_server.steps]
        self._steps += [step for pool in workers for step in pool.steps]
        # Workers that are not configured any more are removed after the fabric was measured.
        self._measured = [taints, *workers, *fabric.measurements]
        self.register_outputs({"cluster_name": config.cluster.name})

    def _after(self, *resources: pulumi.Resource, **more: Any) -> pulumi.ResourceOptions:
        """The options of a part of the cluster that comes after these resources."""
        return pulumi.ResourceOptions(parent=self, depends_on=[*resources], **more)

    @classmethod
    def of_stack(cls, name: str, project: Path) -> "Cluster":
        """Make the cluster of the selected stack; `project`: the program's folder. Raises pulumi.RunError."""
        data, secrets = read_stack()
        return cls(name, data=data, secrets=secrets, project=project)

    def export(self) -> None:
        """Export the outputs: all of them, or none if one is not known or a step failed."""
        found = {name: self.outputs[name] for name in outputs.NAMES}
        export_all({**found, "kubeconfig": self.kubeconfig}, self._steps)

    def check_at_the_end(self) -> None:
        """Make the update fail if a release or namespace of the cluster is not on it after the deletions."""
        check_after_deletions(self.kubeconfig, self.installed)

    async def finish(self) -> None:
        """Run the steps after the outputs: the gate, and removing Nodes of workers no longer configured.

        Raises pulumi.RunError where the fabric did not pass (`validation.enforce`), a step failed, a server
        does not serve, or a worker's Node is not Ready. The engine then deletes nothing.
        """
        inventory = self._inventory
        await fail_unless_passed(self.outputs, enforce=inventory.cluster.validation.is_gate)
        await fail_unless_made(self._steps)
        stale = remove_stale_nodes(
            f"{self._name}-{names.CONTROL_PLANE}-stale-nodes",
            [worker.name for worker in inventory.workers],
            self.kubeconfig,
            pulumi.ResourceOptions(parent=self._servers, depends_on=self._measured),
        )
        await fail_unless_made([stale, *self._nfs_server.revoke(stale)])
        await fail_unless_ready(
            inventory.cluster,
            [server.name for server in inventory.servers],
            [worker.name for worker in inventory.usable],
            self.kubeconfig,
        )
