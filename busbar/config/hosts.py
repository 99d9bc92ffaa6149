"""The hosts: load balancers, an odd number of servers, the workers, perhaps an NFS server."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from busbar.config.kubernetes_values import DnsLabel
from busbar.config.network_values import Address, HostKey, InterfaceName, IpAddress, Port, UserName
from busbar.config.topology import Topology
from busbar.config.values import Int, NonEmpty, invalid
from busbar.models import ConfigModel


class HostConfig(ConfigModel):
    """One machine that is reachable over SSH."""

    name: DnsLabel = Field(description="Name of the host; for servers and workers also the name of the node.")
    address: Address = Field(description="IP address or host name, for SSH and for the cluster's traffic.")
    host_key: HostKey = Field(description="The host's ed25519 host key: `ssh-keyscan -t ed25519 ADDRESS`.")
    user: UserName | None = Field(default=None, description="Login on this host; by default ssh.user.")
    port: Port | None = Field(default=None, description="SSH port of this host; by default ssh.port.")


class Worker(HostConfig):
    """A machine with GPUs and HCAs."""

    pool: DnsLabel | None = Field(default=None, description="Name of its pool; optional with a single pool.")
    topology: Topology = Field(default=Topology(), description="Where it is in the fabric, for schedulers.")
    quarantine: Annotated[NonEmpty, Field(max_length=200)] | None = Field(
        default=None,
        description="Why no new job may start on it, by a taint (busbar/quarantine) or a drain (Slurm). It is "
        "left out of measurements, waits for GPUs and the pools of the outputs. To end it, delete the line.",
    )


class VirtualIp(ConfigModel):
    """The address that two load balancers, or without any the servers, share by VRRP (keepalived)."""

    address: IpAddress = Field(description="The shared address, at which the Kubernetes API is reached.")
    interface: InterfaceName = Field(description="Network interface of these hosts that carries it.")
    router_id: Annotated[Int, Field(ge=1, le=255)] = Field(
        default=51, description="VRRP router id; must be unique on the network segment."
    )


def _unmanaged(value: bool) -> bool:
    if value:
        raise invalid(
            "is not supported: what busbar sets up itself are hosts.load_balancers", "list those instead"
        )
    return value


class ApiEndpoint(ConfigModel):
    """An endpoint of the site's own (an appliance, kube-vip, DNS), in place of load balancers."""

    address: Address = Field(
        description="IP address or host name. It passes TCP port 6443 on to port 6443 of the servers, "
        "without ending TLS."
    )
    managed: Annotated[bool, AfterValidator(_unmanaged), Field(json_schema_extra={"const": False})] = Field(
        default=False, description="Always false: busbar sets nothing up there, and waits for it."
    )


class Hosts(ConfigModel):
    """All hosts of the cluster by role."""

    load_balancers: list[HostConfig] = Field(
        default=[],
        max_length=2,
        description="Hosts for HAProxy: 1, or 2 that share hosts.virtual_ip. None with api_endpoint, or if "
        "the servers share hosts.virtual_ip.",
    )
    virtual_ip: VirtualIp | None = Field(
        default=None,
        description="Required with two load balancers, not allowed with one. Without load balancers three "
        "servers or more share it.",
    )
    servers: list[HostConfig] = Field(
        min_length=1,
        description="K3s servers with embedded etcd: an odd number, because etcd needs a majority.",
    )
    workers: list[Worker] = Field(min_length=1, description="Hosts with GPUs and HCAs.")
    nfs_server: HostConfig | None = Field(
        default=None, description="A host that is only the NFS server of the section nfs_server."
    )
