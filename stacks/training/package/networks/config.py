"""`networks` and `multus`: the networks of each pool, and the Multus that attaches them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from busbar.config.cluster import Chart
from busbar.config.types import (
    ChartName,
    ChartVersion,
    Cidr,
    DnsLabel,
    Int,
    InterfaceName,
    JsonObject,
    ResourceName,
    Seconds,
    Url,
    invalid,
)
from busbar.models import ConfigModel
from stacks.training.package import versions


def _ipam_type(value: Any) -> Any:
    if value == "host-local":
        raise invalid(
            "keeps its state in a file on each node, so pods on two nodes get the same address",
            "whereabouts or nv-ipam",
        )
    return value


def _master(value: str) -> str:
    if value.startswith("mlx"):
        raise invalid(
            "is the name of an RDMA device, expected that of its network interface",
            f"`ls /sys/class/infiniband/{value}/device/net` on a worker",
        )
    if value == "eth0":
        raise invalid(
            "is the first interface of a host, expected that of a rail: on a VM the hypervisor drops frames "
            "from a MAC address that it did not give",
            "name the rail's interface; on a VM use host-device",
        )
    return value


class Ipam(ConfigModel):
    """The source of the addresses. Each is unique in the cluster, not only on its node."""

    type: Annotated[Literal["whereabouts", "nv-ipam"], BeforeValidator(_ipam_type)] = Field(
        description="whereabouts: installed here, with Multus. nv-ipam: by the Network Operator, which then "
        "brings Multus too (network_operator.secondary_networks of the cluster's stack)."
    )
    subnet: Cidr = Field(description="Addresses of the network; each rail has a subnet of its own.")
    exclude: list[Cidr] = Field(default=[], description="Parts of the subnet that pods must not get.")
    addresses_per_node: Annotated[Int, Field(ge=2)] | None = Field(
        default=None, description="Only nv-ipam: the block of addresses of each node."
    )


class Network(ConfigModel):
    """One network of a pool: one more interface of its pods, or one per device."""

    name: DnsLabel = Field(description="Name of the network, such as rail0.")
    type: Literal["macvlan", "host-device", "ib-sriov", "ipoib"] = Field(
        description="macvlan: shares an Ethernet rail (RoCE). host-device: gives the pod whole devices. "
        "ib-sriov: InfiniBand VFs. ipoib: IP over InfiniBand."
    )
    master: Annotated[InterfaceName, AfterValidator(_master)] | None = Field(
        default=None, description="macvlan and ipoib: the rail's network interface on every worker."
    )
    mode: Literal["bridge", "private", "vepa", "passthru"] | None = Field(
        default=None, description="macvlan: its mode; by default bridge."
    )
    mtu: Annotated[Int, Field(ge=1280, le=9978)] | None = Field(
        default=None,
        description="macvlan: MTU; by default the master's. RDMA uses 4096 only below a larger one.",
    )
    resource: ResourceName | None = Field(
        default=None,
        description="host-device and ib-sriov: the extended resource whose devices are the interfaces.",
    )
    count: Annotated[Int, Field(ge=1, le=64)] | None = Field(
        default=None,
        description="host-device and ib-sriov: devices per pod; by default those of the validation, else 1.",
    )
    ipam: Ipam = Field(description="Its addresses.")


class Multus(Chart):
    """Multus with whereabouts: the chart rke2-multus, which the documentation of K3s names."""

    enabled: bool = Field(
        default=True,
        description="Install it where a network uses whereabouts; false if another tool has installed both.",
    )
    version: ChartVersion = Field(
        default=versions.MULTUS, description="Version of the chart, with a leading v."
    )
    repository: Url | None = Field(
        default=versions.RKE2_CHARTS,
        description="Helm repository; not used for a local chart or an oci:// URL.",
    )
    chart: ChartName = Field(
        default="rke2-multus", description="Name of the chart, a local path, or an oci:// URL."
    )
    values: JsonObject = Field(
        default={}, description="Values merged over stacks/training/helm_values/; lists are replaced."
    )
    timeout_seconds: Seconds = Field(
        default=300, description="Time until it must run on every node, in seconds."
    )


def by_network_operator(networks: Mapping[str, Iterable[Network]]) -> bool:
    """Whether the Network Operator makes the networks: nv-ipam is a part of it, and then so is Multus."""
    return any(network.ipam.type == "nv-ipam" for each in networks.values() for network in each)
