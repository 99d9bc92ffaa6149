"""The three operators: chart, version, and values merged over those of helm_values/."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from busbar import versions
from busbar.config.kubernetes_values import (
    ChartName,
    ChartVersion,
    Image,
    ImageFolder,
    ResourceName,
    is_local_chart,
    repository_of,
)
from busbar.config.values import JsonObject, Offered, Seconds, Url
from busbar.models import ConfigModel

HCA_RESOURCE = "nvidia.com/hostdev"
_ENABLED = "Install it; false if another tool has installed it."
_CHART = "Name of the chart, a local path, or an oci:// URL."
_VALUES = "Values merged over helm_values/; lists are replaced."


class Chart(ConfigModel):
    """A Helm chart: by name from a repository, as an oci:// URL, or as a local folder or archive."""

    # A folder or an archive has one version, which is not configured.
    version: ChartVersion = ""
    repository: Url | None = Field(
        default=versions.NVIDIA_CHARTS,
        description="Helm repository; not used for a local chart or an oci:// URL.",
    )
    chart: ChartName
    values: JsonObject = Field(default={}, description=_VALUES)
    enabled: bool = Field(default=True, description=_ENABLED)

    @property
    def is_local(self) -> bool:
        """True if `chart` is a path on the machine that runs Pulumi."""
        return is_local_chart(self.chart)

    @property
    def repository_url(self) -> str | None:
        """The repository of the chart, or None if `chart` is a path or a URL itself."""
        return repository_of(self.chart, self.repository)


class GpuOperator(Chart):
    """NVIDIA GPU Operator: driver, container toolkit, device plugin -> `nvidia.com/gpu`."""

    version: Annotated[ChartVersion, Offered(lambda: versions.GPU_OPERATORS)] = Field(
        default=versions.GPU_OPERATOR, description="Version of the chart, with a leading v."
    )
    chart: ChartName = Field(default="gpu-operator", description=_CHART)
    timeout_seconds: Seconds = Field(
        default=1800,
        description="Time until every GPU must be allocatable, in seconds; 5 s per worker are added.",
    )


class NetworkOperator(Chart):
    """NVIDIA Network Operator: SR-IOV device plugin -> allocatable HCAs."""

    version: Annotated[ChartVersion, Offered(lambda: versions.NETWORK_OPERATORS)] = Field(
        default=versions.NETWORK_OPERATOR, description="Version of the chart, without a leading v."
    )
    chart: ChartName = Field(default="network-operator", description=_CHART)
    timeout_seconds: Seconds = Field(
        default=900,
        description="Time until every HCA must be allocatable, in seconds; 20 s per worker are added: "
        "device plugins are replaced one node at a time.",
    )
    resource: ResourceName = Field(
        default=HCA_RESOURCE, description="Name of the extended resource for the HCAs."
    )
    selectors: JsonObject = Field(
        default={},
        description="Selectors of the SR-IOV device plugin merged over the defaults: vendor 15b3, RDMA, and "
        "pciAddresses with the rails that preflight has found.",
    )
    image_repository: ImageFolder = Field(
        default=versions.NETWORK_OPERATOR_IMAGES, description="Registry folder of the operands' images."
    )
    secondary_networks: bool = Field(
        default=False,
        description="Also run Multus, CNI plugins, IPoIB and nv-ipam, for secondary networks.",
    )


class MpiOperator(ConfigModel):
    """Kubeflow MPI Operator, from charts/mpi-operator of this project."""

    enabled: bool = Field(default=True, description=_ENABLED)
    image: Image = Field(default=versions.MPI_OPERATOR_IMAGE, description="Image of the controller.")
    values: JsonObject = Field(default={}, description=_VALUES)
    timeout_seconds: Seconds = Field(
        default=300, description="Time until the controller must be available, in seconds."
    )
