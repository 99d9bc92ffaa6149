"""Checks that compare the hosts with each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, Literal

from busbar import names
from busbar.finding import STACK, Finding, Fix, Kind
from busbar.preflight import unchangeable
from busbar.preflight.facts import OTHER_PCI, RAIL_PCI, WITHOUT_K3S, HostRecord
from busbar.preflight.hardware_checks import FULL_KEYS, FULL_MEMBER, is_limited
from busbar.preflight.report import Report
from busbar.preflight.spec import SHARED, Spec
from busbar.text import counted, listed

# Facts that must be equal on all workers of a pool: key, level of a difference, and title.
_EQUAL_FACTS: tuple[tuple[str, Literal["error", "warning"], str], ...] = (
    ("driver", "error", "driver"),
    ("gpu_model", "error", "GPU model"),
    ("hca_firmware", "warning", "HCA firmware"),
    ("roce", "warning", "RoCE settings"),
    ("hca_pci", "warning", "PCI settings of rails"),
    ("gpu_pci", "warning", "PCI settings of GPUs"),
)

# Facts of a rail's port (hardware_checks.port_facts), with what makes them equal.
_EQUAL_OF_PORTS = {
    "active MTU": "set one MTU in the subnet manager (RoCE: on interfaces and switches); see ibv_devinfo",
    "MTU of the network interface": "ip link set INTERFACE mtu MTU, and make it permanent",
    "P_Key": "put the ports of all workers into one partition, at the same index (subnet manager; cat "
    "/sys/class/infiniband/*/ports/*/pkeys/*)",
    "GID type": "give the network interfaces their addresses in the same order (show_gids), or leave "
    "NCCL_IB_GID_INDEX out of validation.env",
}


def check_across_hosts(
    spec: Spec, reports: Mapping[str, Report], records: Mapping[str, HostRecord]
) -> list[Finding]:
    """Findings about several hosts. `reports`: hosts queried now; `records`: all hosts with facts."""
    # A host that is left out has no fingerprint: its facts may be of other entries of the tables.
    known = {name: each.facts for name, each in records.items() if each.fingerprint}
    return [
        *duplicate_machine_ids(spec, records),
        *_duplicate_hostnames(reports),
        *_other_clusters(spec, reports),
        *_swapped_workers(spec, reports),
        *_quorum_at_risk(spec, reports),
        *_unchangeable_keys(spec, reports),
        *_shared_address_in_use(spec, reports),
        *pool_mismatches(spec, records),
        *port_mismatches(pools_of(spec, known), known),
        # A host that is not queried now may have got another kernel since.
        *_unlike_their_pool(
            spec, {name: report.kernel for name, report in reports.items()}, "warning", "kernel"
        ),
        *_other_hcas_at_rails(spec, records),
    ]


def _duplicates(values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Pairs of hosts with equal values: the later host, and the first one with that value."""
    seen: dict[str, str] = {}
    for name, value in values.items():
        if (first := seen.setdefault(value, name)) != name:
            yield name, first


def duplicate_machine_ids(spec: Spec, records: Mapping[str, HostRecord]) -> Iterator[Finding]:
    """Find machines that are listed as two hosts; of a running host and its clone, the clone."""
    known = [host.name for host in spec.hosts if host.name in records]
    known.sort(key=lambda name: WITHOUT_K3S in records[name].facts)
    for name, first in _duplicates({name: records[name].machine for name in known}):
        yield Finding(
            (name,),
            f"has the machine-id of {first}: one machine listed twice, or a cloned image",
            "correct the address; on a clone: rm -f /etc/machine-id /var/lib/dbus/machine-id && "
            "systemd-machine-id-setup, then reboot",
        )


def _duplicate_hostnames(reports: Mapping[str, Report]) -> Iterator[Finding]:
    for name, first in _duplicates({name: report.hostname for name, report in reports.items()}):
        what = f"has the host name {reports[name].hostname!r}, which {first} has too"
        yield Finding((name,), what, f"hostnamectl set-hostname {name}")


