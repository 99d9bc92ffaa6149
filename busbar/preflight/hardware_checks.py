"""Checks a worker's GPUs, HCAs and the needs of GPUDirect RDMA against the requirements of its pool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from packaging.version import Version

from busbar import versions
from busbar.finding import Finding, Fix, error, warning
from busbar.hosts import supported_os
from busbar.preflight.network_checks import Rails, check_flow_control, choose_rails
from busbar.preflight.report import Hca, Report
from busbar.preflight.spec import HostRequirements
from busbar.text import counted, listed

# DMA-BUF: open kernel modules, CUDA 11.7 (driver 515), kernel 5.12 (cloud-native-docs gpu-operator-rdma.rst).
DMA_BUF_KERNEL = Version("5.12")
DMA_BUF_DRIVER = Version("515")
NO_VERSION = Version("0")
# State and status in `nvidia-smi -q`; N/A also on A100 with a Fabric Manager that runs.
UNKNOWN = "unknown: "
MAX_READ_REQUEST = 4096
FULL_MEMBER, FULL_KEYS = 0x8000, "full P_Keys"
FABRIC_IS_UP, NO_FABRIC = "Completed, Success", ("N/A", "Not Supported")


def check_hardware(required: HostRequirements, report: Report) -> Iterator[Finding]:
    """The findings about a worker's hardware."""
    if required.driver_on_host:
        yield from _gpus(required, report)
        yield from _fabric_manager(report)
    else:
        yield from _count(required, report.gpus.pci if report.gpus else 0, "on the PCI bus")
    yield from _rails(required, report)
    yield from _ports(required, report)
    yield from check_flow_control(required, report.hcas)
    yield from _memlock(required, report)
    yield from _hcas_of_pods(required, report)
    if required.transport == "gpudirect-rdma" and required.driver_on_host:
        yield from _gpudirect(report)
    yield from _between_devices(report)
    yield from _pci_settings(required, report)


def _gpus(required: HostRequirements, report: Report) -> Iterator[Finding]:
    gpus = report.gpus
    if gpus is not None and gpus.empty_libraries:
        yield error(
            f"{', '.join(gpus.empty_libraries)} of the NVIDIA driver has 0 bytes: programs cannot load it",
            "install the driver's packages again (apt-get install --reinstall; dpkg -S FILE names them), and "
            "check the disk: df -h, dmesg",
        )
    if gpus is not None and gpus.inforom:
        yield error(
            f"nvidia-smi exits with 14, which the GPU Operator takes for a missing driver: {gpus.inforom}",
            "have the vendor replace the GPU; until then set quarantine: REASON for the host (stack file)",
        )
    if gpus is None:
        yield error("report has no GPUs", "run preflight again: the report is incomplete")
    elif gpus.status == "missing":
        what = "nvidia-smi is not installed"
        yield error(what, "install the NVIDIA driver; the GPU Operator uses the driver of the host")
    elif gpus.status == "failed":
        what = f"nvidia-smi failed: {gpus.error or 'timed out after 60 s'}"
        yield error(what, "look at dmesg for NVRM and Xid lines; after a driver update, reboot")
    else:
        yield from _gpu_list(required, report)


def _gpu_list(required: HostRequirements, report: Report) -> Iterator[Finding]:
    found = report.gpus.list if report.gpus else ()
    yield from _count(required, len(found), f"({report.gpus.pci if report.gpus else 0} on the PCI bus)")
    slow = sum(not gpu.persistence_mode for gpu in found)
    if slow:
        yield warning(
            f"persistence mode is off on {counted(slow, 'GPU')}: nvidia-smi and GPU pods need a minute",
            "systemctl enable --now nvidia-persistenced",
        )
    sliced = sum(gpu.mig for gpu in found)
    if sliced:
        yield error(
            f"MIG is enabled on {counted(sliced, 'GPU')}: pods get slices, over which NCCL does not run",
            "nvidia-smi -mig 0, then reboot or reset the GPUs",
        )
    models = sorted({gpu.model for gpu in found})
    if required.gpu_model and any(required.gpu_model.lower() not in model.lower() for model in models):
        what = f"GPU model is {', '.join(models)}, expected {required.gpu_model}"
        yield error(what, "move the host to another pool, or correct pools.*.gpu_model")
    elif len(models) > 1:
        what = f"different GPU models on one host: {', '.join(models)}"
        yield error(what, "use identical GPUs: NCCL runs at the speed of the slowest")


