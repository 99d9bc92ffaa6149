"""Checks of the network of one host; every finding has a fix."""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from busbar.finding import Finding, error, warning
from busbar.hosts.inventory import API_PORT, Host
from busbar.preflight.report import Hca, Qos, Report
from busbar.preflight.spec import SHARED, HostRequirements
from busbar.text import natural

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


def check_network(host: Host, required: HostRequirements, report: Report) -> Iterator[Finding]:
    """Findings about the network of one host, without its name."""
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
        finding = warning if report.k3s_version == required.k3s_version else error
        yield finding(
            f"cannot resolve {', '.join(report.unresolved)}, from which it downloads",
            "repair DNS on the host (resolvectl status; getent ahosts NAME), or set k3s.base_url and "
            "k3s.images to a mirror that it reaches",
        )
    if not report.proxy_answers:
        what = f"does not reach the proxy {required.proxy}"
        yield error(what, "correct http_proxy.url, or have the proxy and the firewalls admit the host")
    yield from _login_proxy(host, required, report)
    wanted = {
        "lb": (API_PORT,),
        "server": (API_PORT, *ETCD_PORTS, KUBELET_PORT),
        "worker": (KUBELET_PORT,),
        "nfs": (),
    }
    installed = OWN_PROCESSES[host.role] if report.managed else ()
    for listener in report.listening:
        # _leftovers names a process that busbar has installed in another role.
        if listener.port in wanted[host.role] and listener.process not in (*installed, *report.managed):
            what = f"TCP port {listener.port} is in use by {listener.process}"
            yield error(what, f"stop {listener.process}, or list the host in another role")
    for unit in report.active_units:
        if unit in FIREWALLS:
            yield warning(
                f"firewall {unit} is active and may block the pod network",
                "switch it off, or allow the other hosts, k3s.cluster_cidr and k3s.service_cidr",
            )


def _addresses(host: Host, required: HostRequirements, report: Report) -> Iterator[Finding]:
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


def _login_proxy(host: Host, required: HostRequirements, report: Report) -> Iterator[Finding]:
    """Check a proxy that is not in the configuration: the host scripts download through it, K3s does not."""
    proxy, has_k3s = report.login_proxy, report.k3s_version == required.k3s_version
    if proxy is None:
        return
    named = f"the proxy {proxy.address}, which {proxy.file or 'the environment of the login'} names"
    if not proxy.answers:
        finding = warning if has_k3s else error
        what = f"does not reach {named}, and downloads go through it"
        yield finding(what, "correct or remove it there, or set http_proxy, which takes its place")
    elif host.role in NODE_ROLES and not has_k3s:
        what = f"downloads through {named}, and K3s pulls images without it: its units do not read that file"
        yield warning(what, "set http_proxy, unless images are reached directly")


def _node_address(host: Host, required: HostRequirements, report: Report) -> Iterator[Finding]:
    if not report.default_route:
        what = "no default route, which K3s needs even without internet access"
        yield error(what, "ip route add default via GATEWAY, and make it permanent")
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
            f"{report.node_address} and k3s.cluster_cidr {pods} are not of one family (IPv4 or IPv6)",
            "list the host by an address of that family, or use networks of the other one",
        )
    elif required.flannel and report.flannel_address not in ("", report.node_address):
        # An error would stop updates of a running cluster.
        finding = warning if report.k3s_data else error
        yield finding(
            f"flannel would use {report.flannel_address}, the first address of the network interface that "
            f"carries {report.node_address}: it takes no other one",
            f"make {report.node_address} the first address of that interface, or put it on another one; or "
            "list the host by the first one",
        )


def _shared_address(required: HostRequirements, report: Report) -> Iterator[Finding]:
    """Check that the address of hosts.virtual_ip is in a network that the host has a route to."""
    address = required.networks[SHARED]
    if not any(_is_inside(address, ipaddress.ip_network(each, strict=False)) for each in report.routes):
        # An error would stop updates of a running host.
        finding = warning if report.managed else error
        yield finding(
            f"has no network with {SHARED} {address}, got {', '.join(report.routes) or 'none'}: other "
            "hosts would not find it",
            "use a free address of the network that hosts.virtual_ip.interface is in",
        )


