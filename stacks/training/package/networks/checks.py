"""The checks on `networks` that no value can make on its own, and errors about wrong keys and settings."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from busbar.config.findings import Finding, KeyPath
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
    "is set by ib-kubernetes through a subnet manager (UFM), which is not installed",
    "remove it; the subnet manager gives the VFs their partition",
)
_RANGE = ("is not a key", "write the addresses as ipam.subnet, and what pods must not get as ipam.exclude")
# Keys of a NetworkAttachmentDefinition for which "unknown key" would not say enough, each with the fix.
_KEYS = {
    "device": (
        "is not a key: host-device gets its devices by their resource; an RDMA device such as mlx5_0 is not "
        "a network interface",
        "resource: nvidia.com/hostdev",
    ),
    "namespace": (
        "is not a key: the definitions are made once, in the namespace of the training run",
        "remove it; pods of other namespaces name them as NAMESPACE/POOL-NETWORK",
    ),
    **dict.fromkeys(("pkey", "ibKubernetesEnabled"), _PKEY),
    **dict.fromkeys(("range", "rangeStart", "rangeEnd", "range_start", "range_end"), _RANGE),
}
OPERATOR_DOMAIN = "nvidia.com"
_LEVELS = ("NCCL_NET_GDR_LEVEL", "NCCL_P2P_LEVEL")
GID_INDEX = "NCCL_IB_GID_INDEX"


def unknown_key(loc: KeyPath) -> Finding | None:
    """The error for an unknown key below `networks` that is a key of a NetworkAttachmentDefinition."""
    known = _KEYS.get(str(loc[-1])) if len(loc) > 1 and loc[0] == "networks" else None
    return Finding(loc, *known) if known else None


def environment(env: Mapping[str, str], networks: Mapping[str, Sequence[Network]]) -> Iterator[Finding]:
    """Findings on `proof.env`."""
    for name in _LEVELS:
        if env.get(name, "").isdigit():
            text = "is one of NCCL's former numbers, expected a name such as PIX, PXB, PHB or SYS"
            yield Finding(("proof", "env", name), text, "remove it; NCCL knows the distance", repr(env[name]))
    if GID_INDEX in env and networks:
        text = "is another entry in each pod: a pod sees only the GIDs of its own interfaces"
        fix = "remove it; NCCL_IB_ADDR_FAMILY and NCCL_IB_ADDR_RANGE are set"
        yield Finding(("proof", "env", GID_INDEX), text, fix, repr(env[GID_INDEX]))


def findings(
    networks: Mapping[str, Sequence[Network]], pools: Sequence[str], multus: Multus
) -> Iterator[Finding]:
    """Findings on `networks` as a whole; `pools`: the configured ones, empty for all."""
    subnets: list[tuple[KeyPath, ipaddress.IPv4Network | ipaddress.IPv6Network]] = []
    for pool, of_pool in networks.items():
        if pools and pool not in pools:
            yield Finding(("networks", pool), f"is not listed in pools: {', '.join(pools)}", "list it")
        for index, network in enumerate(of_pool):
            where: KeyPath = ("networks", pool, index)
            if network.name in [other.name for other in of_pool[:index]]:
                yield Finding((*where, "name"), "is used twice in the pool", found=repr(network.name))
            if len(f"{pool}-{network.name}") > _NAME_LIMIT:
                limit = _NAME_LIMIT - len(pool) - 1
                text = f"is too long: expected at most {limit} characters"
                yield Finding((*where, "name"), text, found=repr(network.name))
            yield from _of_type(where, network)
            yield from _of_addresses((*where, "ipam"), network)
            subnets.append(((*where, "ipam", "subnet"), ipaddress.ip_network(network.ipam.subnet)))
    for (_, one), (where, other) in combinations(subnets, 2):
        if one.overlaps(other):
            yield Finding(
                where, f"overlaps {one}, expected a subnet of its own per network", found=f"'{other}'"
            )
    yield from _of_tools(networks, multus)


def _of_type(where: KeyPath, network: Network) -> Iterator[Finding]:
    needed, possible = _FIELDS[network.type]
    if getattr(network, needed) is None:
        yield Finding((*where, needed), f"missing: type is {network.type}")
    for name in ("master", "mode", "mtu", "resource", "count"):
        if name not in (needed, *possible) and getattr(network, name) is not None:
            yield Finding((*where, name), f"is not used: type is {network.type}", "remove it")
    if network.type in _ONLY_BY_NETWORK_OPERATOR and network.ipam.type != "nv-ipam":
        text = "needs a CNI plugin of the Network Operator"
        yield Finding((*where, "type"), text, "set ipam.type: nv-ipam", repr(network.type))

    domain = str(network.resource).rpartition("/")[0]
    if network.resource and network.ipam.type == "nv-ipam" and domain != OPERATOR_DOMAIN:
        text = f"cannot be named to the Network Operator, which adds {OPERATOR_DOMAIN}/ itself"
        yield Finding((*where, "resource"), text, found=repr(network.resource))


def _of_addresses(where: KeyPath, network: Network) -> Iterator[Finding]:
    ipam, subnet = network.ipam, ipaddress.ip_network(network.ipam.subnet)
    if ipam.type == "nv-ipam" and ipam.addresses_per_node is None:
        yield Finding((*where, "addresses_per_node"), "missing: type is nv-ipam")
    if ipam.type != "nv-ipam" and ipam.addresses_per_node is not None:
        yield Finding((*where, "addresses_per_node"), f"is not used: type is {ipam.type}", "remove it")
    for index, text in enumerate(ipam.exclude):
        part = ipaddress.ip_network(text)
        if not (part.overlaps(subnet) and part.prefixlen >= subnet.prefixlen):
            yield Finding(
                (*where, "exclude", index), f"is not a part of the subnet {subnet}", found=f"'{part}'"
            )


def _of_tools(networks: Mapping[str, Sequence[Network]], multus: Multus) -> Iterator[Finding]:
    found = {network.ipam.type for of_pool in networks.values() for network in of_pool}
    if len(found) > 1:
        yield Finding(
            ("networks",),
            "some use whereabouts and some nv-ipam, expected one for all: each comes with a "
            "Multus of its own",
            "set the same ipam.type everywhere",
        )
    named = multus.is_local or multus.repository_url or "://" in multus.chart
    if "whereabouts" in found and multus.enabled and not named:
        yield Finding(
            ("multus", "chart"), "is a name, and multus.repository is not set", found=repr(multus.chart)
        )