def _count(required: HostRequirements, found: int, where: str) -> Iterator[Finding]:
    if found != required.gpus:
        look = "look for a GPU that fell off the bus (dmesg | grep -i xid; lspci -d 10de:), or "
        fix = f"{look if found < required.gpus else ''}correct pools.*.gpus"
        yield error(f"{counted(found, 'GPU')} {where}, expected {required.gpus}", fix)


def _fabric_manager(report: Report) -> Iterator[Finding]:
    manager = report.fabric_manager
    driver = report.gpus.list[0].driver if report.gpus and report.gpus.list else ""
    if manager is None or not driver:
        return
    is_here = manager.version or manager.nvswitches
    if is_here and manager.version != driver:
        package = f"nvidia-fabricmanager-{driver.partition('.')[0]}={driver}-1"
        install = supported_os.install(report.os, package) or f"install Fabric Manager {driver}"
        fix = f"{install}, and restart nvidia-fabricmanager"
        got = f"is {manager.version}" if manager.version else f"is missing ({manager.nvswitches} NVSwitches)"
        yield error(f"Fabric Manager {got}, expected the driver's version {driver}", fix)
    elif is_here and not manager.active:
        what = "Fabric Manager is not active: without it the GPUs cannot use NVSwitch"
        yield error(what, "systemctl enable --now nvidia-fabricmanager")
    elif bad := [state for state in report.fabric if not state.startswith((FABRIC_IS_UP, *NO_FABRIC))]:
        # An error would stop updates of a running cluster.
        finding = warning if report.k3s_data else error
        yield finding(
            f"the NVLink fabric of {counted(len(bad), 'GPU')} is {'; '.join(sorted({*bad}))}, expected "
            f"{FABRIC_IS_UP}: CUDA fails with 802 (system not yet initialized), or NCCL goes without NVLink",
            "start Fabric Manager of the driver's version where the NVSwitches are: in a VM on its host, of "
            "an NVL72 in the rack's control plane; then nvidia-smi -q | grep -A4 Fabric",
        )


def _rails(required: HostRequirements, report: Report) -> Iterator[Finding]:
    if not report.hcas and required.rails:
        what = "no HCA in /sys/class/infiniband"
        yield error(what, "modprobe mlx5_ib, and check that the HCAs are on the bus: lspci -d 15b3:")
        return
    rails = choose_rails(report.hcas, required)
    if len(rails.names) == required.rails:
        if required.offered:
            yield from _offering(rails)
        return
    what = (
        f"{len(rails.names)} rails ({', '.join(rails.names) or 'none'}), expected {required.rails} of "
        f"{required.link_layer} at {required.rate_gbps:g} Gb/s"
    )
    if rails.ignored:
        what += "; not rails: " + ", ".join(f"{name} ({why})" for name, why in rails.ignored.items())
    if len(rails.names) > required.rails:
        fix = "correct pools.*.rails, or list the HCAs that are not rails in pools.*.ignore_hcas"
    else:
        fix = "check cables and switch (ibstat; ibdiagnet), or correct pools.*.rails and rate_gbps"
    yield error(what, fix)


