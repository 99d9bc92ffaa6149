"""Kubeflow MPI Operator from our own chart, done when its Deployment is available."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi

from busbar.config.operators import MpiOperator as MpiOperatorConfig
from busbar.kube import values
from components import operator_release

NAMESPACE = "mpi-operator"
CHART = "./charts/mpi-operator"


@dataclass(frozen=True, kw_only=True)
class MpiOperatorArgs:
    """`deleted_with` is the resource without which the cluster is gone, and the release with it."""

    config: MpiOperatorConfig
    deleted_with: pulumi.Resource | None = None


class MpiOperator(pulumi.ComponentResource):
    """A namespace and the Helm release of charts/mpi-operator, which carries the CRD."""

    version: pulumi.Output[str]

    def __init__(self, name: str, args: MpiOperatorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:index:MpiOperator", name, {}, opts)
        config = args.config
        namespace = operator_release.namespace(
            f"{name}-namespace",
            NAMESPACE,
            pulumi.ResourceOptions(parent=self, deleted_with=args.deleted_with),
        )
        release = operator_release.release(
            f"{name}-release",
            name="mpi-operator",
            namespace=namespace,
            chart=CHART,
            version=None,
            repository=None,
            values=values.mpi_operator(operator_release.HELM_VALUES, config),
            timeout_seconds=config.timeout_seconds,
            # Nothing comes after it that would notice a controller that does not run.
            await_ready=True,
            parent=self,
            deleted_with=args.deleted_with,
        )
        # The chart says which version it was made for; what runs is the image.
        image = config.image.rpartition("/")[2]
        tag = image.partition("@")[0].partition(":")[2] or image.partition("@")[2]
        self.version = pulumi.Output.from_input(release.status).apply(lambda _: tag)
        self.register_outputs({"version": self.version})
