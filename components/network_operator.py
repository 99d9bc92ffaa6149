"""NVIDIA Network Operator and our NicClusterPolicy, done when every worker offers the HCAs of its pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

from busbar.manifests import nic_cluster_policy
from busbar.manifests.names import digest
from busbar.manifests.operators import NETWORK_OPERATOR
from busbar.preflight.facts import rail_addresses
from components.engine.allocatable import AllocatableArgs, create_allocatable_wait
from components.engine.release import (
    HELM_VALUES,
    ChartSource,
    OperatorArgs,
    ReleaseArgs,
    create_release,
    installed_version,
)


@dataclass(frozen=True, kw_only=True)
class NetworkOperatorArgs(OperatorArgs):
    """`hosts`: what preflight has found, by host name; the rails are offered by their PCI addresses."""

    hosts: pulumi.Input[Mapping[str, Mapping[str, Any]]]


class NetworkOperator(pulumi.ComponentResource):
    """Makes the Namespace, the Helm Release, the NicClusterPolicy, and a Command that waits for the HCAs.

    Where the operator is not enabled it makes nothing, and `version` is None: how many units another tool
    offers for how many HCAs is not known here, and a job that finds none says so.
    """

    version: pulumi.Output[str | None]
    ready: pulumi.Output[str | None]

    def __init__(
        self, name: str, args: NetworkOperatorArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("busbar:index:NetworkOperator", name, None, opts)
        self.version = self.ready = pulumi.Output.from_input(None)
        if args.inventory.cluster.network_operator.enabled:
            self._install(name, args)
        self.register_outputs({"version": self.version, "ready": self.ready})

    def _install(self, name: str, args: NetworkOperatorArgs) -> None:
        cluster = args.inventory.cluster
        config = cluster.network_operator
        values = NETWORK_OPERATOR.values(HELM_VALUES, config)
        release = create_release(
            name,
            ReleaseArgs(
                cluster=args,
                operator=NETWORK_OPERATOR,
                config=config,
                source=ChartSource.configured(config),
                values=values,
                after=args.after,
            ),
            parent=self,
        )
        hosts: pulumi.Output[Mapping[str, Mapping[str, Any]]] = pulumi.Output.from_input(args.hosts)
        spec = hosts.apply(
            lambda found: nic_cluster_policy.render(config, cluster.pools, rail_addresses(found))["spec"]
        )
        policy = kubernetes.apiextensions.CustomResource(
            f"{name}-policy",
            api_version=nic_cluster_policy.API_VERSION,
            kind=nic_cluster_policy.KIND,
            metadata=nic_cluster_policy.METADATA,
            spec=spec,
            # The release brings the CRD.
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=[release], deleted_with=args.deleted_with or release
            ),
        )
        wait = create_allocatable_wait(
            f"{name}-hcas",
            AllocatableArgs(
                cluster=args,
                operator=NETWORK_OPERATOR,
                config=config,
                resource=config.resource,
                devices=lambda pool: pool.rails,
                triggers=[digest(values), spec.apply(digest), config.version],
            ),
            pulumi.ResourceOptions(parent=self, depends_on=[policy]),
        )
        self.version = installed_version(release, config.version)
        self.ready = wait.stdout
