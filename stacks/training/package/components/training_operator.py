"""Kubeflow Training Operator v1 from our own chart, done when its Deployment is available."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pulumi

from busbar.components.engine.helm import Installed, create_release
from busbar.components.engine.local_command import from_project
from busbar.config import Chart
from stacks.training.package.config import TrainingOperator as TrainingOperatorConfig
from stacks.training.package.training_operator import TRAINING_OPERATOR

CHART = Path(__file__).resolve().parents[2] / "charts" / "training-operator"


@dataclass(frozen=True, kw_only=True)
class TrainingOperatorArgs:
    """`helm_values`: the folder with training-operator.yaml."""

    config: TrainingOperatorConfig
    helm_values: Path
    kubeconfig: pulumi.Input[str]


class TrainingOperator(pulumi.ComponentResource):
    """Makes the Namespace and the Helm Release of charts/training-operator, with the CRDs of its kinds.

    If the operator is not enabled it makes nothing, and `version` is None.
    """

    version: pulumi.Output[str | None]
    installed: Sequence[Installed] = ()
    """What this component installs, for the check at the end of an update."""

    def __init__(
        self, name: str, args: TrainingOperatorArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("busbar:training:TrainingOperator", name, None, opts)
        self.version = pulumi.Output.from_input(None)
        if args.config.enabled:
            made = create_release(
                name,
                TRAINING_OPERATOR,
                Chart(chart=from_project(str(CHART))),
                TRAINING_OPERATOR.values(args.helm_values, args.config),
                args.kubeconfig,
                self,
                timeout_seconds=args.config.timeout_seconds,
                image=args.config.image,
                # While the controller does not run, its webhook refuses every job.
                await_ready=True,
            )
            self.installed, self.version = made.installed, made.version
        self.register_outputs({"version": self.version})
