"""NVIDIA Network Operator and our NicClusterPolicy, done when every worker offers its HCAs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi

from busbar.components.engine.cluster_objects import create_custom_resource
from busbar.components.engine.local_command import create_cluster_command
from busbar.components.engine.release import (
    HELM_VALUES,
    ChartSource,
    ReleaseArgs,
    changes,
    create_release,
    installed_version,
)
from busbar.components.engine.update_end import Installed
from busbar.config import operators, section
from busbar.hosts.inventory import Inventory
from busbar.manifests import nic_cluster_policy
from busbar.manifests.names import digest
from busbar.manifests.operators import NETWORK_OPERATOR
from busbar.manifests.scheduling import read_taints, taints_of


@dataclass(frozen=True, kw_only=True)
class NetworkOperatorArgs:
    """The cluster of the operator, its chart, and the HCAs that it must offer in the end.

    `nodes`: Node name -> number of HCAs. `rails`: their PCI addresses on all Nodes, such as
    0000:1b:00.0. `taints`: of these Nodes, each with key, value and effect. `settings`: as `network_operator`
    of `busbar:cluster`.
    """

    kubeconfig: pulumi.Input[str]
    nodes: Mapping[str, int]
    rails: pulumi.Input[Sequence[str]]
    taints: Sequence[Mapping[str, str]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, inventory: Inventory, kubeconfig: pulumi.Input[str], rails: pulumi.Input[Sequence[str]]
    ) -> "NetworkOperatorArgs":
        """The arguments for all workers of a configuration, with the rails that preflight has found."""
        pools = inventory.cluster.pools
        return cls(
            kubeconfig=kubeconfig,
            nodes={worker.name: pools[worker.pool or ""].rails for worker in inventory.usable},
            rails=rails,
            taints=[taint.model_dump() for taint in taints_of(pools.values())],
            settings=NETWORK_OPERATOR.settings(inventory.cluster),
        )


class NetworkOperator(pulumi.ComponentResource):
    """Makes the Namespace, the Helm Release, the NicClusterPolicy, and a Command that waits for the HCAs.

    The chart's rules need the CRD of node-feature-discovery, which the GPU Operator brings. If the operator
    is not enabled it makes nothing, and `version` is None: how many units another tool offers per HCA is not
    known here, and a job that finds none says so.
    """

    version: pulumi.Output[str | None]
    ready: pulumi.Output[str | None]

    def __init__(
        self, name: str, args: NetworkOperatorArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("busbar:index:NetworkOperator", name, None, opts)
        config = section(operators.NetworkOperator, "network_operator", args.settings)
        # The namespace and the release, for the check at the end of an update.
        self.installed: Sequence[Installed] = ()
        self.version = self.ready = pulumi.Output.from_input(None)
        if config.enabled:
            self._install(name, args, config)
        self.register_outputs({"version": self.version, "ready": self.ready})

    def _install(self, name: str, args: NetworkOperatorArgs, config: operators.NetworkOperator) -> None:
        values = NETWORK_OPERATOR.values(HELM_VALUES, config)
        made = create_release(
            name,
            ReleaseArgs(
                kubeconfig=args.kubeconfig,
                operator=NETWORK_OPERATOR,
                config=config,
                source=ChartSource.configured(config),
                values=values,
            ),
            parent=self,
        )
        rails: pulumi.Output[Sequence[str]] = pulumi.Output.from_input(args.rails)
        taints = read_taints(args.taints)
        spec = rails.apply(lambda found: nic_cluster_policy.render(config, taints, found)["spec"])
        policy = create_custom_resource(
            f"{name}-policy",
            {**nic_cluster_policy.HEAD, "spec": spec},
            # The release brings the CRD.
            pulumi.ResourceOptions(parent=self, depends_on=[made.release], deleted_with=made.release),
        )
        wait = create_cluster_command(
            f"{name}-hcas",
            "wait allocatable",
            NETWORK_OPERATOR.wait_request(config, config.resource, args.nodes),
            args.kubeconfig,
            pulumi.ResourceOptions(parent=self, depends_on=[policy], replacement_trigger=changes(made)),
            triggers=[digest(values), spec.apply(digest), config.version],
        )
        self.installed = made.installed
        self.version = installed_version(made, config.version)
        self.ready = wait.stdout
