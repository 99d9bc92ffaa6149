"""NVIDIA GPU Operator, done when every worker offers its GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

from busbar.components.engine.local_command import create_cluster_command
from busbar.components.engine.release import (
    HELM_VALUES,
    ChartSource,
    InstalledRelease,
    ReleaseArgs,
    changes,
    create_release,
    installed_version,
)
from busbar.components.engine.update_end import Installed
from busbar.config import operators, section
from busbar.hosts.inventory import Inventory
from busbar.manifests.names import digest
from busbar.manifests.operators import GPU_OPERATOR
from busbar.manifests.scheduling import GPU_RESOURCE, read_taints, taints_of


@dataclass(frozen=True, kw_only=True)
class GpuOperatorArgs:
    """The cluster of the operator, its chart, and the GPUs that it must offer in the end.

    `nodes`: Node name -> number of GPUs. `taints`: of these Nodes, each with key, value and effect.
    `settings`: as `gpu_operator` of `busbar:cluster`.
    """

    kubeconfig: pulumi.Input[str]
    nodes: Mapping[str, int]
    taints: Sequence[Mapping[str, str]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, inventory: Inventory, kubeconfig: pulumi.Input[str]) -> "GpuOperatorArgs":
        """The arguments for all workers of a configuration."""
        pools = inventory.cluster.pools
        return cls(
            kubeconfig=kubeconfig,
            nodes={worker.name: pools[worker.pool or ""].gpus for worker in inventory.usable},
            taints=[taint.model_dump() for taint in taints_of(pools.values())],
            settings=GPU_OPERATOR.settings(inventory.cluster),
        )


class GpuOperator(pulumi.ComponentResource):
    """Makes the Namespace, the Helm Release, and a Command that waits for `nvidia.com/gpu` on every worker.

    If the operator is not enabled, another tool has installed the device plugin: only the wait is made, and
    `version` is None.
    """

    version: pulumi.Output[str | None]
    ready: pulumi.Output[str]
    releases: list[kubernetes.helm.v3.Release]
    """The Helm Release, with the CRDs of node-feature-discovery; empty if the operator is not enabled."""

    def __init__(self, name: str, args: GpuOperatorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:index:GpuOperator", name, None, opts)
        config = section(operators.GpuOperator, "gpu_operator", args.settings)
        values = GPU_OPERATOR.values(HELM_VALUES, config, read_taints(args.taints))
        self.version = pulumi.Output.from_input(None)
        made: list[InstalledRelease] = []
        if config.enabled:
            release = create_release(
                name,
                ReleaseArgs(
                    kubeconfig=args.kubeconfig,
                    operator=GPU_OPERATOR,
                    config=config,
                    source=ChartSource.configured(config),
                    values=values,
                ),
                parent=self,
            )
            self.version = installed_version(release, config.version)
            made = [release]
        self.releases = [each.release for each in made]
        # The namespace and the release, for the check at the end of an update.
        self.installed: Sequence[Installed] = [each for release in made for each in release.installed]
        wait = create_cluster_command(
            f"{name}-gpus",
            "wait allocatable",
            GPU_OPERATOR.wait_request(config, GPU_RESOURCE, args.nodes),
            args.kubeconfig,
            pulumi.ResourceOptions(parent=self, depends_on=self.releases, replacement_trigger=changes(*made)),
            triggers=[digest(values), config.version],
        )
        self.ready = wait.stdout
        self.register_outputs({"version": self.version, "ready": self.ready})
