"""Secondary networks: Multus with whereabouts, and the networks of the pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pulumi
import pulumi_kubernetes as kubernetes

from busbar.components.engine.cluster import create_custom_resource
from busbar.components.engine.helm import Installed, create_release
from stacks.training.package.config import Training
from stacks.training.package.networks.config import by_network_operator
from stacks.training.package.networks.manifests import MULTUS, Manifest, render
from stacks.training.package.target import Target


@dataclass(frozen=True, kw_only=True)
class MultusArgs:
    """`helm_values`: the folder with rke2-multus.yaml."""

    training: Training
    helm_values: Path
    kubeconfig: pulumi.Input[str]


class Multus(pulumi.ComponentResource):
    """Makes the Namespace and the Helm Release of Multus and whereabouts.

    It makes nothing, and `version` is None, if no pool has a network, if the Network Operator installs
    Multus, or if multus.enabled is false.
    """

    version: pulumi.Output[str | None]
    installed: Sequence[Installed] = ()
    """What this component installs, for the check at the end of an update."""

    def __init__(self, name: str, args: MultusArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:training:Multus", name, None, opts)
        self.version = pulumi.Output.from_input(None)
        config, networks = args.training.multus, args.training.networks
        if any(networks.values()) and config.enabled and not by_network_operator(networks):
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
    """`targets`: the pools, by name. `namespace`: namespace of the training run and of the definitions."""

    training: Training
    targets: Mapping[str, Target]
    namespace: kubernetes.core.v1.Namespace


class Networks(pulumi.ComponentResource):
    """Makes the definitions of all networks, or the Network Operator's resources from which it makes them."""

    def __init__(self, name: str, args: NetworksArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:training:Networks", name, None, opts)
        namespace = args.training.namespace
        for pool, networks in args.training.networks.items():
            workers = args.targets[pool].launch.workers
            for network in networks:
                manifests = render(namespace, pool, network, workers)
                self._create(f"{name}-{pool}-{network.name}", manifests, args)
        self.register_outputs({})

    def _create(self, name: str, manifests: list[Manifest], args: NetworksArgs) -> None:
        made: list[pulumi.Resource] = [args.namespace]
        for manifest in manifests:
            opts = pulumi.ResourceOptions(parent=self, depends_on=list(made))
            made.append(create_custom_resource(f"{name}-{manifest['kind'].lower()}", manifest, opts))