def _other_clusters(spec: Spec, reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Find hosts that were installed by another cluster, possibly one whose stack is lost."""
    for name, report in reports.items():
        if spec.install_id is not None and report.owner.install_id not in ("", spec.install_id):
            yield of_another_cluster(name, report.owner.owner)


def of_another_cluster(host: str, owner: str, kind: Kind = "error") -> Finding:
    """The finding about a host with the owner mark of another cluster."""
    fix = Fix(
        "correct its address in this file, perhaps a copy of that one's; if this state is lost",
        ("recover", STACK),
        "; if that cluster is to lose the host, remove it from that one's file and update that, "
        "or where it is not listed any more: busbar docs hosts 'By hand'",
    )
    return Finding((host,), f"belongs to another cluster: {owner} installed it", fix, kind=kind)


def _swapped_workers(spec: Spec, reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Find workers listed under the name of another worker of this cluster: K3s refuses both."""
    workers = {host.name for host in spec.hosts if host.role == "worker"}
    for name, report in reports.items():
        mark = report.owner
        installed_as = names.host_of(mark.owner)
        if installed_as in workers - {name} and spec.install_id in (None, mark.install_id):
            yield Finding(
                (name,),
                f"is the machine that was installed as {installed_as}, which is listed with another machine",
                f"exchange address and host_key of {name} and {installed_as}; to change names for good, "
                "remove both, run an update, and list them again",
            )


def _shared_address_in_use(spec: Spec, reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Find a shared address, not yet on any of its hosts, that another machine already has."""
    sharing = [host for host in spec.hosts if SHARED in spec.requirements_of(host).networks]
    found = [reports[host.name] for host in sharing if host.name in reports]
    if not found or len(found) < len(sharing):
        return
    address = spec.requirements_of(sharing[0]).networks[SHARED]
    if any(each.shared_answers for each in found) and not any(address in each.addresses for each in found):
        yield Finding(
            (sharing[0].name,),
            f"another machine answers at {SHARED} {address}: the network would have it twice",
            "switch off a former machine of these hosts that still has it; else use a free address: one that "
            "load balancers or servers share now is free after they are removed",
        )


def _quorum_at_risk(spec: Spec, reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Find a running server that is to leave etcd while a remaining one is down."""
    configured = {host.name for host in spec.hosts if host.role == "server"}
    members = next((report.etcd_members for report in reports.values() if report.etcd_members), ())
    leaving = [member.name for member in members if member.ready and member.name not in configured]
    for member in members:
        if leaving and not member.ready and member.name in configured:
            yield Finding(
                (member.name,),
                f"its Node is not Ready, and {', '.join(leaving)} would leave etcd, which has {len(members)} "
                "members: etcd could lose its majority",
                f"systemctl start k3s on {member.name} first, or keep {', '.join(leaving)} until it is Ready",
            )


def _unchangeable_keys(spec: Spec, reports: Mapping[str, Report]) -> Iterator[Finding]:
    servers = [host for host in spec.hosts if host.role == "server"]
    if servers:
        found = {host.name: reports[host.name] for host in servers if host.name in reports}
        yield from unchangeable.check(spec.requirements_of(servers[0]).unchangeable, found)


def pool_mismatches(spec: Spec, records: Mapping[str, HostRecord]) -> Iterator[Finding]:
    """Find workers whose driver, GPUs, firmware or settings differ from those of most of their pool."""
    for key, level, title in _EQUAL_FACTS:
        values = {name: _text(record.facts.get(key)) for name, record in records.items()}
        yield from _unlike_their_pool(spec, values, level, title)


def _unlike_their_pool(
    spec: Spec, values: Mapping[str, str], level: Literal["error", "warning"], title: str
) -> Iterator[Finding]:
    """Find workers whose value differs from that of most of their pool."""
    for pool, hosts in pools_of(spec, values).items():
        common = Counter(values[name] for name in hosts).most_common(1)[0][0]
        for name in hosts:
            if values[name] != common:
                yield Finding(
                    (name,),
                    f"has {title} {values[name] or 'none'}, most workers of pool {pool} have "
                    f"{common or 'none'}",
                    f"use the same {title} on all workers of a pool",
                    kind=level,
                )


def pools_of(spec: Spec, known: Container[str]) -> dict[str, list[str]]:
    """The workers of each pool that are compared: those that are known, and not in quarantine."""
    pools: dict[str, list[str]] = defaultdict(list)
    for host in spec.hosts:
        if host.pool and host.name in known and host.name not in spec.quarantined:
            pools[host.pool].append(host.name)
    return pools


def port_mismatches(
    pools: Mapping[str, Sequence[str]], known: Mapping[str, Mapping[str, Any]]
) -> Iterator[Finding]:
    """Find rails that cannot talk to the same rails of their pool. `known`: the facts of each host."""
    for pool, hosts in pools.items():
        ports = {name: known[name].get("ports", {}) for name in hosts}
        for title, fix in _EQUAL_OF_PORTS.items():
            values = {
                (name, rail): _comparable(found[title])
                for name, rails in ports.items()
                for rail, found in rails.items()
                if title in found
            }
            counts: dict[str, Counter[str]] = defaultdict(Counter)
            for (_, rail), value in values.items():
                counts[rail][value] += 1
            differing: dict[tuple[str, str, str], list[str]] = defaultdict(list)
            for (name, rail), value in values.items():
                [(most, _)] = counts[rail].most_common(1)
                if value != most:
                    differing[name, value, most].append(rail)
            for (name, got, most), rails in differing.items():
                what = f"has {title} {got} on {listed(rails)}, most workers of pool {pool} have {most}"
                yield Finding((name,), f"{what}: RDMA between them fails", fix)
        yield from _limited_members(pool, ports)


def _comparable(text: str) -> str:
    """A fact of a port as it is compared: a P_Key without its membership, as that of a full member."""
    return f"0x{int(text, 16) | FULL_MEMBER:04x}" if text.startswith("0x") else text


def _limited_members(pool: str, ports: Mapping[str, Mapping[str, Mapping[str, str]]]) -> Iterator[Finding]:
    """Find rails that are limited members of their partition on several hosts."""
    limited: dict[str, list[str]] = defaultdict(list)
    for name, of_host in ports.items():
        for rail, found in of_host.items():
            if is_limited(found.get("P_Key", "0xffff")):
                limited[rail].append(name)
    for name, of_host in ports.items():
        rails = [rail for rail in of_host if name in limited[rail] and len(limited[rail]) > 1]
        if rails:
            found = of_host[rails[0]]
            yield Finding(
                (name,),
                f"is a limited member of its partition on {listed(rails)} (P_Key {found['P_Key']}), as "
                f"{counted(len(limited[rails[0]]) - 1, 'other worker')} of pool {pool}: two limited members "
                f"cannot talk. P_Keys with full membership there: {found[FULL_KEYS]}",
                "set NCCL_IB_PKEY in validation.env to the index of one with full membership, or make the "
                "ports full members in the subnet manager",
            )


def _other_hcas_at_rails(spec: Spec, records: Mapping[str, HostRecord]) -> Iterator[Finding]:
    """Find other HCAs at a rail's PCI address: the SR-IOV device plugin has one list for all nodes."""
    workers = [host for host in spec.hosts if host.role == "worker" and host.name in records]
    rails: dict[str, str] = {}
    for host in workers:
        for address in records[host.name].facts.get(RAIL_PCI, ()):
            rails.setdefault(address, host.name)
    for host in workers:
        required, facts = spec.requirements_of(host), records[host.name].facts
        # A host with too few rails has a finding that names the ports: one of them is down.
        if not required.offered or len(facts.get("rails", ())) != required.rails:
            continue
        for address in facts.get(OTHER_PCI, ()):
            if address in rails:
                yield Finding(
                    (host.name,),
                    f"has an HCA that is not a rail at {address}, where {rails[address]} has a rail: the "
                    "SR-IOV device plugin, which has one list for all nodes, would offer it to pods",
                    "use hosts with the same slots in one cluster, or disable that HCA; or set pciAddresses "
                    "in network_operator.selectors yourself",
                )


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value or "")
