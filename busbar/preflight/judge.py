"""One host's report against what the host must have: every finding with its cure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from busbar.hosts.inventory import API_PORT
from busbar.preflight import hardware
from busbar.preflight.rails import choose
from busbar.preflight.report import Report
from busbar.preflight.spec import Finding, Need, Target

SUPPORTED = {"ubuntu": ("22.04", "24.04"), "debian": ("12",)}
ARCHITECTURES = ("x86_64", "aarch64")
GIB = 1 << 30
MIN_MEMORY_BYTES = {"lb": 0.4 * GIB, "server": 1.8 * GIB, "worker": 1.8 * GIB}
# A certificate made on a host ahead of the others is not valid yet on them.
MAX_SKEW_SECONDS = 5.0
KUBELET_PORT = 10250
ETCD_PORTS = (2379, 2380)
OURS = {"lb": ("haproxy",), "server": ("k3s", "k3s-server"), "worker": ("k3s", "k3s-agent")}
OTHER_KUBERNETES = ("rke2-server", "rke2-agent", "kubelet")
FIREWALLS = ("ufw", "firewalld")


def judge(target: Target, need: Need, report: Report, *, clock: tuple[float, float]) -> list[Finding]:
    """All findings of one host.

    `clock` is the operator's time (epoch, seconds) before the question and after the answer: only a host
    whose own time lies outside of it, by more than the tolerance, has a wrong clock for certain.
    """
    checks = [*_system(target, report), *_resources(target, need, report), *_clock(report, clock)]
    checks += _network(target, report)
    checks += _leftovers(target, report)
    if target.role != "lb":
        checks += _kubernetes(need, report)
    if target.role == "worker":
        checks += hardware.judge(need, report)
    return [Finding(target.name, level, what, cure) for level, what, cure in checks]


def facts(need: Need, report: Report) -> dict[str, Any]:
    """What is kept of a host: nothing that changes by itself, so that like hosts are equal."""
    kept: dict[str, Any] = {"os": f"{report.os} {report.os_version}", "arch": report.arch}
    if report.gpus is not None:
        rails = choose(report.hcas, need)
        chosen = {name.partition(":")[0] for name in rails.names}
        kept |= {
            "gpus": len(report.gpus.list) if need.driver_on_host else report.gpus.pci,
            "gpu_model": report.gpus.list[0].model if report.gpus.list else "",
            "driver": report.gpus.list[0].driver if report.gpus.list else "",
            "rails": list(rails.names),
            "ignored_hcas": rails.ignored,
            "hca_firmware": sorted({hca.fw for hca in report.hcas if hca.name in chosen}),
            "kernel": report.kernel,
        }
    return kept


Check = tuple[Any, str, str]


def _system(target: Target, report: Report) -> Iterator[Check]:
    versions = SUPPORTED.get(report.os)
    if versions is None:
        known = ", ".join(f"{name} {'/'.join(numbers)}" for name, numbers in SUPPORTED.items())
        yield "error", f"runs {report.os or 'an unknown system'}", f"Install one of: {known}"
    elif report.os_version not in versions:
        yield (
            "warning",
            f"runs {report.os} {report.os_version}, which busbar is not tested on",
            f"Tested are {', '.join(versions)}",
        )
    if report.arch not in ARCHITECTURES:
        yield "error", f"has a processor of type {report.arch}", "K3s is built for x86_64 and aarch64"
    if not report.systemd:
        yield "error", "is not run by systemd", "Boot it with systemd: K3s and HAProxy run as its units"
    if report.missing_tools:
        tools = ", ".join(report.missing_tools)
        yield "error", f"lacks {tools}", "apt-get install curl iproute2 iptables procps util-linux"


def _resources(target: Target, need: Need, report: Report) -> Iterator[Check]:
    if report.disk_free_bytes < need.min_disk_gb * 1e9:
        yield (
            "error",
            f"has {report.disk_free_bytes / 1e9:.1f} GB free at /var/lib/rancher, needs {need.min_disk_gb}",
            "Free some space, mount a larger disk there, or lower min_disk_gb of the pool",
        )
    if report.memory_bytes < MIN_MEMORY_BYTES[target.role]:
        yield (
            "error",
            f"has {report.memory_bytes / GIB:.1f} GiB of memory, a {target.role} needs "
            f"{MIN_MEMORY_BYTES[target.role] / GIB:.1f}",
            "Give it more memory",
        )
    if report.swap_bytes and target.role != "lb":
        yield (
            "warning",
            f"has {report.swap_bytes / GIB:.1f} GiB of swap",
            "swapoff -a, and remove it from /etc/fstab: Kubernetes accounts for memory as if there were none",
        )


def _clock(report: Report, clock: tuple[float, float]) -> Iterator[Check]:
    before, after = clock
    skew = max(before - report.epoch, report.epoch - after)
    if skew > MAX_SKEW_SECONDS:
        direction = "behind" if report.epoch < before else "ahead of"
        yield (
            "error",
            f"has a clock that is {skew:.0f} s {direction} this machine's",
            "Switch time synchronisation on: timedatectl set-ntp true (systemd-timesyncd or chrony); "
            "or set right this machine's own clock",
        )
    elif report.clock_synchronised == "no":
        yield "warning", "does not synchronise its clock", "timedatectl set-ntp true"


def _network(target: Target, report: Report) -> Iterator[Check]:
    if not report.default_route and target.role != "lb":
        yield (
            "error",
            "has no default route, which K3s needs even in an air gap",
            "ip route add default via GATEWAY, and make it permanent",
        )
    wanted = {"lb": (API_PORT,), "server": (API_PORT, *ETCD_PORTS, KUBELET_PORT), "worker": (KUBELET_PORT,)}
    for listener in report.listening:
        if listener.port in wanted[target.role] and listener.process not in _own(target, report):
            yield (
                "error",
                f"has TCP port {listener.port} taken by {listener.process}",
                f"Stop {listener.process} there, or list the host in another role",
            )
    for unit in report.active_units:
        if unit in FIREWALLS:
            yield (
                "warning",
                f"runs the firewall {unit}",
                "Switch it off, or let in the other hosts, 10.42.0.0/16 and 10.43.0.0/16: a pod network that "
                "a firewall cuts looks healthy until the first job",
            )


def _own(target: Target, report: Report) -> tuple[str, ...]:
    """Processes that may hold the ports: what busbar put there itself."""
    return OURS[target.role] if report.managed else ()


def _leftovers(target: Target, report: Report) -> Iterator[Check]:
    active = set(report.active_units)
    for unit in OTHER_KUBERNETES:
        if unit in active:
            yield (
                "error",
                f"belongs to another Kubernetes: {unit} runs",
                f"Remove it: systemctl stop {unit}",
            )
    if target.role == "lb":
        if {"k3s", "k3s-agent"} & active:
            yield (
                "error",
                "is a K3s node, whose API port HAProxy needs",
                "Take another host for the load balancer",
            )
        return
    unit, other = ("k3s", "k3s-agent") if target.role == "server" else ("k3s-agent", "k3s")
    if other in active:
        yield (
            "error",
            f"runs {other}, but is listed as a {target.role}",
            f"List it in its real role, or remove it: {other}-uninstall.sh",
        )
    foreign = unit in active and unit not in report.managed
    if foreign or (report.k3s_data and not report.managed and other not in active):
        yield (
            "error",
            "carries a K3s that busbar did not install",
            "Remove it with k3s-uninstall.sh or k3s-agent-uninstall.sh (this deletes its data)",
        )
    if "docker" in active:
        yield (
            "warning",
            "runs Docker, whose containerd is easily taken for K3s's own",
            "systemctl disable --now docker, unless you need it",
        )


def _kubernetes(need: Need, report: Report) -> Iterator[Check]:
    if need.cgroup_v2 and report.cgroup == "v1":
        if report.cgroup_v1_allowed:
            yield (
                "warning",
                "uses cgroup v1, allowed by a kubelet drop-in (failCgroupV1: false)",
                "Plan the move to cgroup v2: Kubernetes will drop v1",
            )
        else:
            yield (
                "error",
                "uses cgroup v1, with which the kubelet of Kubernetes 1.35 and later refuses to start",
                "Boot with systemd.unified_cgroup_hierarchy=1; or, for the time being, put failCgroupV1: "
                "false into /var/lib/rancher/k3s/agent/etc/kubelet.conf.d/10-cgroup.conf",
            )
