"""Secondary networks: interfaces beside eth0 that Multus attaches to the pods of a pool."""

from __future__ import annotations

import ipaddress
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from busbar.config.types import Cidr, DnsLabel, Int, InterfaceName, ResourceName, invalid
from busbar.exits import Failed
from busbar.finding import Finding, KeyPath
from busbar.frame import CRDS, not_of_release
from busbar.kube.client import Api
from busbar.kube.objects import create, find
from busbar.manifests.ncclrun import TRANSPORT_ENV
from busbar.manifests.operators import Operator
from busbar.models import ConfigModel
from busbar.outputs import PoolLaunch

MULTUS = Operator(config_key="multus", release="rke2-multus", namespace="multus")
ANNOTATION = "k8s.v1.cni.cncf.io/networks"
GID_INDEX = "NCCL_IB_GID_INDEX"
# A NetworkAttachmentDefinition is called <pool>-<network>.
_NAME_LIMIT = 63
# The key that each type needs, and those that it may have.
_KEYS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "macvlan": ("master", ("mode", "mtu")),
    "host-device": ("resource", ("count",)),
    "ib-sriov": ("resource", ("count",)),
}


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


class Network(ConfigModel):
    """One network of a pool: one more interface of its pods, or one per device."""

    name: DnsLabel
    """Name of the network, such as rail0."""
    type: Literal["macvlan", "host-device", "ib-sriov"]
    """macvlan: shares an Ethernet rail (RoCE). host-device: gives the pod whole devices. ib-sriov: InfiniBand
    VFs."""
    master: Annotated[InterfaceName, AfterValidator(_master)] | None = None
    """macvlan: the rail's network interface on every worker."""
    mode: Literal["bridge", "private", "vepa", "passthru"] | None = None
    """macvlan: its mode; by default bridge."""
    mtu: Annotated[Int, Field(ge=1280, le=9978)] | None = None
    """macvlan: MTU; by default the master's. RDMA uses 4096 only below a larger one."""
    resource: ResourceName | None = None
    """host-device and ib-sriov: the extended resource whose devices are the interfaces."""
    count: Annotated[Int, Field(ge=1, le=64)] | None = None
    """host-device and ib-sriov: devices per pod; by default those of the validation, else 1."""
    subnet: Cidr
    """Addresses of the network; each rail has a subnet of its own."""
    exclude: list[Cidr] = Field(default=[])
    """Parts of the subnet that pods must not get."""


def network_findings(
    networks: Mapping[str, Sequence[Network]], pools: Sequence[str], env: Mapping[str, str]
) -> Iterator[Finding]:
    """Findings on `networks` as a whole. `pools`: the configured ones, empty for all. `env`: `proof.env`."""
    if GID_INDEX in env and networks:
        text = "is another entry in each pod: a pod sees only the GIDs of its own interfaces"
        fix = "remove it; NCCL_IB_ADDR_FAMILY and NCCL_IB_ADDR_RANGE are set"
        yield Finding(("proof", "env", GID_INDEX), text, fix, repr(env[GID_INDEX]))
    subnets: list[tuple[KeyPath, ipaddress.IPv4Network | ipaddress.IPv6Network]] = []
    for pool, of_pool in networks.items():
        if pools and pool not in pools:
            yield Finding(("networks", pool), f"is not listed in pools: {', '.join(pools)}", "list it")
        for index, network in enumerate(of_pool):
            where: KeyPath = ("networks", pool, index)
            if network.name in [other.name for other in of_pool[:index]]:
                yield Finding((*where, "name"), "is used twice in the pool", found=repr(network.name))
            if len(definition_name(pool, network)) > _NAME_LIMIT:
                text = f"is too long: expected at most {_NAME_LIMIT - len(pool) - 1} characters"
                yield Finding((*where, "name"), text, found=repr(network.name))
            yield from _wrong_keys(where, network)
            subnets.append(((*where, "subnet"), ipaddress.ip_network(network.subnet)))
    for (_, one), (where, other) in combinations(subnets, 2):
        if one.overlaps(other):
            text = f"overlaps {one}, expected a subnet of its own per network"
            yield Finding(where, text, found=f"'{other}'")


