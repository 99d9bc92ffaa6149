"""One report against its requirements: each case changes one fact of a good host."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.finding import Finding
from busbar.preflight.host_checks import check_host, host_facts
from busbar.preflight.spec import HostRequirements
from tests.support.reports import CLOCK, hca, report
from tests.unit.preflight.samples import REQUIRED, a_host

PROXY = {"address": "10.0.0.9:3128", "file": "/etc/environment", "answers": False}
SMALL = {"path": "/", "free_bytes": 12 * 10**9}
NVME = {"path": "/var/lib/rancher/k3s/agent/containerd", "free_bytes": 10**12}
NO_DRIVER = {"status": "missing", "error": "", "list": [], "pci": 8}
CONTAINER = REQUIRED.model_copy(update={"driver_on_host": False, "transport": "gpudirect-rdma"})


def findings(role: str = "worker", required: HostRequirements = REQUIRED, **changes: Any) -> list[Finding]:
    return check_host(a_host(role=role), required, report(**changes), clock=CLOCK)


def test_what_is_broken_on_a_worker_in_quarantine_is_a_warning_and_what_concerns_its_system_is_not() -> None:
    broken = report(hcas=[], tmp_is_writable=False)
    found = check_host(a_host(), REQUIRED, broken, clock=CLOCK, in_quarantine=True)
    [error] = [each for each in found if each.kind == "error"]
    assert "/tmp" in error.what
    assert [each.what.endswith(" (in quarantine)") for each in found if each.kind == "warning"] == [True]


def only(found: list[Finding]) -> Finding:
    assert len(found) == 1, [finding.what for finding in found]
    return found[0]


def test_a_good_worker_has_no_findings() -> None:
    assert findings() == []


@pytest.mark.parametrize(
    ("os", "version"),
    [("ubuntu", "22.04"), ("ubuntu", "24.04"), ("ubuntu", "26.04"), ("debian", "12"), ("debian", "13")],
)
def test_a_worker_with_a_supported_operating_system_has_no_findings(os: str, version: str) -> None:
    assert findings(os=os, os_version=version) == []


def test_a_worker_whose_rails_are_not_known_needs_no_hca() -> None:
    assert findings(required=REQUIRED.model_copy(update={"rails": 0}), hcas=[]) == []


@pytest.mark.parametrize(("expected", "looks"), [(9, True), (7, False)])
def test_only_a_gpu_that_is_missing_is_looked_for(expected: int, looks: bool) -> None:
    [found] = [
        each
        for each in findings(required=REQUIRED.model_copy(update={"gpus": expected}))
        if "GPU" in each.what
    ]
    assert ("fell off the bus" in str(found.fix), "correct pools.*.gpus" in str(found.fix)) == (looks, True)


@pytest.mark.parametrize("role", ["lb", "server"])
def test_a_good_host_without_gpus_has_no_findings(role: str) -> None:
    assert findings(role, gpus=None, fabric_manager=None, gdr=None, hcas=[]) == []


@pytest.mark.parametrize(
    ("changes", "level", "what"),
    [
        (
            {"os": "plan9", "os_version": "4"},
            "error",
            "operating system is plan9 4, expected one of ubuntu 22.04/24.04/26.04, debian 12/13; "
            "busbar lacks: packages by any other tool than apt",
        ),
        ({"os": "", "os_version": ""}, "error", "operating system is unknown, expected one of ubuntu"),
        (
            {"os": "rocky", "os_version": "9.4"},
            "error",
            "is rocky 9.4, expected one of ubuntu 22.04/24.04/26.04, debian 12/13; busbar lacks: "
            "packages by dnf, rules for firewalld, and SELinux (the policy k3s-selinux)",
        ),
        ({"os": "sles", "os_version": "15.7"}, "error", "busbar lacks: packages by zypper, and rules for"),
        (
            {"os_version": "25.10"},
            "warning",
            "operating system is ubuntu 25.10, supported are 22.04, 24.04, 26.04",
        ),
        ({"arch": "riscv64"}, "error", "processor is riscv64, expected x86_64 or aarch64"),
        ({"systemd": False}, "error", "systemd is not the init system"),
        ({"missing_tools": ["curl", "flock"]}, "error", "missing tools: curl, flock"),
        ({"disks": [SMALL]}, "error", "12.0 GB free on /, the disk of /var/lib/rancher/k3s/agent/containerd"),
        ({"disks": [NVME, {"path": "/", "free_bytes": 10**9}]}, "error", "1.0 GB free on /, expected 2 GB"),
        ({"disks": [NVME, SMALL, {"path": "/db", "free_bytes": 10**9}]}, "error", "1.0 GB free on /db, exp"),
        ({"tmp_is_writable": False}, "error", "/tmp has no room for a file of 1 MB"),
        ({"swap_bytes": 8 << 30}, "warning", "8.0 GiB of swap"),
        ({"epoch": CLOCK[0] - 6}, "error", "6 s behind this machine's"),
        ({"epoch": CLOCK[1] + 6}, "error", "6 s ahead of this machine's"),
        ({"clock_synchronised": "no"}, "warning", "clock is not synchronised"),
        ({"default_route": False}, "error", "no default route"),
        (
            {"has_node_address": False},
            "error",
            "no network interface has the address 10.0.0.21, got 10.0.0.21",
        ),
        ({"flannel_address": "198.51.100.7"}, "error", "flannel would use 198.51.100.7, the first address"),
        (
            {"node_address": "2001:db8::1", "flannel_address": "2001:db8::1"},
            "error",
            "2001:db8::1 and k3s.cluster_cidr 10.44.0.0/14 are not of one family",
        ),
        ({"addresses": ["10.0.0.21", "10.45.0.9"]}, "error", "has 10.45.0.9 inside k3s.cluster_cidr"),
        ({"routes": ["10.45.0.0/16"]}, "error", "has 10.45.0.0/16 inside k3s.cluster_cidr 10.44.0.0/14"),
        ({"routes": ["10.43.7.1"]}, "error", "has 10.43.7.1 inside k3s.service_cidr 10.43.0.0/16"),
        ({"unresolved": ["github.com"]}, "error", "cannot resolve github.com, from which it downloads"),
        ({"proxy_answers": False}, "error", "does not reach the proxy"),
        (
            {"login_proxy": PROXY},
            "error",
            "does not reach the proxy 10.0.0.9:3128, which /etc/environment names, and downloads go through",
        ),
        (
            {"login_proxy": PROXY | {"answers": True}},
            "warning",
            "downloads through the proxy 10.0.0.9:3128, which /etc/environment names, and K3s pulls images",
        ),
        ({"cgroup": "v1"}, "error", "cgroup v1"),
        ({"cgroup": "v1", "cgroup_v1_allowed": True}, "warning", "allowed by a kubelet drop-in"),
        ({"active_units": ["docker"]}, "warning", "Docker"),
        *(({"active_units": [unit]}, "warning", f"firewall {unit}") for unit in ("ufw", "firewalld")),
        *(
            ({"active_units": [unit]}, "error", f"another Kubernetes cluster: {unit}")
            for unit in ("kubelet", "rke2-server", "rke2-agent")
        ),
        ({"active_units": ["k3s-agent"]}, "error", "has a K3s that busbar did not install"),
        ({"k3s_data": True}, "error", "has a K3s that busbar did not install"),
        ({"listening": [{"port": 10250, "process": "kubelet"}]}, "error", "port 10250 is in use by kubelet"),
        ({"gpus": NO_DRIVER}, "error", "nvidia-smi is not installed"),
        ({"hcas": []}, "error", "no HCA in"),
    ],
)
def test_each_fault_is_a_finding_with_a_fix(changes: dict[str, Any], level: str, what: str) -> None:
    finding = only(findings(**changes))
    assert (finding.kind, finding.host) == (level, "worker-1")
    assert what in finding.what
    assert str(finding.fix)


def test_a_host_without_iproute2_is_told_so_and_nothing_about_its_addresses() -> None:
    unknown: dict[str, Any] = dict.fromkeys(("addresses", "interfaces", "routes", "listening"), ())
    unknown |= dict.fromkeys(("default_route", "has_node_address"), False)
    unknown |= dict.fromkeys(("node_address", "flannel_address"), "")
    required = REQUIRED.model_copy(update={"interface": "eth0"})
    finding = only(findings(required=required, missing_tools=["ip", "ss"], **unknown))
    assert finding.what == "missing tools: ip, ss"
    assert str(finding.fix).startswith("apt-get install ") and "iproute2" in str(finding.fix)


def test_a_small_disk_is_enough_where_the_images_are_on_another() -> None:
    assert findings(disks=[NVME, SMALL]) == []


def test_a_clock_within_the_measured_interval_is_accepted() -> None:
    assert findings(epoch=CLOCK[1] + 4) == [], "the answer may have been under way that long"


@pytest.mark.parametrize(
    ("role", "unit", "process", "port"),
    [
        ("lb", "haproxy", "haproxy", 6443),
        *(("server", "k3s", process, 6443) for process in ("k3s", "k3s-server")),
        *(("worker", "k3s-agent", process, 10250) for process in ("k3s", "k3s-agent")),
    ],
)
def test_processes_that_busbar_installed_are_accepted(role: str, unit: str, process: str, port: int) -> None:
    listening = [{"port": port, "process": process}]
    assert findings(role, active_units=[unit], managed=[unit], listening=listening) == []


SERVER: dict[str, Any] = {"gpus": None, "fabric_manager": None, "gdr": None, "hcas": [], "managed": ["k3s"]}


def test_a_server_with_data_cannot_be_renamed() -> None:
    finding = only(findings("server", **SERVER, server_name="server-a"))
    assert finding.kind == "error"
    assert "is a K3s server named server-a, which is its name in etcd and cannot change" in finding.what
    assert "keep the name server-a in hosts.servers" in str(finding.fix)


def test_a_server_with_data_under_its_own_name_is_accepted() -> None:
    assert findings("server", **SERVER, server_name="worker-1") == []


@pytest.mark.parametrize(
    ("role", "port"), [("lb", 6443), *(("server", port) for port in (6443, 2379, 2380, 10250))]
)
def test_a_host_needs_the_ports_of_its_role_for_itself(role: str, port: int) -> None:
    finding = only(findings(role, **SERVER, listening=[{"port": port, "process": "nginx"}]))
    assert f"TCP port {port} is in use by nginx" in finding.what


@pytest.mark.parametrize(("role", "least"), [("lb", 0.4), ("server", 1.8), ("worker", 1.8), ("nfs", 0.4)])
def test_a_host_needs_the_memory_of_its_role(role: str, least: float) -> None:
    enough = int(least * (1 << 30)) + 1
    assert findings(role, memory_bytes=enough) == []
    finding = only(findings(role, memory_bytes=enough - 2))
    assert (finding.kind, f"at least {least} GiB for role {role}" in finding.what) == ("error", True)


def test_servers_need_cgroup_v2_too() -> None:
    assert "cgroup v1" in only(findings("server", **SERVER, cgroup="v1")).what


def test_swap_matters_to_the_nodes_of_kubernetes_only() -> None:
    assert only(findings("server", **SERVER, swap_bytes=8 << 30)).kind == "warning"
    assert findings("lb", **SERVER, swap_bytes=8 << 30) == []


def test_a_haproxy_that_serves_the_site_is_not_taken_over() -> None:
    serving = [{"port": 80, "process": "haproxy"}, {"port": 443, "process": "haproxy"}]
    for managed in ([], ["keepalived"]):
        finding = only(findings("lb", active_units=["haproxy"], managed=managed, listening=serving))
        assert finding.kind == "error"
    assert "haproxy, which busbar did not install, serves TCP port 80, 443" in finding.what
    ours = [{"port": 6443, "process": "haproxy"}]
    assert findings("lb", active_units=["haproxy"], managed=["haproxy"], listening=ours) == []
    assert findings("lb", active_units=["haproxy"]) == [], "of an image, with the package's configuration"


@pytest.mark.parametrize("unit", ["k3s", "k3s-agent"])
def test_a_load_balancer_must_not_run_k3s(unit: str) -> None:
    found = findings("lb", active_units=[unit], listening=[{"port": 6443, "process": "k3s-server"}])
    assert any("is a K3s node" in finding.what for finding in found)


def test_a_worker_that_runs_a_server_is_listed_in_the_wrong_role() -> None:
    finding = only(findings(active_units=["k3s"], k3s_data=True))
    assert "k3s is active, but the host is listed as a worker" in finding.what


def gpus(number: int = 8, model: str = "NVIDIA H100 80GB HBM3", driver: str = "570.124.06") -> dict[str, Any]:
    gpu = {"model": model, "driver": driver, "persistence_mode": True, "mig": False}
    return {"status": "ok", "error": "", "list": [gpu] * number, "pci": 8}


def test_gpus_without_persistence_mode_are_a_warning() -> None:
    with_it = gpus()["list"][0]
    found = [with_it] * 5 + [with_it | {"persistence_mode": False}] * 3
    finding = only(findings(gpus={"status": "ok", "error": "", "list": found, "pci": 8}))
    assert finding.kind == "warning"
    assert "persistence mode is off on 3 GPUs" in finding.what
    assert "nvidia-persistenced" in str(finding.fix)


def test_a_missing_gpu_is_counted() -> None:
    assert "7 GPUs (8 on the PCI bus), expected 8" in only(findings(gpus=gpus(7))).what
    assert "9 GPUs (8 on the PCI bus), expected 8" in only(findings(gpus=gpus(9))).what


def test_a_host_whose_driver_comes_as_a_container_needs_none() -> None:
    nothing = {"peermem": False, "open_modules": False}
    assert findings(required=CONTAINER, gpus=NO_DRIVER, gdr=nothing) == []
    assert host_facts(CONTAINER, report(gpus=NO_DRIVER))["gpus"] == 8


def test_without_a_driver_gpus_are_counted_on_the_pci_bus() -> None:
    finding = only(findings(required=CONTAINER, gpus=NO_DRIVER | {"pci": 7}))
    assert "7 GPUs on the PCI bus, expected 8" in finding.what


def test_another_gpu_than_the_pools_is_named() -> None:
    finding = only(findings(gpus=gpus(model="NVIDIA A100-SXM4-80GB")))
    assert "GPU model is NVIDIA A100-SXM4-80GB, expected H100" in finding.what


def test_a_driver_that_fails_is_quoted() -> None:
    text = "Failed to initialize NVML: Driver/library version mismatch"
    finding = only(findings(gpus={"status": "failed", "error": text, "list": [], "pci": 8}))
    assert text in finding.what
    assert "reboot" in str(finding.fix)


def test_fabric_manager_must_be_of_the_drivers_version() -> None:
    finding = only(findings(fabric_manager={"version": "570.86.15", "active": True, "nvswitches": 4}))
    assert "Fabric Manager is 570.86.15, expected the driver's version 570.124.06" in finding.what


def test_fabric_manager_must_run() -> None:
    finding = only(findings(fabric_manager={"version": "570.124.06", "active": False, "nvswitches": 4}))
    assert (finding.kind, "is not active" in finding.what) == ("error", True)


def test_a_rail_that_is_down_is_named_with_its_reason() -> None:
    ports = [hca(f"mlx5_{n}") for n in range(7)] + [hca("mlx5_7", state="1: DOWN")]
    finding = only(findings(hcas=ports))
    assert "7 rails" in finding.what
    assert "mlx5_7 (port is DOWN, not ACTIVE)" in finding.what


def test_an_ethernet_port_among_the_hcas_is_accepted() -> None:
    ports = [hca("mlx5_8", link_layer="Ethernet", rate="100 Gb/sec (2X HDR)")]
    assert findings(hcas=[hca(f"mlx5_{n}") for n in range(8)] + ports) == []


NO_PEERMEM = {"peermem": False, "open_modules": True}
GDR = REQUIRED.model_copy(update={"transport": "gpudirect-rdma"})


def test_dma_buf_does_instead_of_peermem() -> None:
    oldest: dict[str, Any] = {"kernel": "5.12.0-1", "gpus": gpus(driver="515.43.04"), "fabric_manager": None}
    for changes in ({}, oldest):
        assert findings(required=GDR, gdr=NO_PEERMEM, **changes) == []


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({"gdr": {"peermem": False, "open_modules": False}}, "the open kernel modules"),
        ({"gdr": NO_PEERMEM, "kernel": "5.4.0-100-generic"}, "kernel 5.12 or later"),
        (
            {"gdr": NO_PEERMEM, "gpus": gpus(driver="510.47.03"), "fabric_manager": None},
            "driver 515 or later (got 510.47.03)",
        ),
    ],
)
def test_without_peermem_and_dma_buf_there_is_no_gpudirect(changes: dict[str, Any], lacks: str) -> None:
    finding = only(findings(required=GDR, **changes))
    assert finding.kind == "error"
    assert lacks in finding.what
    assert "modprobe nvidia-peermem" in str(finding.fix)


def test_gpudirect_is_not_asked_of_a_pool_that_goes_without() -> None:
    assert findings(gdr={"peermem": False, "open_modules": False}) == []


@pytest.mark.parametrize(("transport", "level"), [("socket", "warning"), ("rdma", "error")])
def test_locked_memory_matters_as_much_as_rdma_does(transport: str, level: str) -> None:
    required = REQUIRED.model_copy(update={"transport": transport})
    assert only(findings(required=required, memlock="8388608")).kind == level


def test_facts_hold_nothing_that_changes_on_its_own() -> None:
    one = host_facts(REQUIRED, report())
    later = host_facts(REQUIRED, report(epoch=2e9, disks=[NVME], hostname="other", machine="bbbbbbbb"))
    assert one == later


def test_a_corrupted_inforom_and_an_empty_library_of_the_driver_are_errors() -> None:
    good = report().gpus
    assert good is not None
    gpus = good.model_dump()
    found = only(findings(gpus=gpus | {"inforom": "WARNING: infoROM is corrupted at gpu 0000:9D:00.0"}))
    assert found.kind == "error" and "infoROM is corrupted at gpu 0000:9D:00.0" in found.what
    library = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05"
    found = only(findings(gpus=gpus | {"empty_libraries": [library]}))
    assert found.kind == "error" and found.what.startswith(f"{library} of the NVIDIA driver has 0 bytes")


RDMA = REQUIRED.model_copy(update={"transport": "gpudirect-rdma"})


@pytest.mark.parametrize(
    ("required", "port", "kind", "what"),
    [
        (
            {},
            {"active_mtu": "unknown: ibv_devinfo is not installed"},
            "warning",
            "the active MTU of rails mlx5_3 is unknown: ibv_devinfo is not installed",
        ),
        (
            {"pkey_index": 1},
            {"pkeys": {"0": "0x7fff"}},
            "error",
            "rail mlx5_3 has no P_Key at index 1, which NCCL takes; got 0: 0x7fff",
        ),
        (
            {"link_layer": "ethernet", "gid_index": 3},
            {"gids": {"0": "IB/RoCE v1", "1": "RoCE v2"}},
            "error",
            "rail mlx5_3 has no GID at index 3, which NCCL_IB_GID_INDEX names; got 0: IB/RoCE v1, 1: RoCE v2",
        ),
    ],
)
def test_a_rail_that_rdma_cannot_use_is_named(
    required: dict[str, Any], port: dict[str, Any], kind: str, what: str
) -> None:
    needs = RDMA.model_copy(update=required)
    good = {
        "link_layer": "Ethernet" if needs.link_layer == "ethernet" else "InfiniBand",
        "pkeys": {"0": "0x7fff", "1": "0x8a17"},
        "gids": {"3": "RoCE v2"},
    }
    ports = [hca(f"mlx5_{n}", **good) for n in range(8)]
    assert findings(required=needs, hcas=ports) == []
    ports[3] |= port
    found = only(findings(required=needs, hcas=ports))
    assert found.kind == kind and found.what.startswith(what)


def test_facts_list_the_rails_in_their_natural_order() -> None:
    ports = [hca(f"mlx5_{n}") for n in (10, 2, 1)]
    assert host_facts(REQUIRED, report(hcas=ports))["rails"] == ["mlx5_1", "mlx5_2", "mlx5_10"]


OFFERED = REQUIRED.model_copy(update={"offered": True, "netdev_selectors": ("pfNames",)})


@pytest.mark.parametrize(
    ("port", "what"),
    [
        ({"pci": ""}, "rail mlx5_7 has no PCI address"),
        ({"pci": "0000:20:00.0"}, "rails mlx5_0 and mlx5_7 are ports of one PCI device, 0000:20:00.0"),
        ({"vfs": 4}, "rail mlx5_7 has 4 VFs"),
        ({"default_route": True}, "rail mlx5_7 carries the default route"),
        ({"netdevs": []}, "rail mlx5_7 has no network interface, which network_operator.selectors.pfNames"),
    ],
)
def test_a_rail_that_the_device_plugin_would_not_offer_is_an_error(port: dict[str, Any], what: str) -> None:
    ports = [hca(f"mlx5_{n}", netdevs=[f"ib{n}"]) for n in range(7)]
    ports.append(hca("mlx5_7", **{"netdevs": ["ib7"], **port}))
    finding = only(findings(required=OFFERED, hcas=ports))
    assert (finding.kind, finding.what.startswith(what)) == ("error", True), finding.what
    assert findings(hcas=ports) == [], "without the Network Operator nothing is offered"


def test_a_missing_ipoib_interface_matters_only_to_selectors_of_the_site() -> None:
    required = OFFERED.model_copy(update={"netdev_selectors": ()})
    assert findings(required=required) == []


def test_facts_tell_the_pci_addresses_of_rails_from_those_of_other_hcas() -> None:
    ports = [hca("mlx5_0"), hca("mlx5_1", state="1: DOWN"), hca("mlx5_2", link_layer="Ethernet")]
    facts = host_facts(REQUIRED, report(hcas=ports))
    assert facts["rail_pci"] == ["0000:20:00.0"]
    assert facts["other_pci"] == ["0000:21:00.0", "0000:22:00.0"]


def test_facts_name_the_interfaces_of_the_rails_in_the_order_of_their_pci_addresses() -> None:
    ports = [
        hca("mlx5_0", pci="0000:29:00.0", netdevs=["ens2"]),
        hca("mlx5_1", pci="0000:18:00.0", netdevs=["ens1"]),
        hca("mlx5_2", pci="0000:40:00.0"),
        hca("mlx5_3", link_layer="Ethernet", netdevs=["eth9"]),
    ]
    assert host_facts(REQUIRED, report(hcas=ports))["rail_interfaces"] == ["ens1", "ens2", ""]
    assert "rail_interfaces" not in host_facts(REQUIRED, report(hcas=[hca("mlx5_0")]))


def test_fabric_manager_must_be_there_where_nvswitches_are() -> None:
    absent = {"version": "", "active": False, "nvswitches": 4}
    assert "Fabric Manager is missing (4 NVSwitches)" in only(findings(fabric_manager=absent)).what
    assert findings(fabric_manager={**absent, "nvswitches": 0}) == [], "a PCIe system, or a VM"


NO_MANAGER = {"version": "", "active": False, "nvswitches": 0}


@pytest.mark.parametrize(
    "state", ["In Progress, N/A", "Not Started, N/A", "Completed, Insufficient Resources"]
)
def test_a_vm_whose_nvlink_fabric_is_not_up_is_named(state: str) -> None:
    in_a_vm: dict[str, Any] = {
        "fabric_manager": NO_MANAGER,
        "fabric": ["Completed, Success"] * 6 + [state] * 2,
    }
    finding = only(findings(**in_a_vm))
    assert (finding.kind, f"of 2 GPUs is {state}, expected Completed" in finding.what) == ("error", True)
    assert "in a VM on its host" in str(finding.fix)
    running: dict[str, Any] = {"k3s_data": True, "managed": ["k3s-agent"]}
    assert only(findings(**in_a_vm, **running)).kind == "warning", "updates go on"


@pytest.mark.parametrize("state", ["Completed, Success", "N/A, N/A"])
def test_a_fabric_that_is_up_and_gpus_without_one_are_accepted(state: str) -> None:
    assert findings(fabric_manager=NO_MANAGER, fabric=[state] * 8) == []


def test_interfaces_in_one_network_are_named_on_workers() -> None:
    both: dict[str, Any] = {"shared_networks": ["10.0.0.0/20 eno1 enp37s0f0"]}
    finding = only(findings(**both))
    assert (finding.kind, "eno1 and enp37s0f0 are in one network, 10.0.0.0/20" in finding.what) == (
        "warning",
        True,
    )
    assert findings("server", **SERVER, **both) == []


@pytest.mark.parametrize(
    ("found", "what", "fix"),
    [
        (
            {"redirecting": ["0000:17:00.0"]},
            "ACS redirects traffic at PCI bridges above GPUs and HCAs (0000:17:00.0)",
            "setpci",
        ),
        (
            {"translated": ["0000:1b:00.0"]},
            "the IOMMU translates the addresses of GPUs and HCAs (0000:1b:00.0)",
            "iommu=pt",
        ),
    ],
)
def test_what_sends_traffic_between_devices_over_the_cpu_is_a_warning(
    found: dict[str, Any], what: str, fix: str
) -> None:
    finding = only(findings(**found))
    assert (finding.kind, what in finding.what, fix in str(finding.fix)) == ("warning", True, True)


def test_gpus_cut_into_slices_are_an_error() -> None:
    gpu = {"model": "NVIDIA H100", "driver": "570.124.06", "persistence_mode": True, "mig": True}
    finding = only(findings(gpus={"status": "ok", "error": "", "list": [gpu] * 8, "pci": 8}))
    assert (finding.kind, "MIG is enabled on 8 GPUs" in finding.what) == ("error", True)


@pytest.mark.parametrize(
    ("installed", "wanted", "says"),
    [
        ("v1.33.4+k3s1", "v1.35.6+k3s1", "skips a minor version"),
        ("v1.36.0+k3s1", "v1.35.6+k3s1", "is newer than k3s.version v1.35.6+k3s1"),
    ],
)
def test_a_version_that_k3s_cannot_go_to_is_refused_before_anything_starts(
    installed: str, wanted: str, says: str
) -> None:
    required = REQUIRED.model_copy(update={"k3s_version": wanted})
    finding = only(findings(required=required, k3s_version=installed))
    assert finding.kind == "error"
    assert says in finding.what


@pytest.mark.parametrize("installed", ["", "v1.34.9+k3s1", "v1.35.2+k3s1", "v1.35.9+k3s1"])
def test_the_next_minor_version_and_any_patch_are_accepted(installed: str) -> None:
    required = REQUIRED.model_copy(update={"k3s_version": "v1.35.6+k3s1"})
    assert findings(required=required, k3s_version=installed) == []


@pytest.mark.parametrize(
    ("installed", "role", "refused"),
    [
        ("v1.33.6+k3s1", "server", True),
        ("v1.33.7+k3s1", "server", True),
        ("v1.33.7+k3s3", "server", False),
        ("v1.33.8+k3s1", "server", False),
        ("v1.33.6+k3s1", "worker", False),
    ],
)
def test_servers_leave_1_33_only_from_a_release_whose_etcd_has_forgotten_replaced_members(
    installed: str, role: str, refused: bool
) -> None:
    required = REQUIRED.model_copy(update={"k3s_version": "v1.34.3+k3s1", "cgroup_v2": False})
    hardware: dict[str, Any] = (
        {} if role == "worker" else {"gpus": None, "fabric_manager": None, "gdr": None, "hcas": []}
    )
    found = [each.what for each in findings(role, required, k3s_version=installed, **hardware)]
    assert [what.startswith(f"runs K3s {installed}, whose etcd may keep") for what in found] == [
        True
    ] * refused


def test_a_number_of_a_rotation_that_is_lower_than_what_was_done_is_refused_before_anything_starts() -> None:
    required = REQUIRED.model_copy(update={"rotate": {"server_token": 1, "certificates": 2}})
    finding = only(findings(required=required, rotated={"server_token": 2, "certificates": 2}))
    assert finding.kind == "error"
    assert finding.what == "k3s.rotate.server_token is 1, and this host has done 2"
    assert str(finding.fix) == "set it to 2, or to a higher number to rotate again"


def test_a_rotation_that_is_due_is_no_finding() -> None:
    required = REQUIRED.model_copy(update={"rotate": {"server_token": 3}})
    assert findings(required=required, rotated={"server_token": 2}) == []


def test_a_route_to_more_than_the_pods_is_no_conflict() -> None:
    assert findings(routes=["10.0.0.0/8", "fd00::/8"]) == []


def test_a_host_on_which_k3s_runs_may_have_the_routes_of_its_pods() -> None:
    running: dict[str, Any] = {"k3s_data": True, "managed": ["k3s-agent"], "k3s_version": "v1.35.6+k3s1"}
    assert findings(addresses=["10.0.0.21", "10.44.3.1"], routes=["10.44.4.0/24"], **running) == []


def test_another_address_of_flannel_is_a_warning_where_k3s_runs_and_nothing_where_the_site_sets_it() -> None:
    running: dict[str, Any] = {"k3s_data": True, "managed": ["k3s-agent"], "flannel_address": "198.51.100.7"}
    assert only(findings(**running)).kind == "warning"
    own = REQUIRED.model_copy(update={"flannel": False})
    assert findings(required=own, flannel_address="198.51.100.7") == []


def test_a_name_that_nothing_is_downloaded_from_any_more_is_a_warning() -> None:
    running: dict[str, Any] = {"k3s_data": True, "managed": ["k3s-agent"], "k3s_version": "v1.35.6+k3s1"}
    assert only(findings(unresolved=["github.com"], **running)).kind == "warning"
    assert (
        only(findings(unresolved=["github.com"], **running | {"k3s_version": "v1.35.2+k3s1"})).kind == "error"
    )


def test_a_server_that_has_the_shared_address_does_not_overlap_with_it() -> None:
    shared = {"hosts.virtual_ip.address": "10.0.0.100"}
    required = REQUIRED.model_copy(update={"interface": "eth0", "networks": REQUIRED.networks | shared})
    has_it = ["10.0.0.21/16", "10.0.0.100/32"]
    assert findings(required=required, addresses=has_it, routes=["10.0.0.0/16"]) == []


def test_a_load_balancer_without_the_interface_of_the_virtual_ip_is_named() -> None:
    required = REQUIRED.model_copy(update={"interface": "eth1"})
    finding = only(findings("lb", required, gpus=None, fabric_manager=None, gdr=None, hcas=[]))
    assert "has no network interface eth1, which carries hosts.virtual_ip; got lo, eth0" in finding.what


GDS = {"peermem": True, "open_modules": True, "nvidia_fs": True}


def test_hcas_of_storage_in_every_pod_are_refused_where_gpudirect_storage_is_loaded() -> None:
    required = REQUIRED.model_copy(update={"all_hcas_with_gds": True})
    finding = only(findings(required=required, gdr=GDS))
    assert (finding.kind, "MOFED_ENABLED" in str(finding.fix)) == ("error", True)
    assert findings(gdr=GDS) == findings(required=required) == []
    running: dict[str, Any] = {"k3s_data": True, "managed": ["k3s-agent"]}
    assert only(findings(required=required, gdr=GDS, **running)).kind == "warning"


def test_hcas_that_pods_do_not_see_are_refused_where_the_validation_needs_them() -> None:
    def found(*, offered: bool, transport: str) -> list[Finding]:
        required = REQUIRED.model_copy(update={"offered": offered, "transport": transport})
        return findings(required=required, rdma_is_shared=False)

    finding = only(found(offered=True, transport="rdma"))
    assert finding.kind == "error" and "netns_mode=0" in finding.what
    assert found(offered=False, transport="rdma") == found(offered=True, transport="socket") == []


@pytest.mark.parametrize(("managed", "level"), [([], "error"), (["haproxy"], "warning")])
def test_a_shared_address_in_no_network_of_the_load_balancer_is_named(managed: list[str], level: str) -> None:
    required = REQUIRED.model_copy(
        update={"interface": "eth0", "networks": {"hosts.virtual_ip.address": "10.0.0.100"}}
    )
    load_balancer: dict[str, Any] = {"gpus": None, "fabric_manager": None, "gdr": None, "hcas": []}
    assert findings("lb", required, routes=["10.0.0.0/24"], **load_balancer) == []
    finding = only(
        findings("lb", required, routes=["10.0.1.0/24", "fd00::/8"], managed=managed, **load_balancer)
    )
    assert finding.kind == level
    assert "no network with hosts.virtual_ip.address 10.0.0.100, got 10.0.1.0/24, fd00::/8" in finding.what


def pci(**changes: str) -> dict[str, Any]:
    """A report whose eight rails have these settings, and good ones otherwise."""
    settings = {"MaxPayload": "256", "MaxReadReq": "4096", "RlxdOrd": "+", "ATSCtl": "+"} | changes
    return {"pci_settings": {hca(f"mlx5_{n}")["pci"]: settings for n in range(8)}}


@pytest.mark.parametrize(
    ("found", "what", "fix"),
    [
        (pci(MaxReadReq="512"), "MaxReadReq of mlx5_0, mlx5_1, mlx5_2, mlx5_3 and 4 more is 512", "setpci"),
        ({"pci_settings": None}, "and of GPUs are unknown: lspci is not installed", "install pciutils"),
        (pci(ATSCtl="-") | {"virtual_machine": "kvm"}, "in a virtual machine (kvm)", "on the hypervisor"),
    ],
)
def test_pci_settings_that_make_rdma_slow_are_a_warning(found: dict[str, Any], what: str, fix: str) -> None:
    finding = only(findings(**found))
    assert (finding.kind, what in finding.what, fix in str(finding.fix)) == ("warning", True, True)


@pytest.mark.parametrize("found", [pci(), pci(ATSCtl="-") | {"virtual_machine": "none"}])
def test_good_pci_settings_are_no_finding(found: dict[str, Any]) -> None:
    assert findings(**found) == []
