"""NVIDIA Network Operator and our NicClusterPolicy, done when every worker offers its HCAs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

from busbar.config import operators
from busbar.hosts.inventory import Inventory
from busbar.manifests import nic_cluster_policy
from busbar.manifests.names import digest
from busbar.manifests.operators import NETWORK_OPERATOR
from busbar.manifests.scheduling import read_taints, taints_of
from components.engine.allocatable import AllocatableArgs, create_allocatable_wait
from components.engine.release import (
    HELM_VALUES,
    ChartSource,
    ClusterArgs,
    ReleaseArgs,
    create_release,
    installed_version,
)

_DEFAULT = operators.NetworkOperator()


@dataclass(frozen=True, kw_only=True)
class NetworkOperatorArgs:
    """Where the operator is installed, its chart, and the HCAs that it must offer in the end.

    `nodes`: number of HCAs by name of the Node. `rails`: their PCI addresses on all Nodes, such as
    0000:1b:00.0. `taints`: of these Nodes, each with key, value and effect. The others are those of
    `network_operator` in `busbar:cluster`.
    """

    kubeconfig: pulumi.Input[str]
    nodes: Mapping[str, int]
    rails: pulumi.Input[Sequence[str]]
    taints: Sequence[Mapping[str, str]] = ()
    enabled: bool = _DEFAULT.enabled
    chart: str = _DEFAULT.chart
    version: str = _DEFAULT.version
    repository: str | None = _DEFAULT.repository
    values: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: int = _DEFAULT.timeout_seconds
    resource: str = _DEFAULT.resource
    selectors: Mapping[str, Any] = field(default_factory=dict)
    image_repository: str = _DEFAULT.image_repository
    image_tag: str | None = _DEFAULT.image_tag
    secondary_networks: bool = _DEFAULT.secondary_networks

    @classmethod
    def of(
        cls, inventory: Inventory, kubeconfig: pulumi.Input[str], rails: pulumi.Input[Sequence[str]]
    ) -> "NetworkOperatorArgs":
        """The arguments for all workers of a configuration, with the rails that preflight has found."""
        pools = inventory.cluster.pools
        return cls(
            kubeconfig=kubeconfig,
            nodes={worker.name: pools[worker.pool or ""].rails for worker in inventory.workers},
            rails=rails,
            taints=[taint.model_dump() for taint in taints_of(pools.values())],
            **inventory.cluster.network_operator.model_dump(),
        )


class NetworkOperator(pulumi.ComponentResource):
    """Makes the Namespace, the Helm Release, the NicClusterPolicy, and a Command that waits for the HCAs.

    The chart's rules need the CRD of node-feature-discovery, which the GPU Operator brings. Where the
    operator is not enabled it makes nothing, and `version` is None: how many units another tool offers for
    how many HCAs is not known here, and a job that finds none says so. What it makes is `deleted_with` the
    same resource as the component.
    """

    version: pulumi.Output[str | None]
    ready: pulumi.Output[str | None]

    def __init__(
        self, name: str, args: NetworkOperatorArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("busbar:index:NetworkOperator", name, None, opts)
        self.version = self.ready = pulumi.Output.from_input(None)
        if args.enabled:
            self._install(name, args, ClusterArgs.of(args.kubeconfig, opts))
        self.register_outputs({"version": self.version, "ready": self.ready})

    def _install(self, name: str, args: NetworkOperatorArgs, cluster: ClusterArgs) -> None:
        values = NETWORK_OPERATOR.values(HELM_VALUES, args)
        release = create_release(
            name,
            ReleaseArgs(
                cluster=cluster,
                operator=NETWORK_OPERATOR,
                config=args,
                source=ChartSource.configured(args),
                values=values,
            ),
            parent=self,
        )
        rails: pulumi.Output[Sequence[str]] = pulumi.Output.from_input(args.rails)
        taints = read_taints(args.taints)
        spec = rails.apply(lambda found: nic_cluster_policy.render(args, taints, found)["spec"])
        policy = kubernetes.apiextensions.CustomResource(
            f"{name}-policy",
            api_version=nic_cluster_policy.API_VERSION,
            kind=nic_cluster_policy.KIND,
            metadata=nic_cluster_policy.METADATA,
            spec=spec,
            # The release brings the CRD.
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=[release], deleted_with=cluster.deleted_with or release
            ),
        )
        wait = create_allocatable_wait(
            f"{name}-hcas",
            AllocatableArgs(
                kubeconfig=args.kubeconfig,
                operator=NETWORK_OPERATOR,
                config=args,
                resource=args.resource,
                nodes=args.nodes,
                triggers=[digest(values), spec.apply(digest), args.version],
            ),
            pulumi.ResourceOptions(parent=self, depends_on=[policy]),
        )
        self.version = installed_version(release, args.version)
        self.ready = wait.stdout
