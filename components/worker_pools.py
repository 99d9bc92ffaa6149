"""All worker pools, in their order."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
from pulumi_command import remote

from busbar.components.control_plane import K3sControlPlane
from busbar.components.engine.stack import StackConfig
from busbar.components.preflight import Preflight
from busbar.components.worker_pool import InfiniBandWorkerPool, InfiniBandWorkerPoolArgs
from busbar.hosts import proxy


@dataclass(frozen=True, kw_only=True)
class WorkerPoolsArgs:
    """The pools. No pool waits for another."""

    pools: Sequence[InfiniBandWorkerPoolArgs]

    @classmethod
    def of(
        cls, config: StackConfig, preflight: Preflight, control_plane: K3sControlPlane, *, workers: str
    ) -> "WorkerPoolsArgs":
        """The arguments for all pools of a configuration, whose workers join the control plane.

        `workers`: begins the names of the workers' resources.
        """
        pools = config.cluster.pools
        arguments = [
            InfiniBandWorkerPoolArgs(
                pool=pool,
                prefix=workers,
                workers=config.inventory.workers_of(pool),
                fronts=config.inventory.fronts,
                login=config.login,
                install_id=control_plane.install_id,
                kubeconfig=control_plane.kubeconfig,
                servers=control_plane.servers,
                unreachable=preflight.unreachable,
                join_url=config.inventory.api_endpoint,
                agent_token=control_plane.agent_token,
                registries_yaml=control_plane.registries_yaml,
                settings=pools[pool],
                k3s=config.cluster.k3s,
                project=config.project,
                environment=proxy.environment(config.inventory),
            )
            for pool in sorted(pools)
        ]
        return cls(pools=arguments)


class WorkerPools(pulumi.ComponentResource):
    """Makes an InfiniBandWorkerPool per pool."""

    steps: list[remote.Command]
    """One Command per worker, pool by pool."""

    def __init__(self, name: str, args: WorkerPoolsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:index:WorkerPools", name, None, opts)
        self.by_name: dict[str, InfiniBandWorkerPool] = {}
        for each in args.pools:
            self.by_name[each.pool] = InfiniBandWorkerPool(
                f"{name}-{each.pool}", each, pulumi.ResourceOptions(parent=self)
            )
        self.steps = [step for pool in self.by_name.values() for step in pool.steps]
        self.register_outputs({"pools": list(self.by_name)})
