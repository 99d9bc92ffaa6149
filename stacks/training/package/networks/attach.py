"""Annotations and resources that attach a pod to its pool's networks, and the environment of its ranks."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from busbar.outputs import PoolLaunch
from stacks.training.package.networks.checks import GID_INDEX
from stacks.training.package.networks.config import Network

ANNOTATION = "k8s.v1.cni.cncf.io/networks"


@dataclass(frozen=True)
class Attachment:
    """One interface of a pod. `definition`: NAMESPACE/NAME of its NetworkAttachmentDefinition."""

    definition: str
    interface: str
    network: Network


def definition_name(pool: str, network: Network) -> str:
    """The name of a network's NetworkAttachmentDefinition."""
    return f"{pool}-{network.name}"


def devices(network: Network, launch: PoolLaunch) -> int:
    """The number of a pod's interfaces on this network: one, or one per device of its resource."""
    if network.resource is None:
        return 1
    return network.count or int(launch.resources.get(network.resource, "1"))


def attachments(
    namespace: str, pool: str, networks: Sequence[Network], launch: PoolLaunch
) -> tuple[Attachment, ...]:
    """The interfaces of a pod of the pool: net1, net2, ... as Multus calls them."""
    numbers = count(1)
    return tuple(
        Attachment(f"{namespace}/{definition_name(pool, network)}", f"net{next(numbers)}", network)
        for network in networks
        for _ in range(devices(network, launch))
    )


def pod_annotations(attached: Sequence[Attachment]) -> dict[str, str]:
    """The annotation by which Multus attaches the pod; empty without networks."""
    if not attached:
        return {}
    return {ANNOTATION: ",".join(f"{each.definition}@{each.interface}" for each in attached)}


def resources(attached: Sequence[Attachment], launch: PoolLaunch) -> dict[str, str]:
    """The devices behind the interfaces, at least as many as the pool's pods request anyway."""
    found: dict[str, int] = {}
    for each in attached:
        if name := each.network.resource:
            found[name] = found.get(name, 0) + 1
    return {name: str(max(n, int(launch.resources.get(name, "0")))) for name, n in found.items()}


def nccl_env(attached: Sequence[Attachment], launch: PoolLaunch) -> dict[str, str]:
    """The pool's NCCL settings for a pod with these interfaces.

    Over TCP the data use these interfaces. Over RDMA the HCAs carry the data whatever the interfaces are
    called, and only the bootstrap is TCP: it stays on eth0, which reaches every pod. RoCE addresses an HCA by
    an entry of its GID table. A pod sees the entries of its own interfaces, so the index of an entry differs
    from pod to pod, but its network does not.
    """
    env = dict(launch.env)
    if not attached:
        return env
    if launch.transport == "socket":
        env["NCCL_SOCKET_IFNAME"] = "=" + ",".join(each.interface for each in attached)
    elif launch.link_layer == "ethernet":
        env.pop(GID_INDEX, None)
        covering = _covering([each.network.ipam.subnet for each in attached])
        env["NCCL_IB_ADDR_FAMILY"] = f"AF_INET{6 if covering.version == 6 else ''}"
        env["NCCL_IB_ADDR_RANGE"] = str(covering)
    return env


def gloo_env(attached: Sequence[Attachment]) -> dict[str, str]:
    """The interface for gloo, which takes only one; without one it resolves its address by the host name."""
    return {"GLOO_SOCKET_IFNAME": attached[0].interface if attached else "eth0"}


def problems(pool: str, networks: Sequence[Network], launch: PoolLaunch) -> list[str]:
    """The reasons why the networks cannot be used for this pool."""
    found = []
    for network in networks:
        where, rdma = f"network {network.name} of pool {pool}", launch.transport != "socket"
        if network.type == "macvlan" and rdma and launch.link_layer == "infiniband":
            found.append(f"{where}: macvlan needs Ethernet, the rails are InfiniBand. Fix: host-device")
        if network.type in ("ipoib", "ib-sriov") and launch.link_layer != "infiniband":
            found.append(f"{where}: {network.type} needs InfiniBand, the rails are Ethernet. Fix: macvlan")
        if network.master and (mixed := _other_rail(network.master, launch)):
            found.append(
                f"{where}: master {network.master} is not the same rail on every worker: by PCI address, one "
                f"rail is {mixed}. Fix: name the interfaces by PCI address (udev, netplan)"
            )
        per_node = network.ipam.addresses_per_node or devices(network, launch)
        needed = per_node * len(launch.workers)
        if (free := _usable(network)) < needed:
            found.append(
                f"{where}: its subnet {network.ipam.subnet} has {free} addresses for pods, expected {needed} "
                f"for {len(launch.workers)} workers. Fix: a larger ipam.subnet"
            )
        if network.ipam.addresses_per_node and network.ipam.addresses_per_node < devices(network, launch):
            found.append(
                f"{where}: ipam.addresses_per_node is {network.ipam.addresses_per_node}, expected at least "
                f"{devices(network, launch)}, one per device"
            )
    families = {ipaddress.ip_network(network.ipam.subnet).version for network in networks}
    if len(families) > 1 and launch.link_layer == "ethernet":
        found.append(
            f"networks of pool {pool}: some are IPv4, some IPv6, expected one for NCCL_IB_ADDR_FAMILY"
        )
    return found


def _other_rail(name: str, launch: PoolLaunch) -> str:
    """The names of a rail whose interface has this name on some workers, and another one on others."""
    mixed = [names for names in launch.interfaces or () if name in names and len(names) > 1]
    return " or ".join(each or "without an interface" for each in mixed[0]) if mixed else ""


def unknown_masters(pool: str, networks: Sequence[Network], launch: PoolLaunch) -> list[str]:
    """Masters that are not interfaces of rails; they may be on top of one, such as a bond or a VLAN."""
    if launch.interfaces is None:
        return []
    names = sorted({name for of_rail in launch.interfaces for name in of_rail if name})
    return [
        f"network {network.name} of pool {pool}: master {network.master} is not the interface of a rail; "
        f"these are {', '.join(names)}"
        for network in networks
        if network.master and network.master not in names
    ]


def _usable(network: Network) -> int:
    """The number of addresses for pods: without the subnet's first and last one, and the excluded ones."""
    subnet = ipaddress.ip_network(network.ipam.subnet)
    # Excluded parts may overlap; all are of the subnet's family.
    parts: list[Any] = [ipaddress.ip_network(part) for part in (subnet[0], subnet[-1], *network.ipam.exclude)]
    excluded: int = sum(part.num_addresses for part in ipaddress.collapse_addresses(parts))
    return subnet.num_addresses - excluded


def _covering(subnets: Sequence[str]) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """The smallest network that contains all SUBNETS."""
    networks = [ipaddress.ip_network(subnet) for subnet in subnets]
    covering = networks[0]
    low = min(int(each.network_address) for each in networks)
    high = max(int(each.broadcast_address) for each in networks)
    while not int(covering.network_address) <= low <= high <= int(covering.broadcast_address):
        covering = covering.supernet()
    return covering
