"""Secondary networks: Multus with whereabouts, and the networks of the pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pulumi
import pulumi_kubernetes as kubernetes

from busbar.components.engine.cluster import create_custom_resource
from busbar.components.engine.helm import Installed, create_release
from stacks.training.package.config import Training
from stacks.training.package.networks import MULTUS, definition


@dataclass(frozen=True, kw_only=True)
class MultusArgs:
    """`helm_values`: the folder with rke2-multus.yaml."""

    training: Training
    helm_values: Path
    kubeconfig: pulumi.Input[str]


class Multus(pulumi.ComponentResource):
    """Makes the Namespace and the Helm Release of Multus and whereabouts.

    It makes nothing, and `version` is None, if no pool has a network, or if multus.enabled is false.
    """

    version: pulumi.Output[str | None]
    installed: Sequence[Installed] = ()
    """What this component installs, for the check at the end of an update."""

    def __init__(self, name: str, args: MultusArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:training:Multus", name, None, opts)
        self.version = pulumi.Output.from_input(None)
        config, networks = args.training.multus, args.training.networks
        if any(networks.values()) and config.enabled:
            made = create_release(
                name,
                MULTUS,
                config,
                MULTUS.values(args.helm_values, config),
                args.kubeconfig,
                self,
                timeout_seconds=config.timeout_seconds,
                # A pod that starts on a node before Multus runs there only has eth0.
                await_ready=True,
            )
            self.installed, self.version = made.installed, made.version
        self.register_outputs({"version": self.version})


@dataclass(frozen=True, kw_only=True)
class NetworksArgs:
    """`namespace`: namespace of the training run and of the definitions."""

    training: Training
    namespace: kubernetes.core.v1.Namespace


class Networks(pulumi.ComponentResource):
    """Makes the NetworkAttachmentDefinitions of all networks."""

    def __init__(self, name: str, args: NetworksArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:training:Networks", name, None, opts)
        for pool, networks in args.training.networks.items():
            for network in networks:
                create_custom_resource(
                    f"{name}-{pool}-{network.name}",
                    definition(args.training.namespace, pool, network),
                    pulumi.ResourceOptions(parent=self, depends_on=[args.namespace]),
                )
        self.register_outputs({})