def _wrong_keys(where: KeyPath, network: Network) -> Iterator[Finding]:
    needed, possible = _KEYS[network.type]
    if getattr(network, needed) is None:
        yield Finding((*where, needed), f"missing: type is {network.type}")
    for name in ("master", "mode", "mtu", "resource", "count"):
        if name not in (needed, *possible) and getattr(network, name) is not None:
            yield Finding((*where, name), f"is not used: type is {network.type}", "remove it")
    subnet = ipaddress.ip_network(network.subnet)
    for index, text in enumerate(network.exclude):
        part = ipaddress.ip_network(text)
        if not (part.overlaps(subnet) and part.prefixlen >= subnet.prefixlen):
            what = f"is not a part of the subnet {subnet}"
            yield Finding((*where, "exclude", index), what, found=f"'{part}'")


_CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "network-attachment-definitions.k8s.cni.cncf.io"},
    "spec": {
        "group": "k8s.cni.cncf.io", "scope": "Namespaced",
        "names": {
            "kind": "NetworkAttachmentDefinition", "plural": "network-attachment-definitions",
            "singular": "network-attachment-definition", "shortNames": ["net-attach-def"],
        },
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
            "type": "object",
            "properties": {"spec": {"type": "object", "properties": {"config": {"type": "string"}}}},
        }}}],
    },
}  # fmt: skip


def create_crd(api: Api) -> None:
    """Create the CRD, which stays at a destroy, before the release of Multus. Raises Failed and ApiError.

    The Network Operator's chart brings it too, and Helm does not install a release that has it then. Of two
    Multus each overwrites the configuration of the other one on the nodes, and a destroy removes both.
    """
    for each in (find(api, "/apis/apps/v1/daemonsets") or {}).get("items") or ():
        name, namespace = each["metadata"]["name"], each["metadata"]["namespace"]
        if "multus" in name and namespace != MULTUS.namespace:
            fix = "set multus.enabled: false to use that one; or remove it, then retry"
            raise Failed(f"DaemonSet {namespace}/{name} is a Multus of another tool", fix)
    if not create(api, CRDS, _CRD):
        found = api.get(path := f"{CRDS}/{_CRD['metadata']['name']}")
        # Helm deletes what an upgrade does not have any more.
        if not not_of_release([found], MULTUS.release):
            api.merge(path, {"metadata": {"annotations": {"helm.sh/resource-policy": "keep"}}})


# A file in K3s's own folder; by default whereabouts looks for its configuration in /etc/cni/net.d
# (k8snetworkplumbingwg/whereabouts v0.8.0, pkg/config/config.go).
_WHEREABOUTS_FILE = "/var/lib/rancher/k3s/agent/etc/cni/net.d/whereabouts.d/whereabouts.conf"


def definition_name(pool: str, network: Network) -> str:
    """The name of a network's NetworkAttachmentDefinition."""
    return f"{pool}-{network.name}"


def definition(namespace: str, pool: str, network: Network) -> dict[str, Any]:
    """The NetworkAttachmentDefinition of a network of the pool, in `namespace`."""
    name = definition_name(pool, network)
    of_type: dict[str, Any] = {}
    if network.type == "macvlan":
        of_type = {"master": network.master, "mode": network.mode or "bridge"}
        of_type |= {"mtu": network.mtu} if network.mtu else {}
    elif network.type == "ib-sriov":
        of_type = {"link_state": "enable"}
    config = {
        # The version that both containerd and the plugins of containernetworking support.
        "cniVersion": "1.0.0",
        "name": name,
        "type": network.type,
        **of_type,
        "ipam": {
            "type": "whereabouts",
            "range": network.subnet,
            "configuration_path": _WHEREABOUTS_FILE,
            **({"exclude": list(network.exclude)} if network.exclude else {}),
        },
    }
    # Multus passes a device of this resource, which the device plugin offers, to the CNI plugin.
    resource = {"k8s.v1.cni.cncf.io/resourceName": network.resource}
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "busbar"},
            **({"annotations": resource} if network.resource else {}),
        },
        "spec": {"config": json.dumps(config, sort_keys=True)},
    }


