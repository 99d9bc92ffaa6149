"""Kubeflow MPI Operator from our own chart, done when its Deployment is available."""

from __future__ import annotations

import pulumi

from busbar.manifests.operators import MPI_OPERATOR
from components.engine.release import HELM_VALUES, ChartSource, OperatorArgs, ReleaseArgs, create_release

CHART = "./charts/mpi-operator"


class MpiOperator(pulumi.ComponentResource):
    """Makes the Namespace and the Helm Release of charts/mpi-operator, which carries the CRD.

    Where the operator is not enabled it makes nothing, and `version` is None.
    """

    version: pulumi.Output[str | None]

    def __init__(self, name: str, args: OperatorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:index:MpiOperator", name, None, opts)
        self.version = pulumi.Output.from_input(None)
        if args.inventory.cluster.mpi_operator.enabled:
            self._install(name, args)
        self.register_outputs({"version": self.version})

    def _install(self, name: str, args: OperatorArgs) -> None:
        config = args.inventory.cluster.mpi_operator
        release = create_release(
            name,
            ReleaseArgs(
                cluster=args,
                operator=MPI_OPERATOR,
                config=config,
                source=ChartSource(chart=CHART),
                values=MPI_OPERATOR.values(HELM_VALUES, config),
                # Nothing after the release would notice a controller that does not run.
                await_ready=True,
                after=args.after,
            ),
            parent=self,
        )
        # The chart says which version it was made for; what runs is the image.
        version = image_version(config.image)
        self.version = pulumi.Output.from_input(release.status).apply(lambda _: version)


def image_version(image: str) -> str:
    """The tag of an image reference, else its digest, else "latest": what a runtime would take."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return tag or digest or "latest"
