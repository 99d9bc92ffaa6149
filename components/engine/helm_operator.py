"""The base of the operators: a Helm release, and the wait for the devices that its pods offer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

from busbar.components.engine.local_command import create_cluster_command
from busbar.components.engine.release import HELM_VALUES, InstalledRelease, changes, create_release
from busbar.components.engine.update_end import Installed
from busbar.config import operators
from busbar.config.operators import Chart
from busbar.config.pools import Taint
from busbar.manifests.names import digest
from busbar.manifests.operators import Operator


@dataclass(frozen=True, kw_only=True)
class OperatorArgs:
    """The cluster of an operator, and its section of `busbar:cluster`."""

    kubeconfig: pulumi.Input[str]
    config: operators.GpuOperator | operators.NetworkOperator | operators.MpiOperator


@dataclass(frozen=True, kw_only=True)
class DeviceOperatorArgs(OperatorArgs):
    """`nodes`: Node name -> number of devices that it must offer in the end. `taints`: of these Nodes."""

    config: operators.GpuOperator | operators.NetworkOperator
    nodes: Mapping[str, int]
    taints: Sequence[Taint] = ()


class HelmOperator(pulumi.ComponentResource):
    """Makes the Namespace and the Helm Release; neither if another tool has installed the operator."""

    version: pulumi.Output[str | None]
    """The version that runs; None if another tool has installed it."""
    releases: list[kubernetes.helm.v3.Release]
    """The Helm Release; empty if another tool has installed the operator."""
    installed: Sequence[Installed]
    """The namespace and the release, for the check at the end of an update."""

    def __init__(
        self,
        operator: Operator,
        name: str,
        args: OperatorArgs,
        opts: pulumi.ResourceOptions | None,
        *,
        chart: Chart,
        taints: Sequence[Taint] = (),
        image: str | None = None,
        await_ready: bool = False,
    ) -> None:
        """Further arguments: as those of `create_release`."""
        super().__init__(f"busbar:index:{type(self).__name__}", name, None, opts)
        self._operator, config = operator, args.config
        self._values = operator.values(HELM_VALUES, config, taints)
        self._made: list[InstalledRelease] = []
        self.version = pulumi.Output.from_input(None)
        if config.enabled:
            made = create_release(
                name,
                operator,
                chart,
                self._values,
                args.kubeconfig,
                self,
                timeout_seconds=config.timeout_seconds,
                image=image,
                await_ready=await_ready,
            )
            self._made, self.version = [made], made.version
        self.releases = [each.release for each in self._made]
        self.installed = [each for made in self._made for each in made.installed]

    def _wait_for_devices(
        self,
        name: str,
        resource: str,
        args: DeviceOperatorArgs,
        after: Sequence[pulumi.Resource],
        *triggers: pulumi.Input[Any],
    ) -> pulumi.Output[str]:
        """Register the Command that waits until all Nodes offer their units of `resource`."""
        wait = create_cluster_command(
            name,
            "wait allocatable",
            self._operator.wait_request(args.config, resource, args.nodes),
            args.kubeconfig,
            pulumi.ResourceOptions(parent=self, depends_on=after, replacement_trigger=changes(*self._made)),
            triggers=[digest(self._values), *triggers, args.config.version],
        )
        return wait.stdout
