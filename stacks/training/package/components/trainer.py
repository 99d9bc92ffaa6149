"""Kubeflow Trainer v2 with JobSet, and the runtimes of each pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pulumi

from busbar.components.engine.cluster import create_custom_resource
from busbar.components.engine.helm import Installed, create_release
from stacks.training.package.config import Trainer as TrainerConfig
from stacks.training.package.target import Target
from stacks.training.package.trainer import TRAINER, runtimes


@dataclass(frozen=True, kw_only=True)
class TrainerArgs:
    """`helm_values`: the folder with kubeflow-trainer.yaml. `targets`: the pools, by name."""

    config: TrainerConfig
    targets: Mapping[str, Target]
    helm_values: Path
    kubeconfig: pulumi.Input[str]


class Trainer(pulumi.ComponentResource):
    """Makes the Namespace, the Helm Release, and the ClusterTrainingRuntimes of each pool.

    If Trainer is not enabled it makes nothing, `version` is None and `runtimes` is empty.
    """

    version: pulumi.Output[str | None]
    runtimes: list[str]
    """Names of the runtimes."""
    installed: Sequence[Installed] = ()
    """What this component installs, for the check at the end of an update."""

    def __init__(self, name: str, args: TrainerArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:training:Trainer", name, None, opts)
        self.version, self.runtimes = pulumi.Output.from_input(None), []
        if args.config.enabled:
            self._install(name, args)
        self.register_outputs({"version": self.version, "runtimes": self.runtimes})

    def _install(self, name: str, args: TrainerArgs) -> None:
        made = create_release(
            name,
            TRAINER,
            args.config,
            TRAINER.values(args.helm_values, args.config),
            args.kubeconfig,
            self,
            timeout_seconds=args.config.timeout_seconds,
            # While the controller does not run, its webhook refuses every runtime.
            await_ready=True,
        )
        self.installed, self.version = made.installed, made.version
        manifests = [each for target in args.targets.values() for each in runtimes(target, args.config)]
        for manifest in manifests:
            runtime = manifest["metadata"]["name"]
            create_custom_resource(
                f"{name}-{runtime.removeprefix('busbar-')}",
                manifest,
                pulumi.ResourceOptions(parent=self, depends_on=[made.release]),
            )
            self.runtimes.append(runtime)