def _overlaps(required: HostRequirements, report: Report) -> Iterator[Finding]:
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


PRIORITIES = 8
_MLNX_TRUST = re.compile(r"Priority trust state: (?P<trust>dscp|pcp)\b")
_MLNX_DSCP = re.compile(r"prio:(?P<priority>[0-7]) dscp:(?P<dscps>[\d,]+)")
_MLNX_PFC = re.compile(r"PFC configuration:\s+priority(?:\s+\d){8}\s+enabled(?P<enabled>(?:\s+[01]){8})")
_DCB_PFC = re.compile(r"prio-pfc(?P<enabled>(?:\s+[0-7]:(?:on|off)){8})")
_DCB_APP = re.compile(r"(?P<dscp>\d+):(?P<priority>[0-7])")
_OVERRIDE = re.compile(r"Global tclass=(?P<value>\d+)")

_NOT_READ = Qos(mlnx_qos=None, dcb_pfc=None, dcb_app=None, ecn_np=None, ecn_rp=None, traffic_class=None)


@dataclass(frozen=True)
class Flow:
    """The treatment of NCCL's packets by a rail; None: cannot be read."""

    traffic_class: int
    trust: str | None
    priority: int | None
    pfc: bool | None
    ecn: bool | None

    @property
    def is_controlled(self) -> bool:
        """Whether PFC or ECN is known to be on."""
        return self.pfc is True or self.ecn is True

    @property
    def is_known(self) -> bool:
        """Whether both are known."""
        return self.pfc is not None and self.ecn is not None

    def __str__(self) -> str:
        return (
            f"traffic class {self.traffic_class} (DSCP {self.traffic_class >> 2}), trust "
            f"{self.trust or 'unknown'}, priority {'unknown' if self.priority is None else self.priority}, "
            f"PFC {_state(self.pfc)}, ECN {_state(self.ecn)}"
        )


def check_flow_control(required: HostRequirements, hcas: Iterable[Hca]) -> Iterator[Finding]:
    """Findings for rails without PFC and ECN, and where neither is known to be on."""
    if required.flow_control == "ignore":
        return
    finding = error if required.flow_control == "require" else warning
    rails: dict[Flow, list[str]] = defaultdict(list)
    for name, flow in flows(required, hcas).items():
        rails[flow].append(name)
    for flow, names in rails.items():
        if flow.is_controlled:
            continue
        if flow.is_known:
            pfc = ",".join("1" if each == flow.priority else "0" for each in range(PRIORITIES))
            yield finding(
                f"RoCE rails {', '.join(names)} have {flow}: packets are lost when the fabric is congested",
                f"mlnx_qos -i INTERFACE --trust dscp --pfc {pfc}, and the same on the switches; or set "
                "NCCL_IB_TC in validation.env to the traffic class that the fabric protects",
            )
        else:
            yield finding(
                f"RoCE rails {', '.join(names)} have {flow}: nothing shows that no packets are lost when "
                "the fabric is congested",
                "install mlnx_qos (DOCA-OFED) or dcb (iproute2 5.12 or later), which preflight reads; or set "
                "pools.*.flow_control: ignore",
            )


def flows(required: HostRequirements, hcas: Iterable[Hca]) -> dict[str, Flow]:
    """Name of each rail of a RoCE pool -> its flow."""
    return {
        name: flow_of(port.qos or _NOT_READ, required.traffic_class, required.service_level)
        for name, port in choose_rails(hcas, required).ports.items()
    }


def flow_of(qos: Qos, traffic_class: int, service_level: int) -> Flow:
    """The flow of packets with this traffic class and service level; the driver's override comes first."""
    if override := _OVERRIDE.search(qos.traffic_class or ""):
        traffic_class = int(override["value"])
    trust, priorities, pfc = _from_mlnx_qos(qos) if qos.mlnx_qos is not None else _from_dcb(qos)
    priority = None
    if trust == "dscp":
        priority = priorities.get(traffic_class >> 2)
    elif trust == "pcp":
        priority = service_level if service_level < PRIORITIES else None
    return Flow(traffic_class, trust, priority, _is_on(pfc, priority), _ecn(qos, priority))