def _offering(rails: Rails) -> Iterator[Finding]:
    """Find rails that the SR-IOV device plugin would not offer (pkg/netdevice/netDeviceProvider.go)."""
    first: dict[str, str] = {}
    for name, port in rails.ports.items():
        if not port.pci:
            yield error(
                f"rail {name} has no PCI address: its `device` in /sys/class/infiniband is not a PCI device",
                "list it in pools.*.ignore_hcas, or check its driver: ls -l /sys/class/infiniband/*",
            )
        elif (other := first.setdefault(port.pci, name)) != name:
            what = f"rails {other} and {name} are ports of one PCI device, {port.pci}, which is offered once"
            yield error(what, "list one of them in pools.*.ignore_hcas and correct pools.*.rails")
        if port.vfs:
            yield error(
                f"rail {name} has {port.vfs} VFs: the SR-IOV device plugin does not offer such a device",
                f"echo 0 > /sys/bus/pci/devices/{port.pci}/sriov_numvfs, and remove what creates them",
            )
        if port.default_route:
            what = f"rail {name} carries the default route: the SR-IOV device plugin does not offer it"
            yield error(what, f"route the default over another interface than {', '.join(port.netdevs)}")


def _memlock(required: HostRequirements, report: Report) -> Iterator[Finding]:
    """Check the limit for locked memory, which RDMA needs and sockets do not."""
    if report.memlock != "unlimited":
        finding = warning if required.transport == "socket" else error
        yield finding(
            f"locked memory is limited to {report.memlock} bytes in a unit with LimitMEMLOCK=infinity, "
            "expected unlimited: RDMA fails with ENOMEM",
            "give the container or VM the capability CAP_SYS_RESOURCE",
        )


def _gpudirect(report: Report) -> Iterator[Finding]:
    gdr, gpus = report.gdr, report.gpus
    if gdr is None or gdr.peermem:
        return
    driver = gpus.list[0].driver if gpus and gpus.list else ""
    missing = []
    if not gdr.open_modules:
        missing.append("the open kernel modules of the driver")
    if (versions.release(report.kernel) or NO_VERSION) < DMA_BUF_KERNEL:
        missing.append(f"kernel 5.12 or later (got {report.kernel})")
    if (versions.release(driver) or NO_VERSION) < DMA_BUF_DRIVER:
        missing.append(f"driver 515 or later (got {driver or 'none'})")
    if missing:
        yield error(
            f"no GPUDirect RDMA: nvidia-peermem is not loaded, and DMA-BUF lacks {'; '.join(missing)}",
            "modprobe nvidia-peermem and add it to /etc/modules-load.d/, or install what DMA-BUF lacks",
        )


def _between_devices(report: Report) -> Iterator[Finding]:
    """Find what sends traffic between GPUs and HCAs over the CPU (NCCL user guide, troubleshooting)."""
    acs = "disable ACS or VT-d in the firmware; until a reboot: setpci -s BRIDGE ECAP_ACS+0x6.w=0000"
    iommu = "boot with iommu=pt (on ARM iommu.passthrough=1), or disable the IOMMU in the firmware"
    for what, devices, fix in (
        ("ACS redirects traffic at PCI bridges above GPUs and HCAs", report.redirecting, acs),
        ("the IOMMU translates the addresses of GPUs and HCAs", report.translated, iommu),
    ):
        if devices:
            yield warning(f"{what} ({listed(devices)}): GPUDirect RDMA is slow, or fails", fix)


def _pci_settings(required: HostRequirements, report: Report) -> Iterator[Finding]:
    """Check what the PCI functions of the rails are set to; cross_checks compares them with other hosts."""
    rails = choose_rails(report.hcas, required).ports
    known = report.pci_settings
    if known is None and rails:
        yield warning(
            f"MaxPayload, MaxReadReq, RlxdOrd and ATSCtl of {listed([*rails])} and of GPUs are unknown: "
            "lspci is not installed",
            supported_os.install(report.os, "pciutils") or "install lspci",
        )
    settings = {name: (known or {}).get(port.pci, {}) for name, port in rails.items()}
    small = [
        name
        for name, found in settings.items()
        if int(found.get("MaxReadReq", MAX_READ_REQUEST)) < MAX_READ_REQUEST
    ]
    if small:
        sizes = sorted({settings[name]["MaxReadReq"] for name in small})
        yield warning(
            f"MaxReadReq of {listed(small)} is {', '.join(sizes)} bytes, NVIDIA's NIC configuration operator "
            f"sets {MAX_READ_REQUEST}",
            "set it in the firmware of the host, or with setpci; then measure again",
        )
    off = [name for name, found in settings.items() if found.get("ATSCtl") == "-"]
    if off and report.virtual_machine not in ("", "none"):
        yield warning(
            f"ATS is off on {listed(off)} in a VM ({report.virtual_machine}): GPUDirect RDMA is slow",
            "enable ATS of the HCAs on the hypervisor, where ACS is to be looked at too",
        )


