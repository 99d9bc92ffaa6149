"""Kubeflow MPI Operator from our own chart, done when its Deployment is available."""

from pathlib import Path

import pulumi

from busbar.components.engine.helm import HelmOperator
from busbar.components.engine.local_command import from_project
from busbar.config import Chart
from busbar.config import cluster as models
from busbar.manifests.operators import MPI_OPERATOR

CHART = Path(__file__).resolve().parents[1] / "charts" / "mpi-operator"


class MpiOperator(HelmOperator):
    """Makes the Namespace and the Release of charts/mpi-operator, if it is not installed by others."""

    def __init__(
        self,
        name: str,
        opts: pulumi.ResourceOptions | None = None,
        *,
        kubeconfig: pulumi.Input[str],
        config: models.MpiOperator,
    ) -> None:
        super().__init__(
            MPI_OPERATOR,
            name,
            opts,
            kubeconfig=kubeconfig,
            config=config,
            chart=Chart(chart=from_project(str(CHART))),
            image=config.image,
            # Nothing after the release would notice that the controller does not run.
            await_ready=True,
        )
        self.register_outputs({"version": self.version})
