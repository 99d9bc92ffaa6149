"""Checks of the network of one host; every finding has a fix."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from busbar.hosts.finding import Check, error, warning
from busbar.hosts.host import Host
from busbar.hosts.inventory import API_PORT
from busbar.preflight.report import Report
from busbar.preflight.spec import SHARED, HostRequirements

NODE_ROLES = ("server", "worker")
KUBELET_PORT = 10250
ETCD_PORTS = (2379, 2380)
OWN_PROCESSES = {
    "lb": ("haproxy",),
    "server": ("k3s", "k3s-server"),
    "worker": ("k3s", "k3s-agent"),
    "nfs": (),
}
FIREWALLS = ("ufw", "firewalld")


def check_network(host: Host, required: HostRequirements, report: Report) -> Iterator[Check]:
    """Findings about the network of one host, as (level, what, fix)."""
    if "ip" not in report.missing_tools:  # else addresses, interfaces and routes are unknown
        yield from _addresses(host, required, report)
    for network, *interfaces in map(str.split, report.shared_networks if host.role == "worker" else ()):
        yield warning(
            f"{' and '.join(interfaces)} are in one network, {network}: the host answers by the first one, "
            "and connections of NCCL to another one may time out",
            "give each its own network, or a routing rule from its address (ip rule); or name one of them: "
            "validation.env: {NCCL_SOCKET_IFNAME: ...}",
        )
    if report.unresolved:
        yield (
            "warning" if report.k3s_version == required.k3s_version else "error",
            f"cannot resolve {', '.join(report.unresolved)}, from which it downloads",
            "repair DNS on the host (resolvectl status; getent ahosts NAME), or set k3s.base_url and "
            "k3s.images to a mirror that it reaches",
        )
    if not report.proxy_answers:
        yield error(
            f"does not reach the proxy {required.proxy}",
            "correct http_proxy.url, or have the proxy and the firewalls admit the host",
        )
    yield from _login_proxy(host, required, report)
    wanted = {
        "lb": (API_PORT,),
        "server": (API_PORT, *ETCD_PORTS, KUBELET_PORT),
        "worker": (KUBELET_PORT,),
        "nfs": (),
    }
    for listener in report.listening:
        if listener.port in wanted[host.role] and listener.process not in _own(host, report):
            yield error(
                f"TCP port {listener.port} is in use by {listener.process}",
                f"stop {listener.process}, or list the host in another role",
            )
    for unit in report.active_units:
        if unit in FIREWALLS:
            yield warning(
                f"firewall {unit} is active and may block the pod network",
                "switch it off, or allow the other hosts and the networks k3s.cluster_cidr and "
                "k3s.service_cidr",
            )


def _addresses(host: Host, required: HostRequirements, report: Report) -> Iterator[Check]:
    if host.role in NODE_ROLES:
        yield from _node_address(host, required, report)
        yield from _overlaps(required, report)
    if required.interface and required.interface not in report.interfaces:
        yield error(
            f"has no network interface {required.interface}, which carries hosts.virtual_ip; got "
            f"{', '.join(report.interfaces)}",
            "correct hosts.virtual_ip.interface; where these hosts name it differently, give it one "
            "name on all (set-name of netplan, or a .link file of systemd)",
        )
    elif required.interface:
        yield from _shared_address(required, report)


def _login_proxy(host: Host, required: HostRequirements, report: Report) -> Iterator[Check]:
    """Check a proxy that is not in the configuration: the host scripts download through it, K3s does not."""
    proxy, has_k3s = report.login_proxy, report.k3s_version == required.k3s_version
    if proxy is None:
        return
    named = f"the proxy {proxy.address}, which {proxy.file or 'the environment of the login'} names"
    if not proxy.answers:
        yield (
            "warning" if has_k3s else "error",
            f"does not reach {named}, and downloads go through it",
            "correct or remove it there, or set http_proxy, which takes its place",
        )
    elif host.role in NODE_ROLES and not has_k3s:
        yield warning(
            f"downloads through {named}, and K3s pulls images without it: its units do not read that file",
            "set http_proxy, unless images are reached directly",
        )


def _own(host: Host, report: Report) -> tuple[str, ...]:
    """The processes that may use the ports, because busbar installed them."""
    return OWN_PROCESSES[host.role] if report.managed else ()


def _node_address(host: Host, required: HostRequirements, report: Report) -> Iterator[Check]:
    if not report.default_route:
        yield error(
            "no default route, which K3s needs even without internet access",
            "ip route add default via GATEWAY, and make it permanent",
        )
    if not report.has_node_address:
        yield error(
            f"no network interface has the address {host.address}, got {', '.join(report.addresses)}: the "
            "node would use another address, and flannel another network",
            "list the host by an address that it has; or set node-ip and flannel-iface in "
            "/etc/rancher/k3s/config.yaml.d/address.yaml on the host",
        )
    if not report.node_address or not required.networks:
        return
    pods = required.networks["k3s.cluster_cidr"]
    if ipaddress.ip_address(report.node_address).version != ipaddress.ip_network(pods).version:
        yield error(
            f"its address {report.node_address} and k3s.cluster_cidr {pods} are not of one family (IPv4, "
            "IPv6): K3s does not start",
            "list the host by an address of that family, or use networks of the other one",
        )
    elif required.flannel and report.flannel_address not in ("", report.node_address):
        yield (
            # An error would stop updates of a running cluster.
            "warning" if report.k3s_data else "error",
            f"flannel would use {report.flannel_address}, the first address of the network interface that "
            f"carries {report.node_address}: it takes no other one",
            f"make {report.node_address} the first address of that interface, or put it on another one; or "
            "list the host by the first one",
        )


def _shared_address(required: HostRequirements, report: Report) -> Iterator[Check]:
    """Check that the address of hosts.virtual_ip is in a network that the host has a route to."""
    address = required.networks[SHARED]
    if not any(_is_inside(address, ipaddress.ip_network(each, strict=False)) for each in report.routes):
        yield (
            # An error would stop updates of a running host.
            "warning" if report.managed else "error",
            f"has no network with {SHARED} {address}, got {', '.join(report.routes) or 'none'}: other "
            "hosts would not find it",
            "use a free address of the network that hosts.virtual_ip.interface is in",
        )


def _overlaps(required: HostRequirements, report: Report) -> Iterator[Check]:
    """Find addresses that the pod and service networks would hide. A host with K3s has such routes itself."""
    if report.k3s_data:
        return
    for setting, text in required.networks.items() - {(SHARED, required.networks.get(SHARED))}:
        network = ipaddress.ip_network(text)
        inside = [each for each in (*report.addresses, *report.routes) if _is_inside(each, network)]
        if inside:
            yield error(
                f"has {', '.join(inside)} inside {setting} {text}: pods could not reach what is there",
                f"set {setting} to a network that no host uses; in a cluster that exists it cannot be "
                "changed: use another network for the host",
            )


def _is_inside(text: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    """Whether all of an address or network is in `network`. A route to more than it does no harm."""
    part = ipaddress.ip_network(text, strict=False)
    return part.version == network.version and part.subnet_of(network)  # type: ignore[arg-type]
