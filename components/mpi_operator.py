"""Kubeflow MPI Operator from our own chart, done when its Deployment is available."""

from dataclasses import dataclass
from pathlib import Path

import pulumi

from busbar.components.engine.helm import HelmOperator, OperatorArgs
from busbar.components.engine.local_command import from_project
from busbar.config import Chart
from busbar.config import cluster as models
from busbar.manifests.operators import MPI_OPERATOR

CHART = Path(__file__).resolve().parents[1] / "charts" / "mpi-operator"


@dataclass(frozen=True, kw_only=True)
class MpiOperatorArgs(OperatorArgs):
    """The cluster of the operator, and its image."""

    config: models.MpiOperator


class MpiOperator(HelmOperator):
    """Makes the Namespace and the Helm Release of charts/mpi-operator, which carries the CRD.

    If another tool has installed the operator it makes nothing.
    """

    def __init__(self, name: str, args: MpiOperatorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(
            MPI_OPERATOR,
            name,
            args,
            opts,
            chart=Chart(chart=from_project(str(CHART))),
            image=args.config.image,
            # Nothing after the release would notice that the controller does not run.
            await_ready=True,
        )
        self.register_outputs({"version": self.version})
