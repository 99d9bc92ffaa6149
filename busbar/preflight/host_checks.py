"""Checks the report of one host against its requirements; every finding has a fix."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from busbar import versions
from busbar.finding import Finding, Fix, error, of_host, warning
from busbar.hosts import supported_os
from busbar.hosts.inventory import Host
from busbar.preflight.hardware_checks import check_hardware, pci_text, port_facts
from busbar.preflight.health_checks import check_health
from busbar.preflight.network_checks import NODE_ROLES, check_network, choose_rails, flows
from busbar.preflight.report import Report
from busbar.preflight.spec import HostRequirements

ARCHITECTURES = ("x86_64", "aarch64")
GIB = 1 << 30
MIN_MEMORY_BYTES = {"lb": 0.4 * GIB, "server": 1.8 * GIB, "worker": 1.8 * GIB, "nfs": 0.4 * GIB}
# Free space on disks below /var/lib/rancher without container images: etcd, image archives, K3s's own files.
OTHER_DISKS_MIN_BYTES = 2e9
# A certificate from a host whose clock is ahead is not yet valid on the others.
MAX_SKEW_SECONDS = 5.0
CLOCK_FIX = "timedatectl set-ntp true on the host (systemd-timesyncd, chrony); check the clock here too"
OTHER_KUBERNETES = ("rke2-server", "rke2-agent", "kubelet")


def check_host(
    host: Host,
    required: HostRequirements,
    report: Report,
    *,
    clock: tuple[float, float],
    in_quarantine: bool = False,
) -> list[Finding]:
    """All findings of one host; those about the hardware of a worker in quarantine are warnings.

    `clock` is the local time (epoch, seconds) before and after the script ran. Only a host whose own time is
    outside of this interval, by more than the tolerance, certainly has a wrong clock.
    """
    checks = [*check_system(report), *_resources(host, required, report), *check_clock(report, clock)]
    checks += check_network(host, required, report)
    if host.role != "nfs":
        checks += _leftovers(host, report)
    if host.role in NODE_ROLES:
        checks += _kubernetes(host.role, required, report)
    if host.role == "worker":
        hardware = [*check_hardware(required, report), *check_health(required, report)]
        if in_quarantine:
            hardware = [warning(f"{each.what} (in quarantine)", each.fix) for each in hardware]
        checks += hardware
    return of_host(host.name, checks)


def host_facts(required: HostRequirements, report: Report) -> dict[str, Any]:
    """The facts to store of a host. None changes on its own, so equal hosts have equal facts."""
    kept: dict[str, Any] = {"os": f"{report.os} {report.os_version}", "arch": report.arch}
    if report.gpus is not None:
        rails = choose_rails(report.hcas, required)
        chosen = {port.name for port in rails.ports.values()}
        used = {port.pci for port in rails.ports.values()}
        by_address = sorted(rails.ports.values(), key=attrgetter("pci"))
        kept |= {
            "gpus": len(report.gpus.list) if required.driver_on_host else report.gpus.pci,
            "gpu_model": report.gpus.list[0].model if report.gpus.list else "",
            "driver": report.gpus.list[0].driver if report.gpus.list else "",
            "rails": list(rails.names),
            "ignored_hcas": rails.ignored,
            "hca_firmware": sorted({hca.fw for hca in report.hcas if hca.name in chosen}),
            "kernel": report.kernel,
            "rail_pci": sorted(used),
            "other_pci": sorted({hca.pci for hca in report.hcas if hca.pci} - used),
        }
        interfaces = [next(iter(port.netdevs), "") for port in by_address]
        if any(interfaces):
            kept["rail_interfaces"] = interfaces
        settings = report.pci_settings or {}
        for key, addresses in (
            ("hca_pci", settings.keys() & used),
            ("gpu_pci", settings.keys() - {hca.pci for hca in report.hcas}),
        ):
            if addresses:
                kept[key] = sorted({pci_text(settings[address]) for address in addresses})
        if report.nfs_client is not None and not report.nfs_client.installed:
            kept["nfs_client"] = False
        if required.transport != "socket":
            kept["ports"] = {name: port_facts(required, port) for name, port in rails.ports.items()}
        if required.flow_control != "ignore":
            kept["roce"] = sorted({str(flow) for flow in flows(required, report.hcas).values()})
    return kept


def check_system(report: Report) -> Iterator[Finding]:
    """Operating system, processor, and the programs that every script needs."""
    known = supported_os.SUPPORTED_OS.get(report.os)
    if known is None:
        yield error(
            f"operating system is {f'{report.os} {report.os_version}'.strip() or 'unknown'}, expected one of "
            f"{supported_os.describe()}; busbar lacks: {supported_os.missing(report.os)}",
            "install a supported operating system",
        )
    elif report.os_version not in known:
        what = f"operating system is {report.os} {report.os_version}, supported are {', '.join(known)}"
        yield warning(what, "use a supported release, or ignore this")
    if report.arch not in ARCHITECTURES:
        what = f"processor is {report.arch}, expected {' or '.join(ARCHITECTURES)}"
        yield error(what, "use another host: K3s has no build for it")
    if not report.systemd:
        yield error("systemd is not the init system", "boot with systemd: K3s and HAProxy are its units")
    if report.missing_tools:
        fix = supported_os.install(report.os, supported_os.BASE_PACKAGES)
        missing = ", ".join(report.missing_tools)
        yield error(f"missing tools: {missing}", fix or "install the packages with these tools")


def _resources(host: Host, required: HostRequirements, report: Report) -> Iterator[Finding]:
    images, *others = report.disks
    if images.free_bytes < required.min_disk_gb * 1e9:
        yield error(
            f"{images.free_bytes / 1e9:.1f} GB free on {images.path}, the disk of /var/lib/rancher/k3s/agent/"
            f"containerd, expected {required.min_disk_gb} GB",
            "free some space, mount a larger disk there, or lower min_disk_gb of the pool",
        )
    for disk in others:
        if disk.free_bytes < OTHER_DISKS_MIN_BYTES:
            yield error(
                f"{disk.free_bytes / 1e9:.1f} GB free on {disk.path}, expected "
                f"{OTHER_DISKS_MIN_BYTES / 1e9:g} GB",
                "free some space, or mount a larger disk there",
            )
    if not report.tmp_is_writable:
        what = "/tmp has no room for a file of 1 MB, and the scripts of busbar need one there"
        yield error(what, "see df -h /tmp, df -i /tmp and mount: free some space, or mount it writable")
    if report.memory_bytes < MIN_MEMORY_BYTES[host.role]:
        yield error(
            f"{report.memory_bytes / GIB:.1f} GiB of memory, expected at least "
            f"{MIN_MEMORY_BYTES[host.role] / GIB:.1f} GiB for role {host.role}",
            "add memory",
        )


def clock_error(epoch: float, clock: tuple[float, float]) -> str | None:
    """The error of a host whose clock said `epoch` within the interval `clock` (seconds), or None."""
    before, after = clock
    skew = max(before - epoch, epoch - after)
    if skew <= MAX_SKEW_SECONDS:
        return None
    direction = "behind" if epoch < before else "ahead of"
    return f"clock is {skew:.0f} s {direction} this machine's, expected at most {MAX_SKEW_SECONDS:g} s"


def check_clock(report: Report, clock: tuple[float, float]) -> Iterator[Finding]:
    """Check the host's clock; `clock` as for `check_host`."""
    if wrong := clock_error(report.epoch, clock):
        yield error(wrong, CLOCK_FIX)
    elif report.clock_synchronised == "no":
        yield warning("clock is not synchronised", "timedatectl set-ntp true")


