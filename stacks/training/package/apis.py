"""The configuration of APIs for jobs: Kubeflow Trainer v2 and Training Operator v1."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from busbar.config.cluster import Chart
from busbar.config.types import ChartName, ChartVersion, Image, JsonObject, Seconds, Url, invalid
from busbar.models import ConfigModel
from stacks.training.package import versions


class DeepSpeed(ConfigModel):
    """A ClusterTrainingRuntime per pool whose ranks are started by mpirun, as DeepSpeed's are."""

    enabled: bool = Field(default=False, description="Make the runtimes busbar-deepspeed-<pool>.")
    image: Image = Field(
        default=versions.DEEPSPEED_IMAGE,
        description="Image with Open MPI, and an sshd that user 1000 may run by /home/mpiuser/.sshd_config.",
    )


class OciChart(Chart):
    """A chart that is installed if enabled, by default from an oci:// URL."""

    enabled: bool = Field(default=False, description="Install it.")
    repository: Url | None = Field(
        default=None, description="Helm repository; not used for a local chart or an oci:// URL."
    )
    values: JsonObject = Field(
        default={}, description="Values merged over stacks/training/helm_values/; lists are replaced."
    )


class Trainer(OciChart):
    """Kubeflow Trainer v2 with JobSet, and a ClusterTrainingRuntime per pool, which TrainJobs refer to."""

    version: ChartVersion = Field(default=versions.TRAINER, description="Version of the chart.")
    chart: ChartName = Field(
        default=versions.TRAINER_CHART, description="Name of the chart, a local path, or an oci:// URL."
    )
    timeout_seconds: Seconds = Field(
        default=600, description="Time until the controllers must be available, in seconds."
    )
    image: Image = Field(
        default=versions.TORCH_IMAGE, description="Image of the runtimes; a TrainJob may name another."
    )
    deepspeed: DeepSpeed = Field(default=DeepSpeed(), description="Runtimes for mpirun.")


def _kind(value: Any) -> Any:
    if value == "MPIJob":
        raise invalid(
            "has the CRD name of the MPI Operator's (mpijobs.kubeflow.org), and a cluster has one of them",
            "write an MPIJob of kubeflow.org/v2beta1",
        )
    return value


JobKind = Annotated[
    Literal["PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob"], BeforeValidator(_kind)
]


class TrainingOperator(ConfigModel):
    """Kubeflow Training Operator v1, from charts/training-operator of this project."""

    enabled: bool = Field(default=False, description="Install it.")
    kinds: list[JobKind] = Field(
        default=["PyTorchJob"], min_length=1, description="The kinds of kubeflow.org/v1 to install."
    )
    image: Image = Field(
        default=versions.TRAINING_OPERATOR_IMAGE, description="Image of the controller; its tags are commits."
    )
    init_image: Image = Field(
        default=versions.INIT_IMAGE,
        description="Image in which a PyTorchJob's workers wait for their master; it must have nslookup.",
    )
    values: JsonObject = Field(
        default={}, description="Values merged over stacks/training/helm_values/; lists are replaced."
    )
    timeout_seconds: Seconds = Field(
        default=300, description="Time until the controller must be available, in seconds."
    )
