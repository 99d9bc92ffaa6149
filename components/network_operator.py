"""NVIDIA Network Operator and our NicClusterPolicy, done when every worker offers the HCAs of its pool."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as kubernetes

from busbar.hosts.inventory import Inventory
from busbar.manifests import nic_cluster_policy
from busbar.manifests.names import digest
from busbar.manifests.operators import NETWORK_OPERATOR
from components import operator_release


@dataclass(frozen=True, kw_only=True)
class NetworkOperatorArgs:
    """`deleted_with` is the resource without which the cluster is gone, and the release with it."""

    inventory: Inventory
    kubeconfig: pulumi.Input[str]
    deleted_with: pulumi.Resource | None = None


class NetworkOperator(pulumi.ComponentResource):
    """A namespace, the Helm release, the NicClusterPolicy, and the wait for the HCAs on every worker.

    Where the operator is not enabled it is nothing, and `version` is None: how many units another tool offers
    for how many HCAs is that tool's affair, and a job that finds none says so.
    """

    version: pulumi.Output[str | None]
    ready: pulumi.Output[str | None]

    def __init__(
        self, name: str, args: NetworkOperatorArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("busbar:index:NetworkOperator", name, {}, opts)
        self.version = self.ready = pulumi.Output.from_input(None)
        if args.inventory.cluster.network_operator.enabled:
            self._install(name, args)
        self.register_outputs({"version": self.version, "ready": self.ready})

    def _install(self, name: str, args: NetworkOperatorArgs) -> None:
        cluster = args.inventory.cluster
        config = cluster.network_operator
        chart_values = NETWORK_OPERATOR.values(operator_release.HELM_VALUES, config)
        release = operator_release.chart_release(
            f"{name}-release",
            config,
            operator=NETWORK_OPERATOR,
            namespace=operator_release.namespace(
                f"{name}-namespace",
                NETWORK_OPERATOR.namespace,
                pulumi.ResourceOptions(parent=self, deleted_with=args.deleted_with),
            ),
            values=chart_values,
            timeout_seconds=config.timeout_seconds,
            kubeconfig=args.kubeconfig,
            parent=self,
            deleted_with=args.deleted_with,
        )
        manifest = nic_cluster_policy.render(config, cluster.pools)
        policy = kubernetes.apiextensions.CustomResource(
            f"{name}-policy",
            api_version=manifest["apiVersion"],
            kind=manifest["kind"],
            metadata=manifest["metadata"],
            spec=manifest["spec"],
            # The release brings the CRD.
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=[release], deleted_with=args.deleted_with or release
            ),
        )
        wait = operator_release.wait_allocatable(
            f"{name}-hcas",
            NETWORK_OPERATOR.wait_request(
                config,
                config.resource,
                {
                    worker.name: pool.rails
                    for pool_name, pool in cluster.pools.items()
                    for worker in args.inventory.workers_of(pool_name)
                },
            ),
            kubeconfig=args.kubeconfig,
            triggers=[digest({"values": chart_values, "policy": manifest}), config.version],
            parent=self,
            depends_on=[policy],
        )
        self.version = operator_release.version_found(release, config.version)
        self.ready = wait.stdout
