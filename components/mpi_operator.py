"""Kubeflow MPI Operator from our own chart, done when its Deployment is available."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi

from busbar.config.operators import MpiOperator as MpiOperatorConfig
from busbar.manifests.operators import MPI_OPERATOR
from components import operator_release

CHART = "./charts/mpi-operator"


@dataclass(frozen=True, kw_only=True)
class MpiOperatorArgs:
    """`deleted_with` is the resource without which the cluster is gone, and the release with it."""

    config: MpiOperatorConfig
    kubeconfig: pulumi.Input[str]
    deleted_with: pulumi.Resource | None = None


class MpiOperator(pulumi.ComponentResource):
    """A namespace and the Helm release of charts/mpi-operator, which carries the CRD.

    Where the operator is not enabled it is nothing, and `version` is None.
    """

    version: pulumi.Output[str | None]

    def __init__(self, name: str, args: MpiOperatorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:index:MpiOperator", name, {}, opts)
        self.version = pulumi.Output.from_input(None)
        if args.config.enabled:
            self._install(name, args)
        self.register_outputs({"version": self.version})

    def _install(self, name: str, args: MpiOperatorArgs) -> None:
        config = args.config
        release = operator_release.release(
            f"{name}-release",
            operator=MPI_OPERATOR,
            namespace=operator_release.namespace(
                f"{name}-namespace",
                MPI_OPERATOR.namespace,
                pulumi.ResourceOptions(parent=self, deleted_with=args.deleted_with),
            ),
            chart=CHART,
            version=None,
            repository=None,
            values=MPI_OPERATOR.values(operator_release.HELM_VALUES, config),
            timeout_seconds=config.timeout_seconds,
            kubeconfig=args.kubeconfig,
            # Nothing comes after it that would notice a controller that does not run.
            await_ready=True,
            parent=self,
            deleted_with=args.deleted_with,
        )
        # The chart says which version it was made for; what runs is the image.
        version = image_version(config.image)
        self.version = pulumi.Output.from_input(release.status).apply(lambda _: version)


def image_version(image: str) -> str:
    """The tag of an image reference, else its digest, else "latest": what a runtime would take."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return tag or digest or "latest"
