"""The three operators: chart, version, and what is laid over our values."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from busbar import versions
from busbar.config.values import Int, LabelKey, Model, NonEmpty, Url

Seconds = Annotated[Int, Field(ge=1)]


class Chart(Model):
    """A Helm chart: by name from a repository, as an oci:// URL, or as a local folder or archive."""

    version: NonEmpty
    repository: Url | None = Field(
        default=versions.NVIDIA_CHARTS,
        description="Helm repository; not used for a local chart or an oci:// URL.",
    )
    chart: NonEmpty
    values: dict[str, Any] = Field(
        default={}, description="Values laid over those of helm_values/; lists are replaced."
    )

    @property
    def is_local(self) -> bool:
        """Whether `chart` is a path on the machine that runs Pulumi."""
        return self.chart.startswith((".", "/", "~")) or self.chart.endswith(".tgz")

    @property
    def repository_url(self) -> str | None:
        """The repository to ask, or None where the chart itself says where it lies."""
        return None if self.is_local or self.chart.startswith("oci://") else self.repository


class GpuOperator(Chart):
    """NVIDIA GPU Operator: driver, container toolkit, device plugin -> `nvidia.com/gpu`."""

    enabled: bool = Field(default=True, description="Install it; false where another tool already has.")
    version: NonEmpty = Field(
        default=versions.GPU_OPERATOR, description="Version of the chart, with a leading v."
    )
    chart: NonEmpty = Field(
        default="gpu-operator", description="Name of the chart, a local path, or an oci:// URL."
    )
    timeout_seconds: Seconds = Field(
        default=1800, description="How long every GPU may take to become allocatable."
    )


class NetworkOperator(Chart):
    """NVIDIA Network Operator: SR-IOV device plugin -> allocatable HCAs."""

    enabled: bool = Field(default=True, description="Install it; false where another tool already has.")
    version: NonEmpty = Field(
        default=versions.NETWORK_OPERATOR, description="Version of the chart, without a leading v."
    )
    chart: NonEmpty = Field(
        default="network-operator", description="Name of the chart, a local path, or an oci:// URL."
    )
    timeout_seconds: Seconds = Field(
        default=900, description="How long every HCA may take to become allocatable."
    )
    resource: LabelKey = Field(
        default="nvidia.com/hostdev", description="Name of the extended resource for the HCAs."
    )
    selectors: dict[str, Any] = Field(
        default={},
        description="Selectors of the device plugin laid over ours (vendor 15b3, RDMA, link type of the "
        "pools), such as {pfNames: [ib0, ib1]} where another port matches too.",
    )
    image_repository: NonEmpty = Field(
        default=versions.NETWORK_OPERATOR_IMAGES, description="Registry folder of the device plugin's image."
    )
    image_tag: NonEmpty | None = Field(
        default=None, description="Tag of the device plugin's image; by default network-operator-v<version>."
    )


class MpiOperator(Model):
    """Kubeflow MPI Operator, from charts/mpi-operator of this project."""

    enabled: bool = Field(default=True, description="Install it; false where another tool already has.")
    image: NonEmpty = Field(default=versions.MPI_OPERATOR_IMAGE, description="Image of the controller.")
    values: dict[str, Any] = Field(
        default={}, description="Values laid over those of helm_values/; lists are replaced."
    )
    timeout_seconds: Seconds = Field(
        default=300, description="How long the controller may take to become available."
    )