def pci_text(settings: Mapping[str, str]) -> str:
    """The settings of a PCI function in one line."""
    return ", ".join(f"{name} {value}" for name, value in sorted(settings.items()))


def _ports(required: HostRequirements, report: Report) -> Iterator[Finding]:
    """Check what RDMA needs of each rail's port; cross_checks compares the rest with the other hosts."""
    if required.transport == "socket":
        return
    unknown: dict[str, list[str]] = defaultdict(list)
    for name, port in choose_rails(report.hcas, required).ports.items():
        entries = f"/sys/class/infiniband/{port.name}/ports/{port.port}"
        if port.active_mtu.startswith(UNKNOWN) and not port.netdev_mtu:
            unknown[port.active_mtu].append(name)
        if required.link_layer == "infiniband" and str(required.pkey_index) not in port.pkeys:
            yield error(
                f"rail {name} has no P_Key at index {required.pkey_index}, which NCCL takes; got "
                f"{indexed(port.pkeys)}",
                f"put the port into the job's partition in the subnet manager, or set NCCL_IB_PKEY in "
                f"validation.env to an index of {entries}/pkeys",
            )
        if required.gid_index is not None and str(required.gid_index) not in port.gids:
            yield error(
                f"rail {name} has no GID at index {required.gid_index}, which NCCL_IB_GID_INDEX names; got "
                f"{indexed(port.gids)}",
                f"give its network interface an address, or set NCCL_IB_GID_INDEX in validation.env to an "
                f"index of {entries}/gid_attrs/types",
            )
    for why, names in unknown.items():
        yield warning(
            f"the active MTU of rails {listed(names)} is {why}: another MTU than on other hosts breaks RDMA",
            f"{supported_os.install(report.os, 'ibverbs-utils') or 'install ibv_devinfo'}, and see that "
            "ibv_devinfo lists these HCAs",
        )


def is_limited(pkey: str) -> bool:
    """Whether a port is only a limited member of the partition: two of them cannot talk."""
    return not int(pkey, 16) & FULL_MEMBER


def indexed(entries: Mapping[str, str]) -> str:
    """The entries of a port's table, such as `0: 0x7fff, 1: 0x8a17`."""
    return ", ".join(f"{index}: {text}" for index, text in entries.items()) or "none"


def port_facts(required: HostRequirements, port: Hca) -> dict[str, str]:
    """The facts of a rail's port that the hosts are compared by; those that are unknown are left out.

    `FULL_KEYS`: the P_Keys with full membership.
    """
    full = {index: key for index, key in port.pkeys.items() if not is_limited(key)}
    found = {"P_Key": port.pkeys.get(str(required.pkey_index)), FULL_KEYS: indexed(full)}
    if required.link_layer == "ethernet":
        gid = port.gids.get(str(required.gid_index))
        found = {"GID type": gid, "MTU of the network interface": port.netdev_mtu}
    if not port.active_mtu.startswith(UNKNOWN):
        found["active MTU"] = port.active_mtu
    return {title: text for title, text in found.items() if text}


def _hcas_of_pods(required: HostRequirements, report: Report) -> Iterator[Finding]:
    """Check that a pod sees the HCAs that it requests. Running hosts only get a warning."""
    finding = warning if report.k3s_data else error
    if required.offered and required.transport != "socket" and not report.rdma_is_shared:
        yield finding(
            "RDMA devices are exclusive to a network namespace (ib_core netns_mode=0): pods see no HCA",
            Fix(
                "rdma system set netns shared, and `options ib_core netns_mode=1` in /etc/modprobe.d; or "
                "validation.enabled: false, and judge logs of your own jobs",
                ("nccl", "check", "LOG"),
            ),
        )