def _from_mlnx_qos(qos: Qos) -> tuple[str | None, Mapping[int, int], str]:
    """Trust, priority by DSCP, and for each priority 1 where PFC is on; empty where it is not shown."""
    text = qos.mlnx_qos or ""
    trust, pfc = _MLNX_TRUST.search(text), _MLNX_PFC.search(text)
    priorities = {
        int(dscp): int(match["priority"])
        for match in _MLNX_DSCP.finditer(text)
        for dscp in match["dscps"].split(",")
        if dscp
    }
    return trust["trust"] if trust else None, priorities, "".join(pfc["enabled"].split()) if pfc else ""


def _from_dcb(qos: Qos) -> tuple[str | None, Mapping[int, int], str]:
    """The same as `_from_mlnx_qos`."""
    found = _DCB_PFC.search(qos.dcb_pfc or "")
    states = sorted(found["enabled"].split()) if found else []
    pfc = "".join("1" if state.endswith(":on") else "0" for state in states)
    if qos.dcb_app is None:
        return None, {}, pfc
    priorities = {int(match["dscp"]): int(match["priority"]) for match in _DCB_APP.finditer(qos.dcb_app)}
    return "dscp" if priorities else "pcp", priorities, pfc


def _ecn(qos: Qos, priority: int | None) -> bool | None:
    """Whether ECN is on. Every rail receives and sends, so DCQCN must be on at both points."""
    points = {_is_on(digits, priority) for digits in (qos.ecn_np, qos.ecn_rp)}
    if False in points:
        return False
    return None if None in points else True


def _is_on(digits: str | None, priority: int | None) -> bool | None:
    """The state of a priority among one digit per priority; of an unknown one that of all, if it is one."""
    if digits is None or not re.fullmatch(r"[01]{8}", digits):
        return None
    found = {*digits} if priority is None else {digits[priority]}
    return found == {"1"} if len(found) == 1 else None


def _state(known: bool | None) -> str:
    return {True: "on", False: "off", None: "unknown"}[known]


_RATE = re.compile(r"(?P<gbps>\d+(?:\.\d+)?) Gb/sec")


@dataclass(frozen=True)
class Rails:
    """The ports that carry NCCL traffic, by name; for every other port the reason why it is not a rail."""

    ports: dict[str, Hca]
    ignored: dict[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rails, as in NCCL_IB_HCA."""
        return tuple(self.ports)


def choose_rails(hcas: Iterable[Hca], required: HostRequirements) -> Rails:
    """Choose the rails among the ports of a host."""
    rails: dict[str, Hca] = {}
    ignored: dict[str, str] = {}
    for hca in sorted(hcas, key=lambda hca: (natural(hca.name), hca.port)):
        # Port 1 is the usual one; NCCL_IB_HCA names another as mlx5_0:2.
        name = hca.name if hca.port == 1 else f"{hca.name}:{hca.port}"
        reason = _why_not(hca, required)
        if reason:
            ignored[name] = reason
        else:
            rails[name] = hca
    return Rails(rails, ignored)


def rate_gbps(text: str) -> float:
    """The number in sysfs's `400 Gb/sec (4X NDR)`; 0 if there is none."""
    found = _RATE.match(text)
    return float(found["gbps"]) if found else 0.0


def _why_not(hca: Hca, required: HostRequirements) -> str | None:
    if any(fnmatchcase(hca.name, pattern) for pattern in required.ignore_hcas):
        return "named in ignore_hcas"
    if hca.link_layer.lower() != required.link_layer:
        return f"link layer is {hca.link_layer or 'unknown'}, not {required.link_layer}"
    if not hca.state.endswith("ACTIVE"):
        return f"port is {hca.state.partition(': ')[2] or hca.state or 'in an unknown state'}, not ACTIVE"
    if rate_gbps(hca.rate) != required.rate_gbps:
        return f"rate is {rate_gbps(hca.rate):g} Gb/s, not {required.rate_gbps:g}"
    return None
