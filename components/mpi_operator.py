"""Kubeflow MPI Operator from our own chart, done when its Deployment is available."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi

from busbar.components.engine.local_command import from_project
from busbar.components.engine.release import HELM_VALUES, ChartSource, ReleaseArgs, create_release
from busbar.components.engine.update_end import Installed
from busbar.config import operators, section
from busbar.hosts.inventory import Inventory
from busbar.manifests.operators import MPI_OPERATOR

CHART = Path(__file__).resolve().parents[1] / "charts" / "mpi-operator"


@dataclass(frozen=True, kw_only=True)
class MpiOperatorArgs:
    """The cluster of the operator. `settings`: as `mpi_operator` of `busbar:cluster`."""

    kubeconfig: pulumi.Input[str]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, inventory: Inventory, kubeconfig: pulumi.Input[str]) -> "MpiOperatorArgs":
        """The arguments of a configuration."""
        return cls(kubeconfig=kubeconfig, settings=MPI_OPERATOR.settings(inventory.cluster))


class MpiOperator(pulumi.ComponentResource):
    """Makes the Namespace and the Helm Release of charts/mpi-operator, which carries the CRD.

    If the operator is not enabled it makes nothing, and `version` is None.
    """

    version: pulumi.Output[str | None]

    def __init__(self, name: str, args: MpiOperatorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:index:MpiOperator", name, None, opts)
        config = section(operators.MpiOperator, "mpi_operator", args.settings)
        # The namespace and the release, for the check at the end of an update.
        self.installed: Sequence[Installed] = ()
        self.version = pulumi.Output.from_input(None)
        if config.enabled:
            made = create_release(
                name,
                ReleaseArgs(
                    kubeconfig=args.kubeconfig,
                    operator=MPI_OPERATOR,
                    config=config,
                    source=ChartSource(chart=from_project(str(CHART))),
                    values=MPI_OPERATOR.values(HELM_VALUES, config),
                    # Nothing after the release would notice that the controller does not run.
                    await_ready=True,
                ),
                parent=self,
            )
            self.installed = made.installed
            # The chart has the version that it was made for, but the image is what runs.
            version = image_version(config.image)
            self.version = pulumi.Output.from_input(made.release.status).apply(lambda _: version)
        self.register_outputs({"version": self.version})


def image_version(image: str) -> str:
    """The tag of an image reference, else its digest, else "latest", as a runtime would pull it."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return tag or digest or "latest"
