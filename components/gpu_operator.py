"""NVIDIA GPU Operator, done when every worker offers the GPUs of its pool."""

from __future__ import annotations

import pulumi

from busbar.manifests.names import digest
from busbar.manifests.operators import GPU_OPERATOR
from busbar.manifests.scheduling import GPU_RESOURCE
from components.engine.allocatable import AllocatableArgs, create_allocatable_wait
from components.engine.release import (
    HELM_VALUES,
    ChartSource,
    OperatorArgs,
    ReleaseArgs,
    create_release,
    installed_version,
)


class GpuOperator(pulumi.ComponentResource):
    """Makes the Namespace, the Helm Release, and a Command that waits for `nvidia.com/gpu` on every worker.

    Where the operator is not enabled, another tool has installed the device plugin: only the wait is made,
    and `version` is None.
    """

    version: pulumi.Output[str | None]
    ready: pulumi.Output[str]
    releases: list[pulumi.Resource]
    """The Helm Release, with the CRDs of node-feature-discovery; none where the operator is not enabled."""

    def __init__(self, name: str, args: OperatorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:index:GpuOperator", name, None, opts)
        cluster = args.inventory.cluster
        config = cluster.gpu_operator
        values = GPU_OPERATOR.values(HELM_VALUES, config, cluster.pools.values())
        self.version = pulumi.Output.from_input(None)
        self.releases = []
        if config.enabled:
            release = create_release(
                name,
                ReleaseArgs(
                    cluster=args,
                    operator=GPU_OPERATOR,
                    config=config,
                    source=ChartSource.configured(config),
                    values=values,
                    after=args.after,
                ),
                parent=self,
            )
            self.version = installed_version(release, config.version)
            self.releases = [release]
        wait = create_allocatable_wait(
            f"{name}-gpus",
            AllocatableArgs(
                cluster=args,
                operator=GPU_OPERATOR,
                config=config,
                resource=GPU_RESOURCE,
                devices=lambda pool: pool.gpus,
                triggers=[digest(values), config.version],
            ),
            pulumi.ResourceOptions(parent=self, depends_on=[*args.after, *self.releases]),
        )
        self.ready = wait.stdout
        self.register_outputs({"version": self.version, "ready": self.ready})
