"""NVIDIA Network Operator and our NicClusterPolicy, done when every worker offers its HCAs."""

from collections.abc import Mapping, Sequence
from functools import partial

import pulumi

from busbar.components.engine.cluster import create_custom_resource
from busbar.components.engine.helm import HelmOperator, check_upgrade
from busbar.config import cluster as models
from busbar.config.cluster import Taint
from busbar.exits import Failed
from busbar.kube.client import Api
from busbar.kube.objects import find
from busbar.manifests import operators
from busbar.manifests.names import digest
from busbar.manifests.operators import NETWORK_OPERATOR


def check_change(config: models.NetworkOperator, api: Api) -> None:
    """Raise Failed where the chart leaves out a major release, or the policy is one of others.

    The provider would adopt it: its spec would be merged with ours, and a destroy would delete it.
    """
    check_upgrade(NETWORK_OPERATOR, config, api)
    name, labels = operators.HEAD["metadata"]["name"], operators.HEAD["metadata"]["labels"]
    found = find(api, f"/apis/{operators.HEAD['apiVersion']}/nicclusterpolicies/{name}")
    if found and not labels.items() <= (found["metadata"].get("labels") or {}).items():
        raise Failed(
            f"NicClusterPolicy {name} exists, and busbar has not made it; it was not changed",
            "to use the operator that it belongs to: network_operator.enabled: false; if nobody needs it: "
            f"kubectl delete nicclusterpolicy {name}",
        )


class NetworkOperator(HelmOperator):
    """Makes the Namespace, the Helm Release, the NicClusterPolicy, and a Command that waits for the HCAs.

    The chart's rules need the CRD of node-feature-discovery, which the GPU Operator brings. If another tool
    has installed the operator it makes nothing: how many units that offers per HCA is not known here, and a
    job that finds none says so. `nodes`: Node name -> number of HCAs. `taints`: those of these Nodes.
    `rails`: PCI addresses of the HCAs, such as 0000:1b:00.0.
    """

    def __init__(
        self,
        name: str,
        opts: pulumi.ResourceOptions | None = None,
        *,
        kubeconfig: pulumi.Input[str],
        config: models.NetworkOperator,
        nodes: Mapping[str, int],
        rails: pulumi.Input[Sequence[str]],
        taints: Sequence[Taint] = (),
    ) -> None:
        super().__init__(
            NETWORK_OPERATOR,
            name,
            opts,
            kubeconfig=kubeconfig,
            config=config,
            chart=config,
            before_change=partial(check_change, config),
        )
        if config.enabled:
            [release] = self.releases
            spec = pulumi.Output.from_input(rails).apply(
                lambda found: operators.render_policy(config, taints, found)["spec"]
            )
            policy = create_custom_resource(
                f"{name}-policy",
                {**operators.HEAD, "spec": spec},
                # The release brings the CRD.
                pulumi.ResourceOptions(parent=self, depends_on=[release], deleted_with=release),
            )
            self._wait_for_devices(
                f"{name}-hcas", config, config.resource, nodes, [policy], spec.apply(digest)
            )
        self.register_outputs({"version": self.version})
