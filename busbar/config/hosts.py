"""The hosts: load balancers, an odd number of servers, the workers, perhaps an NFS server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from busbar.config.kubernetes_values import DnsLabel, LabelValue
from busbar.config.network_values import Address, HostKey, InterfaceName, IpAddress, Port, UserName
from busbar.config.values import Int, NonEmpty, invalid
from busbar.models import ConfigModel


class HostConfig(ConfigModel):
    """One machine that is reachable over SSH."""

    name: DnsLabel = Field(description="Name of the host; for servers and workers also the name of the node.")
    address: Address = Field(description="IP address or host name, for SSH and for the cluster's traffic.")
    host_key: HostKey = Field(description="The host's ed25519 host key: `ssh-keyscan -t ed25519 ADDRESS`.")
    user: UserName | None = Field(default=None, description="Login on this host; by default ssh.user.")
    port: Port | None = Field(default=None, description="SSH port of this host; by default ssh.port.")


Place = Annotated[LabelValue, Field(min_length=1)]

# Keys of Topograph 1.0 (NVIDIA/topograph), which Kueue's and KAI's examples read; Kubernetes has none of its
# own (KEP-4962 was closed). The farthest level comes first.
LABELS: Mapping[str, str] = {
    "block": "fabric.topograph.run/tier-1",
    "rail_group": "fabric.topograph.run/tier-0",
    "nvlink_domain": "accelerator.topograph.run/domain",
}
# Hosts with the same place share switches; in an NVLink domain they need none.
SWITCHES = ("block", "rail_group")


class Topology(ConfigModel):
    """Names of the site's own; all workers of a pool have the same levels, or none."""

    rail_group: Place | None = Field(
        default=None,
        description="The leaf switches that its rails end at: hosts with the same ones are one hop apart on "
        "every rail (a scalable unit). In a fabric without rails: the leaf.",
    )
    block: Place | None = Field(default=None, description="The rail groups below the same spine switches.")
    nvlink_domain: Place | None = Field(
        default=None, description="The hosts whose GPUs share NVLink, such as the rack of a GB200 NVL72."
    )

    def labels(self) -> dict[str, str]:
        """The labels of the Node, the farthest level first."""
        values = {key: getattr(self, level) for level, key in LABELS.items()}
        return {key: value for key, value in values.items() if value is not None}


Reason = Annotated[NonEmpty, Field(max_length=200)]


class Worker(HostConfig):
    """A machine with GPUs and HCAs."""

    pool: DnsLabel | None = Field(default=None, description="Name of its pool; optional with a single pool.")
    topology: Topology = Field(default=Topology(), description="Where it is in the fabric, for schedulers.")
    quarantine: Reason | None = Field(
        default=None,
        description="Why no new job may start on it (a taint busbar/quarantine; in Slurm a drain). It is "
        "left out of measurements, waits for GPUs and the pools of the outputs. To end it, delete the line.",
    )


class VirtualIp(ConfigModel):
    """The address that two load balancers, or without any the servers, share by VRRP (keepalived)."""

    address: IpAddress = Field(description="The shared address, at which the Kubernetes API is reached.")
    interface: InterfaceName = Field(description="Network interface of these hosts that carries it.")
    router_id: Annotated[Int, Field(ge=1, le=255)] = Field(
        default=51, description="VRRP router id; must be unique on the network segment."
    )


class ApiEndpoint(ConfigModel):
    """An endpoint of the site's own (an appliance, kube-vip, DNS), in place of load balancers."""

    address: Address = Field(
        description="IP address or host name. It passes TCP port 6443 on to port 6443 of the servers, "
        "without ending TLS."
    )


class HostsFrom(ConfigModel):
    """A list of hosts that something else writes: a file, or the output of another stack."""

    file: NonEmpty | None = Field(
        default=None, description="JSON file with the list, relative to the project folder."
    )
    stack: NonEmpty | None = Field(
        default=None, description="Stack that exports the list, as organization/project/stack."
    )
    output: NonEmpty = Field(default="hosts", description="The output of that stack with the list.")
    allow_removal: bool = Field(
        default=False,
        description="Drain and remove workers that are no longer in the list; without it, the update fails.",
    )
    quarantine: dict[DnsLabel, Reason] = Field(
        default={}, description="Worker -> why no new job may start on it, as hosts.workers[].quarantine."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.file is None) == (self.stack is None):
            raise invalid("is not one source", "give either file or stack")
        return self

    @property
    def source(self) -> str:
        """Where the list is, as messages name it."""
        output = "" if self.output == "hosts" else f" (output {self.output})"
        return self.file or f"stack {self.stack}{output}"


def has_list(data: Any) -> bool:
    """Return whether a configuration takes its hosts from a list elsewhere."""
    return isinstance(data, Mapping) and "hosts_from" in data


def _odd(servers: list[HostConfig]) -> list[HostConfig]:
    if (count := len(servers)) % 2 == 0:
        raise invalid(
            f"got {count}, expected an odd number: etcd with {count} members survives no more failures than "
            f"with {count - 1}",
            "remove one or add one",
        )
    return servers


def _required_beside_list(schema: dict[str, Any]) -> None:
    # With hosts_from, `hosts` has the address that they share, and no lists.
    schema.pop("required")


class Hosts(ConfigModel):
    """All hosts of the cluster by role."""

    model_config = ConfigDict(json_schema_extra=_required_beside_list)

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
    servers: Annotated[list[HostConfig], Field(min_length=1), AfterValidator(_odd)] = Field(
        description="K3s servers with embedded etcd: an odd number, because etcd needs a majority.",
    )
    workers: list[Worker] = Field(min_length=1, description="Hosts with GPUs and HCAs.")
    nfs_server: HostConfig | None = Field(
        default=None, description="A host that is only the NFS server of the section nfs_server."
    )