def _leftovers(host: Host, report: Report) -> Iterator[Finding]:
    active = set(report.active_units)
    for unit in OTHER_KUBERNETES:
        if unit in active:
            fix = f"use another host; or take it out of that cluster, then systemctl disable --now {unit}"
            yield error(f"belongs to another Kubernetes cluster: {unit} is active", fix)
    foreign = active - {*report.managed}
    for role, unit in (("lb", "haproxy"), ("server", "k3s"), ("worker", "k3s-agent")):
        if role != host.role and unit in report.managed:
            what, docs = f"busbar has installed it in another role ({unit})", ("docs", "hosts", "'By hand'")
            yield error(what, Fix("keep that role; or take it out, update, list it again; if it stays", docs))
    if host.role == "lb":
        if {"k3s", "k3s-agent"} & foreign:
            what = "is a K3s node, which uses the API port that HAProxy needs"
            yield error(what, "use another host for the load balancer")
        ports = [str(each.port) for each in report.listening if each.process == "haproxy"]
        if ports and "haproxy" not in report.managed:
            what = f"haproxy, which busbar did not install, serves TCP port {', '.join(ports)}; its "
            fix = "use another host for the load balancer; or stop it: systemctl disable --now haproxy"
            if report.owner.owner:
                mark = "sed -i '1i # Written by busbar' /etc/haproxy/haproxy.cfg"
                fix = f"one of this cluster, edited by hand: {mark}, and retry; else {fix}"
            yield error(f"{what}configuration would be replaced", fix)
        return
    if host.role == "server" and report.server_name not in ("", host.name):
        yield error(
            f"is a K3s server named {report.server_name}, which is its name in etcd and cannot change",
            Fix(
                f"keep the name {report.server_name} in hosts.servers, or rename servers one at a time",
                ("docs", "hosts", "'Renaming and moving'"),
            ),
        )
    k3s = [unit for unit in ("k3s", "k3s-agent") if unit in foreign]
    if k3s or (report.k3s_data and not report.managed):
        fix = (
            "take it out of hosts; or k3s-uninstall.sh or k3s-agent-uninstall.sh, which delete its data; one "
            "without data: rm its units, and move its config.yaml into /etc/rancher/k3s/config.yaml.d/"
        )
        if k3s and report.owner.owner:
            unit = f"/etc/systemd/system/{k3s[0]}.service"
            fix = f"one of this cluster that was upgraded by hand: rm {unit}, and retry; else {fix}"
        yield error("has a K3s that busbar did not install", fix)


