"""The checks on `networks` that no value can make on its own, and what a wrong key or setting means."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from stacks.training.package.networks.config import Multus, Network

# A NetworkAttachmentDefinition is called <pool>-<network>.
_NAME_LIMIT = 63
# The fields that each type needs, and those that it may have.
_FIELDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "macvlan": ("master", ("mode", "mtu")),
    "ipoib": ("master", ()),
    "host-device": ("resource", ("count",)),
    "ib-sriov": ("resource", ("count",)),
}
# Their CNI plugins are not in containernetworking/plugins.
_ONLY_BY_NETWORK_OPERATOR = ("ipoib", "ib-sriov")

_PKEY = (
    "is set by ib-kubernetes through a subnet manager (UFM), which is not installed. Fix: remove it; the "
    "subnet manager gives the VFs their partition"
)
_RANGE = "is not a key. Fix: write the addresses as ipam.subnet, and what pods must not get as ipam.exclude"
# Keys of a NetworkAttachmentDefinition for which "unknown key" would not say enough.
_KEYS = {
    "device": "is not a key: host-device gets its devices by their resource; an RDMA device such as mlx5_0 "
    "is not a network interface. Fix: resource: nvidia.com/hostdev",
    "namespace": "is not a key: the definitions are made once, in the namespace of the training run. Fix: "
    "remove it; pods of other namespaces name them as NAMESPACE/POOL-NETWORK",
    **dict.fromkeys(("pkey", "ibKubernetesEnabled"), _PKEY),
    **dict.fromkeys(("range", "rangeStart", "rangeEnd", "range_start", "range_end"), _RANGE),
}
OPERATOR_DOMAIN = "nvidia.com"
_LEVELS = ("NCCL_NET_GDR_LEVEL", "NCCL_P2P_LEVEL")
GID_INDEX = "NCCL_IB_GID_INDEX"


def unknown_key(loc: Sequence[int | str]) -> str | None:
    """What is wrong with a key below `networks`, where it is one of a NetworkAttachmentDefinition."""
    return _KEYS.get(str(loc[-1])) if len(loc) > 1 and loc[0] == "networks" else None


def environment(env: Mapping[str, str], networks: Mapping[str, Sequence[Network]]) -> Iterator[str]:
    """Findings on `proof.env`."""
    for name in _LEVELS:
        if env.get(name, "").isdigit():
            yield (
                f"proof.env.{name}: {env[name]!r} is one of NCCL's former numbers, expected a name such as "
                "PIX, PXB, PHB or SYS. Fix: remove it; NCCL knows the distance"
            )
    if GID_INDEX in env and networks:
        yield (
            f"proof.env.{GID_INDEX}: {env[GID_INDEX]!r} is another entry in each pod: a pod sees only the "
            "GIDs of its own interfaces. Fix: remove it; NCCL_IB_ADDR_FAMILY and NCCL_IB_ADDR_RANGE are set"
        )


def findings(
    networks: Mapping[str, Sequence[Network]], pools: Sequence[str], multus: Multus
) -> Iterator[str]:
    """Findings on `networks` as a whole; `pools`: the configured ones, empty for all."""
    subnets: list[tuple[str, ipaddress.IPv4Network | ipaddress.IPv6Network]] = []
    for pool, of_pool in networks.items():
        if pools and pool not in pools:
            yield f"networks.{pool}: is not listed in pools: {', '.join(pools)}. Fix: list it"
        for index, network in enumerate(of_pool):
            where = f"networks.{pool}[{index}]"
            if network.name in [other.name for other in of_pool[:index]]:
                yield f"{where}.name: {network.name!r} is used twice in the pool"
            if len(f"{pool}-{network.name}") > _NAME_LIMIT:
                limit = _NAME_LIMIT - len(pool) - 1
                yield f"{where}.name: {network.name!r} is too long: expected at most {limit} characters"
            yield from _of_type(where, network)
            yield from _of_addresses(f"{where}.ipam", network)
            subnets.append((f"{where}.ipam.subnet", ipaddress.ip_network(network.ipam.subnet)))
    for (_, one), (where, other) in combinations(subnets, 2):
        if one.overlaps(other):
            yield f"{where}: '{other}' overlaps {one}, expected a subnet of its own per network"
    yield from _of_tools(networks, multus)


def _of_type(where: str, network: Network) -> Iterator[str]:
    needed, possible = _FIELDS[network.type]
    if getattr(network, needed) is None:
        yield f"{where}.{needed}: missing: type is {network.type}"
    for name in ("master", "mode", "mtu", "resource", "count"):
        if name not in (needed, *possible) and getattr(network, name) is not None:
            yield f"{where}.{name}: is not used: type is {network.type}. Fix: remove it"
    if network.type in _ONLY_BY_NETWORK_OPERATOR and network.ipam.type != "nv-ipam":
        yield (
            f"{where}.type: {network.type!r} needs a CNI plugin of the Network Operator. Fix: set "
            "ipam.type: nv-ipam"
        )

    domain = str(network.resource).rpartition("/")[0]
    if network.resource and network.ipam.type == "nv-ipam" and domain != OPERATOR_DOMAIN:
        yield (
            f"{where}.resource: {network.resource!r} cannot be named to the Network Operator, which adds "
            f"{OPERATOR_DOMAIN}/ itself"
        )


def _of_addresses(where: str, network: Network) -> Iterator[str]:
    ipam, subnet = network.ipam, ipaddress.ip_network(network.ipam.subnet)
    if ipam.type == "nv-ipam" and ipam.addresses_per_node is None:
        yield f"{where}.addresses_per_node: missing: type is nv-ipam"
    if ipam.type != "nv-ipam" and ipam.addresses_per_node is not None:
        yield f"{where}.addresses_per_node: is not used: type is {ipam.type}. Fix: remove it"
    for index, text in enumerate(ipam.exclude):
        part = ipaddress.ip_network(text)
        if not (part.overlaps(subnet) and part.prefixlen >= subnet.prefixlen):
            yield f"{where}.exclude[{index}]: '{part}' is not a part of the subnet {subnet}"


def _of_tools(networks: Mapping[str, Sequence[Network]], multus: Multus) -> Iterator[str]:
    found = {network.ipam.type for of_pool in networks.values() for network in of_pool}
    if len(found) > 1:
        yield (
            "networks: some use whereabouts and some nv-ipam, expected one for all: each comes with a Multus "
            "of its own. Fix: set the same ipam.type everywhere"
        )
    named = multus.is_local or multus.repository_url or "://" in multus.chart
    if "whereabouts" in found and multus.enabled and not named:
        yield f"multus.chart: {multus.chart!r} is a name, and multus.repository is not set"
