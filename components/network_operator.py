"""NVIDIA Network Operator and our NicClusterPolicy, done when every worker offers its HCAs."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from busbar.components.engine.cluster import create_custom_resource
from busbar.components.engine.helm import DeviceOperatorArgs, HelmOperator
from busbar.config import cluster as models
from busbar.manifests import operators
from busbar.manifests.names import digest
from busbar.manifests.operators import NETWORK_OPERATOR


@dataclass(frozen=True, kw_only=True)
class NetworkOperatorArgs(DeviceOperatorArgs):
    """`nodes`: Node name -> number of HCAs. `rails`: their PCI addresses, such as 0000:1b:00.0."""

    config: models.NetworkOperator
    rails: pulumi.Input[Sequence[str]]


class NetworkOperator(HelmOperator):
    """Makes the Namespace, the Helm Release, the NicClusterPolicy, and a Command that waits for the HCAs.

    The chart's rules need the CRD of node-feature-discovery, which the GPU Operator brings. If another tool
    has installed the operator it makes nothing: how many units that offers per HCA is not known here, and a
    job that finds none says so.
    """

    ready: pulumi.Output[str | None]

    def __init__(
        self, name: str, args: NetworkOperatorArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(NETWORK_OPERATOR, name, args, opts, chart=args.config)
        self.ready = pulumi.Output.from_input(None)
        if args.config.enabled:
            [release] = self.releases
            rails: pulumi.Output[Sequence[str]] = pulumi.Output.from_input(args.rails)
            spec = rails.apply(lambda found: operators.render_policy(args.config, args.taints, found)["spec"])
            policy = create_custom_resource(
                f"{name}-policy",
                {**operators.HEAD, "spec": spec},
                # The release brings the CRD.
                pulumi.ResourceOptions(parent=self, depends_on=[release], deleted_with=release),
            )
            self.ready = self._wait_for_devices(
                f"{name}-hcas", args.config.resource, args, [policy], spec.apply(digest)
            )
        self.register_outputs({"version": self.version, "ready": self.ready})