def _kubernetes(role: str, required: HostRequirements, report: Report) -> Iterator[Finding]:
    yield from _upgrade(role, required, report)
    yield from _rotation(required, report)
    if required.cgroup_v2 and report.cgroup == "v1":
        if report.cgroup_v1_allowed:
            what = "uses cgroup v1, allowed by a kubelet drop-in (failCgroupV1: false)"
            yield warning(what, "plan the move to cgroup v2: Kubernetes is going to drop v1")
        else:
            yield error(
                "uses cgroup v1, with which the kubelet of Kubernetes 1.35 and later does not start",
                "boot with systemd.unified_cgroup_hierarchy=1; or for now failCgroupV1: false in a complete "
                "KubeletConfiguration, /var/lib/rancher/k3s/agent/etc/kubelet.conf.d/10-cgroup.conf",
            )


def _rotation(required: HostRequirements, report: Report) -> Iterator[Finding]:
    """Refuse lower numbers of `k3s.rotate`: they would bring back an earlier token."""
    for kind, done in report.rotated.items():
        if (wanted := required.rotate.get(kind, 0)) < done:
            what = f"k3s.rotate.{kind} is {wanted}, and this host has done {done}"
            yield error(what, f"set it to {done}, or to a higher number to rotate again")


def _upgrade(role: str, required: HostRequirements, report: Report) -> Iterator[Finding]:
    """K3s goes up one minor version at a time, and never down (k3s-io/docs docs/upgrades/manual.md)."""
    installed, wanted = versions.release(report.k3s_version), versions.release(required.k3s_version)
    if installed is None or wanted is None or installed.release[:2] == wanted.release[:2]:
        return
    if wanted < installed:
        yield error(
            f"runs K3s {report.k3s_version}, which is newer than k3s.version {required.k3s_version}",
            f"set k3s.version to {report.k3s_version} or later: a minor version cannot be downgraded",
        )
    elif wanted.major != installed.major or wanted.minor - installed.minor > 1:
        between = f"v{installed.major}.{installed.minor + 1}"
        fix = f"upgrade to a {between} release first: Kubernetes supports one minor version at a time"
        yield error(f"runs K3s {report.k3s_version}, and {required.k3s_version} skips a minor version", fix)
    elif role == "server" and versions.contains(versions.K3S_WITH_REMOVED_MEMBERS, report.k3s_version):
        yield error(
            f"runs K3s {report.k3s_version}, whose etcd may keep servers that were replaced as members; with "
            f"{required.k3s_version} they count, and etcd loses its majority",
            "upgrade to v1.33.8 or later first",
        )
