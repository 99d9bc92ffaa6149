"""Kueue, and the queues of the pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pulumi

from busbar.components.engine.cluster import create_custom_resource
from busbar.components.engine.helm import Installed, create_release
from stacks.training.package import kueue
from stacks.training.package.config import Training
from stacks.training.package.target import Target


@dataclass(frozen=True, kw_only=True)
class KueueArgs:
    """`helm_values`: the folder with kueue.yaml. `targets`: the pools, by name."""

    training: Training
    targets: Mapping[str, Target]
    helm_values: Path
    kubeconfig: pulumi.Input[str]


class Kueue(pulumi.ComponentResource):
    """Makes the Namespace, the Helm Release, and per pool a ResourceFlavor and a ClusterQueue.

    If Kueue is not enabled it makes nothing, `version` is None and `cluster_queues` is empty. A namespace
    with jobs is made after `cluster_queues`, so that a destroy removes its jobs first. Kubernetes keeps a
    ClusterQueue until its last job is gone.
    """

    version: pulumi.Output[str | None]
    cluster_queues: dict[str, pulumi.Resource]
    """The ClusterQueue of each pool, by the pool's name."""
    installed: Sequence[Installed] = ()
    """What this component installs, for the check at the end of an update."""

    def __init__(self, name: str, args: KueueArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:training:Kueue", name, None, opts)
        self.version, self.cluster_queues = pulumi.Output.from_input(None), {}
        if args.training.kueue.enabled:
            self._install(name, args)
        self.register_outputs({"version": self.version})

    def _install(self, name: str, args: KueueArgs) -> None:
        config = args.training.kueue
        made = create_release(
            name,
            kueue.KUEUE,
            config,
            kueue.values(args.helm_values, args.training),
            args.kubeconfig,
            self,
            timeout_seconds=config.timeout_seconds,
            # While the controller does not run, its webhook refuses every queue and every job.
            await_ready=True,
        )
        self.installed, self.version = made.installed, made.version
        for pool, target in args.targets.items():
            flavor = create_custom_resource(
                f"{name}-flavor-{pool}",
                kueue.flavor(target),
                pulumi.ResourceOptions(parent=self, depends_on=[made.release]),
            )
            self.cluster_queues[pool] = create_custom_resource(
                f"{name}-queue-{pool}",
                kueue.cluster_queue(target, args.training),
                pulumi.ResourceOptions(parent=self, depends_on=[flavor]),
            )