@dataclass(frozen=True)
class Attachment:
    """One interface of a pod. `definition`: NAMESPACE/NAME of its NetworkAttachmentDefinition."""

    definition: str
    interface: str
    network: Network


def devices(network: Network, launch: PoolLaunch) -> int:
    """The number of a pod's interfaces on this network: one, or one per device of its resource."""
    if network.resource is None:
        return 1
    return network.count or int(launch.resources.get(network.resource, "1"))


def attachments(
    namespace: str, pool: str, networks: Sequence[Network], launch: PoolLaunch
) -> tuple[Attachment, ...]:
    """The interfaces of a pod of the pool: net1, net2, ... as Multus calls them."""
    found = [network for network in networks for _ in range(devices(network, launch))]
    return tuple(
        Attachment(f"{namespace}/{definition_name(pool, network)}", f"net{number}", network)
        for number, network in enumerate(found, 1)
    )


def resources(attached: Sequence[Attachment], launch: PoolLaunch) -> dict[str, str]:
    """The devices behind the interfaces, at least as many as the pool's pods request anyway."""
    found = Counter(name for each in attached if (name := each.network.resource))
    return {name: str(max(n, int(launch.resources.get(name, "0")))) for name, n in found.items()}


def nccl_env(attached: Sequence[Attachment], launch: PoolLaunch) -> dict[str, str]:
    """The settings under which the pool's bandwidth was measured, for a pod with these interfaces.

    Over RDMA only the bootstrap is TCP: it stays on eth0. A pod sees the GIDs of its own interfaces, so the
    index of a GID differs from pod to pod, but its network does not.
    """
    env = {**launch.env, **TRANSPORT_ENV.get(launch.transport, {})}
    if not attached:
        return env
    if launch.transport == "socket":
        env["NCCL_SOCKET_IFNAME"] = "=" + ",".join(each.interface for each in attached)
    elif launch.link_layer == "ethernet":
        env.pop(GID_INDEX, None)
        covering = _covering([each.network.subnet for each in attached])
        env["NCCL_IB_ADDR_FAMILY"] = f"AF_INET{6 if covering.version == 6 else ''}"
        env["NCCL_IB_ADDR_RANGE"] = str(covering)
    return env


def problems(pool: str, networks: Sequence[Network], launch: PoolLaunch) -> Iterator[str]:
    """The reasons why the networks cannot be used for this pool."""
    for network in networks:
        where, rdma = f"network {network.name} of pool {pool}", launch.transport != "socket"
        if network.type == "macvlan" and rdma and launch.link_layer == "infiniband":
            yield f"{where}: macvlan needs Ethernet, the rails are InfiniBand. Fix: host-device"
        if network.type == "ib-sriov" and launch.link_layer != "infiniband":
            yield f"{where}: ib-sriov needs InfiniBand, the rails are Ethernet. Fix: macvlan"
        needed = devices(network, launch) * len(launch.workers)
        if (free := _usable(network)) < needed:
            yield (
                f"{where}: its subnet {network.subnet} has {free} addresses for pods, expected {needed} "
                f"for {len(launch.workers)} workers. Fix: a larger subnet"
            )
    families = {ipaddress.ip_network(network.subnet).version for network in networks}
    if len(families) > 1 and launch.link_layer == "ethernet":
        yield f"networks of pool {pool}: some are IPv4, some IPv6, expected one for NCCL_IB_ADDR_FAMILY"


def _usable(network: Network) -> int:
    """The number of addresses for pods: without the subnet's first and last one, and the excluded ones."""
    subnet = ipaddress.ip_network(network.subnet)
    # Excluded parts may overlap; all are of the subnet's family.
    parts: list[Any] = [ipaddress.ip_network(part) for part in (subnet[0], subnet[-1], *network.exclude)]
    excluded: int = sum(part.num_addresses for part in ipaddress.collapse_addresses(parts))
    return subnet.num_addresses - excluded


def _covering(subnets: Sequence[str]) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """The smallest network that contains all SUBNETS."""
    networks: list[Any] = [ipaddress.ip_network(subnet) for subnet in subnets]
    covering: ipaddress.IPv4Network | ipaddress.IPv6Network = networks[0]
    while not all(each.subnet_of(covering) for each in networks):
        covering = covering.supernet()
    return covering
