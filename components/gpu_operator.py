"""NVIDIA GPU Operator, done when every worker offers the GPUs of its pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from busbar.hosts.inventory import Inventory
from busbar.manifests.names import digest
from busbar.manifests.operators import GPU_OPERATOR
from busbar.manifests.scheduling import GPU_RESOURCE
from components import operator_release


@dataclass(frozen=True, kw_only=True)
class GpuOperatorArgs:
    """`deleted_with` is the resource without which the cluster is gone, and the release with it."""

    inventory: Inventory
    kubeconfig: pulumi.Input[str]
    deleted_with: pulumi.Resource | None = None


class GpuOperator(pulumi.ComponentResource):
    """A namespace, the Helm release, and the wait for `nvidia.com/gpu` on every worker.

    Where the operator is not enabled, another tool has brought the device plugin: only the wait is left, and
    `version` is None.
    """

    version: pulumi.Output[str | None]
    ready: pulumi.Output[str]

    def __init__(self, name: str, args: GpuOperatorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:index:GpuOperator", name, {}, opts)
        cluster = args.inventory.cluster
        config = cluster.gpu_operator
        chart_values = GPU_OPERATOR.values(operator_release.HELM_VALUES, config, cluster.pools.values())
        self.version = pulumi.Output.from_input(None)
        installed: Sequence[pulumi.Resource] = ()
        if config.enabled:
            release = operator_release.chart_release(
                f"{name}-release",
                config,
                operator=GPU_OPERATOR,
                namespace=operator_release.namespace(
                    f"{name}-namespace",
                    GPU_OPERATOR.namespace,
                    pulumi.ResourceOptions(parent=self, deleted_with=args.deleted_with),
                ),
                values=chart_values,
                timeout_seconds=config.timeout_seconds,
                kubeconfig=args.kubeconfig,
                parent=self,
                deleted_with=args.deleted_with,
            )
            self.version = operator_release.version_found(release, config.version)
            installed = (release,)
        wait = operator_release.wait_allocatable(
            f"{name}-gpus",
            GPU_OPERATOR.wait_request(
                config,
                GPU_RESOURCE,
                {
                    worker.name: pool.gpus
                    for pool_name, pool in cluster.pools.items()
                    for worker in args.inventory.workers_of(pool_name)
                },
            ),
            kubeconfig=args.kubeconfig,
            triggers=[digest(chart_values), config.version],
            parent=self,
            depends_on=installed,
        )
        self.ready = wait.stdout
        self.register_outputs({"version": self.version, "ready": self.ready})
