"""What the preflight script reads from the kernel's files, on copies of them."""

from __future__ import annotations

import base64
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from busbar.preflight.hardware_checks import check_hardware
from busbar.preflight.health_checks import check_health
from busbar.preflight.report import FirstValues, Report
from tests.support import h200
from tests.support.reports import report
from tests.unit.hosts.bash import output, run
from tests.unit.preflight.samples import REQUIRED


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(("capability", "limit"), [(23, "65536"), (24, "unlimited"), (25, "65536")])
def test_an_init_that_may_raise_limits_has_no_limit_of_locked_memory(capability: int, limit: str) -> None:
    awk = f"awk() {{ if [[ $2 == */limits ]]; then echo 65536; else echo {1 << capability:016x}; fi; }}; "
    assert output("preflight", awk + "memlock") == limit


def test_gpus_on_the_pci_bus_are_counted_without_their_audio_and_bridges(tmp_path: Path) -> None:
    devices = [("0x10de", "0x030200"), ("0x10de", "0x030000"), ("0x10de", "0x040300"), ("0x1002", "0x030000")]
    for number, (vendor, kind) in enumerate(devices):
        write(tmp_path / f"0000:0{number}:00.0/vendor", f"{vendor}\n")
        write(tmp_path / f"0000:0{number}:00.0/class", f"{kind}\n")
    assert output("preflight", f"PCI={tmp_path}; pci_gpus | wc -l") == "2\n"


def test_every_port_of_every_hca_is_reported(tmp_path: Path) -> None:
    for device, port, rate in (("mlx5_0", 1, "400 Gb/sec (4X NDR)"), ("mlx5_1", 2, "100 Gb/sec (4X EDR)")):
        folder = tmp_path / device / "ports" / str(port)
        write(folder / "link_layer", "InfiniBand\n")
        write(folder / "state", "4: ACTIVE\n")
        write(folder / "rate", f"{rate}\n")
        write(tmp_path / device / "fw_ver", "28.43.2566\n")
    found = json.loads(output("preflight", f"INFINIBAND={tmp_path}; hcas"))
    assert [(hca["name"], hca["port"], hca["rate"]) for hca in found] == [
        ("mlx5_0", 1, "400 Gb/sec (4X NDR)"),
        ("mlx5_1", 2, "100 Gb/sec (4X EDR)"),
    ]
    assert found[0] == {
        "name": "mlx5_0",
        "port": 1,
        "link_layer": "InfiniBand",
        "state": "4: ACTIVE",
        "rate": "400 Gb/sec (4X NDR)",
        "fw": "28.43.2566",
        "active_mtu": "unknown: ibv_devinfo is not installed",
        "pkeys": {},
        "pci": "",
        "netdevs": [],
        "vfs": 0,
        "default_route": False,
    }


# ibv_devinfo of rdma-core, reduced.
DEVINFO = """\
hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.43.2566
\tphys_port_cnt:\t\t\t2
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t4096 (5)
\t\t\tlink_layer:\t\tInfiniBand

\t\tport:\t2
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t2048 (4)
\t\t\tlink_layer:\t\tInfiniBand
"""


def test_a_port_is_reported_with_its_active_mtu_or_why_it_is_unknown(tmp_path: Path) -> None:
    for port in ("mlx5_0/ports/1", "mlx5_0/ports/2", "mlx5_1/ports/1"):
        (tmp_path / "ib" / port).mkdir(parents=True)
    given = printing(tmp_path, "ibv_devinfo", DEVINFO) + f"INFINIBAND={tmp_path}/ib; hcas"
    found = [each["active_mtu"] for each in json.loads(output("preflight", given))]
    assert found == ["4096", "2048", "unknown: ibv_devinfo does not show it"]


def test_a_port_is_reported_with_its_p_keys_and_types_of_gids(tmp_path: Path) -> None:
    device = roce_port(tmp_path)
    write(device / "device/net/ens1np0/mtu", "9000\n")
    for index, key in enumerate(("0x7fff", "0x8a17", "0x0000", "")):
        write(device / f"ports/1/pkeys/{index}", f"{key}\n")
    for index, kind in enumerate(("IB/RoCE v1", "RoCE v2")):
        write(device / f"ports/1/gid_attrs/types/{index}", f"{kind}\n")
    (found,) = json.loads(output("preflight", f"INFINIBAND={tmp_path}; hcas"))
    assert found["pkeys"] == {"0": "0x7fff", "1": "0x8a17"}
    assert (found["gids"], found["netdev_mtu"]) == ({"0": "IB/RoCE v1", "1": "RoCE v2"}, "9000")


def test_an_hca_is_reported_with_its_pci_function(tmp_path: Path) -> None:
    device = tmp_path / "devices/0000:1b:00.0"
    (device / "net/ib0").mkdir(parents=True)
    write(device / "sriov_numvfs", "4\n")
    (tmp_path / "class/mlx5_0/ports/1").mkdir(parents=True)
    (tmp_path / "class/mlx5_0/device").symlink_to(device)
    route = "ip() { [[ $1 == -6 ]] || echo 'default via 10.0.0.1 dev ib0 proto dhcp'; }; "
    (found,) = json.loads(output("preflight", f"INFINIBAND={tmp_path}/class; {route} hcas"))
    assert found["pci"] == "0000:1b:00.0"
    assert (found["netdevs"], found["vfs"], found["default_route"]) == (["ib0"], 4, True)


def test_a_host_without_hcas_reports_none(tmp_path: Path) -> None:
    assert output("preflight", f"INFINIBAND={tmp_path}; hcas") == "[]"


def smi(text: str, status: int = 0) -> str:
    return f"timeout() {{ printf '%s' '{text}'; return {status}; }}; nvidia-smi() {{ :; }}; gpus"


def test_gpus_are_reported_with_model_driver_and_persistence_mode() -> None:
    text = (
        "NVIDIA H100 80GB HBM3, 570.124.06, Enabled, Disabled\n"
        "NVIDIA H100, NVL, 570.124.06, Disabled, Enabled\n"
    )
    found = json.loads(output("preflight", smi(text)))
    assert found["status"] == "ok"
    assert found["list"] == [
        {"model": "NVIDIA H100 80GB HBM3", "driver": "570.124.06", "persistence_mode": True, "mig": False},
        {"model": "NVIDIA H100, NVL", "driver": "570.124.06", "persistence_mode": False, "mig": True},
    ]


TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 595.58.03              Driver Version: 595.58.03      CUDA Version: 13.2     |
+-----------------------------------------------------------------------------------------+
"""


def test_a_corrupted_inforom_is_reported_beside_the_gpus() -> None:
    warning = "WARNING: infoROM is corrupted at gpu 0000:9D:00.0"
    query = "NVIDIA H100, 595.58.03, Enabled, Disabled"
    answer = f"if (($# > 2)); then echo '{query}'; else printf '%s' '{TABLE}{warning}'; fi"
    program = f"timeout() {{ {answer}; return 14; }}"
    found = json.loads(output("preflight", f"{program}; nvidia-smi() {{ :; }}; gpus"))
    assert (found["status"], found["inforom"], len(found["list"])) == ("ok", warning, 1)


def test_of_a_failing_nvidia_smi_the_end_is_quoted() -> None:
    found = json.loads(output("preflight", smi(TABLE * 4 + "Unable to determine the device handle", 15)))
    assert (found["status"], found["list"]) == ("failed", [])
    assert found["error"].endswith("Unable to determine the device handle")


def test_a_library_of_the_driver_with_0_bytes_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "libcuda.so.580.95.05", "ELF")
    write(tmp_path / "libnvidia-ml.so.580.95.05", "")
    for name in ("libcuda", "libnvidia-ml"):
        (tmp_path / f"{name}.so.1").symlink_to(f"{name}.so.580.95.05")
    empty = f"{tmp_path}/libnvidia-ml.so.580.95.05\n"
    assert output("preflight", f"ldconfig() {{ :; }}; LIBRARY_FOLDERS=({tmp_path}); empty_libraries") == empty
    line = f"\tlibnvidia-ml.so.1 (libc6,x86-64) => {tmp_path}/libnvidia-ml.so.1"
    cache = f"ldconfig() {{ echo '{line}'; }}; LIBRARY_FOLDERS=(/none); empty_libraries"
    assert output("preflight", cache) == empty


def test_a_failing_nvidia_smi_is_quoted() -> None:
    found = json.loads(output("preflight", smi("Failed to initialize NVML: mismatch", 18)))
    assert (found["status"], found["list"]) == ("failed", [])
    assert "Failed to initialize NVML" in found["error"]


def test_a_port_that_several_sockets_share_is_listed_once_and_loopback_not_at_all() -> None:
    sockets = """\
LISTEN 0 4096 127.0.0.1:8404 0.0.0.0:* users:(("haproxy",pid=1,fd=6))
LISTEN 0 4096 0.0.0.0:6443 0.0.0.0:* users:(("haproxy",pid=1,fd=7))
LISTEN 0 4096 [::]:6443 [::]:* users:(("haproxy",pid=1,fd=8))
LISTEN 0 128 *:22 *:*"""
    text = output("preflight", f"ss() {{ cat <<'EOF'\n{sockets}\nEOF\n}}; listening")
    assert json.loads(f"[{text}]") == [
        {"port": 6443, "process": "haproxy"},
        {"port": 22, "process": "?"},
    ]


@pytest.mark.parametrize("written", ["server-a", "'server-a'"])
def test_the_name_of_a_server_with_data_is_reported(tmp_path: Path, written: str) -> None:
    (tmp_path / "server/db/etcd/member").mkdir(parents=True)
    (tmp_path / "config.yaml").write_text(f"node-name: {written}\ntoken: x\n")
    places = f"K3S_DATA_DIR={tmp_path}; K3S_CONFIG_DIR={tmp_path}; server_name"
    assert output("preflight", places).strip() == "server-a"
    assert output("preflight", f"K3S_DATA_DIR=/none; K3S_CONFIG_DIR={tmp_path}; server_name") == ""


NODES = "server-1|10.42.0.0/24|10.0.0.11\nworker-1|10.42.1.0/24|\nworker-2||\n"


def first_values(root: Path, answers: bool) -> FirstValues:
    api = f"""
    systemctl() {{ :; }}
    api() {{
      {"" if answers else "return 1"}
      case $* in
        *"get nodes"*) printf '{NODES.replace(chr(10), chr(92) + "n")}' ;;
        *"get servicecidr kubernetes"*) echo 10.43.0.0/16 ;;
        *"get service kube-dns"*) echo 10.43.0.10 ;;
      esac
    }}
    """
    return FirstValues.model_validate_json(output("preflight", f"{api} STATE_DIR={root}; first_values"))


def test_a_server_reports_what_its_cluster_was_made_with(tmp_path: Path) -> None:
    unknown = FirstValues(note={}, pod_networks=(), etcd_addresses={}, service_cidr="", cluster_dns="")
    assert first_values(tmp_path, answers=False) == unknown
    write(tmp_path / "first-values", '{"k3s.cluster_cidr": "10.42.0.0/16"}\n')
    assert first_values(tmp_path, answers=True) == FirstValues(
        note={"k3s.cluster_cidr": "10.42.0.0/16"},
        pod_networks=("10.42.0.0/24", "10.42.1.0/24"),
        etcd_addresses={"server-1": "10.0.0.11"},
        service_cidr="10.43.0.0/16",
        cluster_dns="10.43.0.10",
    )


def k3s_data(tmp_path: Path) -> str:
    return output("preflight", f"DATA_DIR={tmp_path}; truth has_k3s_data")


def test_mount_points_that_the_site_has_prepared_are_not_the_data_of_a_k3s(tmp_path: Path) -> None:
    (tmp_path / "k3s/agent/containerd/lost+found").mkdir(parents=True)
    (tmp_path / "k3s/server/db/etcd/lost+found").mkdir(parents=True)
    assert k3s_data(tmp_path) == "false"
    write(tmp_path / "k3s/agent/kubelet.kubeconfig", "apiVersion: v1\n")
    assert k3s_data(tmp_path) == "true"


def test_each_disk_below_k3ss_folders_is_asked_for_its_own_space(tmp_path: Path) -> None:
    (tmp_path / "k3s/agent/containerd").mkdir(parents=True)
    df = "df() { case $3 in */containerd) echo '900 /nvme';; *) echo '20 /';; esac; }; "
    found = json.loads(f"[{output('preflight', df + f'DATA_DIR={tmp_path}; disks')}]")
    assert found == [{"path": "/nvme", "free_bytes": 900}, {"path": "/", "free_bytes": 20}]


def software(role: str, ufw: Path) -> dict[str, Any]:
    prelude = (
        "systemctl() { [[ $3 == ufw.service ]]; }; "
        "type() { [[ $2 != iptables ]]; }; managed() { false; }; "
        f"UFW_CONFIG={ufw}; "
    )
    found: dict[str, Any] = json.loads("{" + output("preflight", prelude + "software", ROLE=role) + "}")
    return found


def test_ufw_counts_only_if_its_configuration_enables_it(tmp_path: Path) -> None:
    config = tmp_path / "ufw.conf"
    config.write_text("ENABLED=no\nLOGLEVEL=low\n")
    assert software("worker", config)["active_units"] == []
    config.write_text("ENABLED=yes\n")
    assert software("worker", config)["active_units"] == ["ufw"]


def test_a_load_balancer_does_without_iptables(tmp_path: Path) -> None:
    assert software("lb", tmp_path)["missing_tools"] == []
    assert software("worker", tmp_path)["missing_tools"] == ["iptables"]


def test_the_predecessor_of_nvidia_peermem_counts_too(tmp_path: Path) -> None:
    assert json.loads(output("preflight", f"MODULES={tmp_path}; gdr"))["peermem"] is False
    (tmp_path / "nv_peer_mem").mkdir()
    assert json.loads(output("preflight", f"MODULES={tmp_path}; gdr"))["peermem"] is True


FABRIC = """
==============NVSMI LOG==============

Driver Version                                         : 580.159.04
Attached GPUs                                          : 2
GPU 00000000:0F:00.0
    Product Name                                       : NVIDIA H100 80GB HBM3
    GPU Fabric GUID                                    : 0x8b4a16e3b1f8c0de
    Fabric
        State                                          : In Progress
        Status                                         : N/A
        CliqueId                                       : N/A
        ClusterUUID                                    : N/A
        Health
            Summary                                    : N/A
            Bandwidth                                  : N/A
            Route Recovery in progress                 : N/A
    Processes                                          : None
GPU 00000000:2D:00.0
    Clocks Event Reasons
        Idle                                           : Active
    Fabric
        State                             : Completed
        Status                            : Insufficient Resources
        CliqueId                          : 0
        ClusterUUID                       : 00000000-0000-0000-0000-000000000000
"""


def test_the_state_of_the_nvlink_fabric_is_read_of_each_gpu() -> None:
    printed = f"timeout() {{ cat <<'EOF'\n{FABRIC}\nEOF\n}}; fabric | json_list"
    found = json.loads(f"[{output('preflight', printed)}]")
    assert found == ["In Progress, N/A", "Completed, Insufficient Resources"]
    assert output("preflight", "timeout() { return 127; }; fabric | json_list") == ""


def pci_device(tmp_path: Path, path: str, vendor: str = "0x10de", kind: str = "0x030200") -> Path:
    """A device in sysfs, below the bridges above it."""
    device = tmp_path / "devices" / path
    write(device / "vendor", f"{vendor}\n")
    write(device / "class", f"{kind}\n")
    (tmp_path / "pci").mkdir(exist_ok=True)
    (tmp_path / "pci" / device.name).symlink_to(device)
    return device


# Root port, the switch's upstream and downstream ports, and a switch of something else.
LSPCI = """\
0000:15:01.0 PCI bridge: Intel Corporation Device 352a (rev 30) (prog-if 00 [Normal decode])
\tIOMMU group: 12
\tCapabilities: [148 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
0000:17:00.0 PCI bridge: Broadcom / LSI PEX89000 PCIe Gen 5 Switch (rev b0)
\t\tACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
0000:17:01.0 PCI bridge: Broadcom / LSI PEX89000 PCIe Gen 5 Switch (rev b0)
\t\tACSCtl: SrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
0000:81:00.0 PCI bridge: PLX Technology, Inc. PEX 8747 48-Lane, 5-Port Switch (rev ca)
\t\tACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-"""


def between_devices(tmp_path: Path, lspci: str, path: str = "/usr/bin/lspci") -> Any:
    """The part of the report, where `timeout` is what runs lspci."""
    given = f"PCI={tmp_path}/pci; INFINIBAND={tmp_path}/ib; type() {{ echo {path}; }}\n"
    given += f"timeout() {{ {lspci}\n}}; between_devices"
    return json.loads(f"{{{output('preflight', given)}}}")


def test_bridges_that_redirect_and_devices_that_the_iommu_translates_are_reported(tmp_path: Path) -> None:
    above = "pci0000:15/0000:15:01.0/0000:16:00.0"
    gpu = pci_device(tmp_path, f"{above}/0000:17:00.0/0000:18:00.0")
    hca = pci_device(tmp_path, f"{above}/0000:17:01.0/0000:19:00.0", "0x15b3", "0x020700")
    (tmp_path / "ib/mlx5_0").mkdir(parents=True)
    (tmp_path / "ib/mlx5_0/device").symlink_to(hca)
    write(gpu / "iommu_group/type", "DMA-FQ\n")
    write(hca / "iommu_group/type", "identity\n")
    found = between_devices(tmp_path, f"cat <<'EOF'\n{LSPCI}\nEOF\n")
    assert found == {"redirecting": ["0000:17:00.0"], "translated": ["0000:18:00.0"], "pci_settings": {}}


# lspci -D -vv of pciutils 3.7, reduced to the lines about these settings and some that look alike.
LSPCI_SETTINGS = """\
0000:18:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)
\tCapabilities: [60] Express (v2) Endpoint, MSI 00
\t\tDevCap:\tMaxPayload 256 bytes, PhantFunc 0, Latency L0s unlimited, L1 <64us
\t\tDevCtl:\tCorrErr+ NonFatalErr+ FatalErr+ UnsupReq-
\t\t\tRlxdOrd+ ExtTag+ PhantFunc- AuxPwr- NoSnoop+
\t\t\tMaxPayload 256 bytes, MaxReadReq 4096 bytes
0000:19:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\t\tDevCap:\tMaxPayload 512 bytes, PhantFunc 0, Latency L0s unlimited, L1 unlimited
\t\t\tRlxdOrd- ExtTag+ PhantFunc- AuxPwr- NoSnoop+ FLReset-
\t\t\tMaxPayload 256 bytes, MaxReadReq 512 bytes
\tCapabilities: [1c0 v1] Address Translation Service (ATS)
\t\tATSCap:\tInvalidate Queue Depth: 00
\t\tATSCtl:\tEnable-, Smallest Translation Unit: 00
0000:1a:00.0 Non-Volatile memory controller: Samsung Electronics Co Ltd NVMe SSD Controller PM173X
\t\t\tRlxdOrd+ ExtTag+ PhantFunc- AuxPwr- NoSnoop+
\t\t\tMaxPayload 128 bytes, MaxReadReq 512 bytes"""


def test_the_pci_settings_of_gpus_and_hcas_are_reported(tmp_path: Path) -> None:
    pci_device(tmp_path, "pci0000:15/0000:18:00.0")
    (tmp_path / "ib/mlx5_0").mkdir(parents=True)
    (tmp_path / "devices/pci0000:15/0000:19:00.0").mkdir()
    (tmp_path / "ib/mlx5_0/device").symlink_to("../../devices/pci0000:15/0000:19:00.0")
    found = between_devices(tmp_path, f"cat <<'EOF'\n{LSPCI_SETTINGS}\nEOF\n")
    assert found["pci_settings"] == {
        "0000:18:00.0": {"RlxdOrd": "+", "MaxPayload": "256", "MaxReadReq": "4096"},
        "0000:19:00.0": {"RlxdOrd": "-", "MaxPayload": "256", "MaxReadReq": "512", "ATSCtl": "-"},
    }
    nothing: dict[str, Any] = {"redirecting": [], "translated": [], "pci_settings": None}
    assert between_devices(tmp_path, "return 127", path="") == nothing
    assert output("preflight", "timeout() { return 127; }; virtual_machine") == ""


def test_nvswitches_are_counted_on_the_pci_bus(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / f"0000:0{number}:00.0/vendor", "0x10de\n")
        write(tmp_path / f"0000:0{number}:00.0/class", "0x068000\n")
    assert output("preflight", f"PCI={tmp_path}; nvidia_devices '0x0680*' | wc -l") == "4\n"


def test_the_whole_report_of_a_host_without_ipv6_can_be_read(tmp_path: Path) -> None:
    prelude = (
        "begin() { set -euo pipefail; set -E; trap 'exit 9' ERR; }; "
        'ip() { [[ $1 != -6 ]] || return 2; command ip "$@"; }; '
    )
    host = {"ROLE": "worker", "NODE_ADDRESS": "127.0.0.1", "VERB": "install", "PAYLOAD": "{}"}
    done = run("preflight", prelude + "main", **host)
    assert done.returncode == 0, done.stderr
    report = Report.model_validate_json(done.stdout)
    assert report.has_node_address is False, "the loopback interface is not a network"
    assert report.disks[0].free_bytes > 0
    assert report.health and report.health.uptime_seconds > 0


def test_a_host_without_iproute2_and_systemd_has_a_whole_report_that_names_their_tools(
    tmp_path: Path,
) -> None:
    # Seen on a microVM with an H200 and Ubuntu 24.04, whose image has neither.
    absent = {"ip", "ss", "systemctl", "journalctl"}
    for folder in ("/usr/sbin", "/usr/bin"):
        for program in Path(folder).iterdir():
            if program.name not in absent and not (tmp_path / program.name).is_symlink():
                (tmp_path / program.name).symlink_to(program)
    prelude = (
        f"begin() {{ set -euo pipefail; PATH={tmp_path}; trap 'on_error $? $LINENO x' ERR; set -E; }}; main"
    )
    for role in ("worker", "server"):
        host = {"ROLE": role, "NODE_ADDRESS": "192.0.2.7", "VERB": "install", "PAYLOAD": "{}"}
        done = run("preflight", prelude, **host)
        assert (done.returncode, done.stderr) == (0, "")
        report = Report.model_validate_json(done.stdout)
        assert absent <= {*report.missing_tools}
        assert (report.addresses, report.interfaces, report.listening, report.active_units) == ((),) * 4


@pytest.mark.parametrize("role", ["worker", "nfs"])
def test_the_owner_mark_of_the_host_or_of_the_nfs_server_is_reported(tmp_path: Path, role: str) -> None:
    write(tmp_path / f"{role}/owner", "role=x\nowner=busbar/prod/worker-1\ninstall_id=0123\n")
    places = f"STATE_DIR={tmp_path}/worker; NFS_STATE_DIR={tmp_path}/nfs; "
    found = json.loads("{" + output("preflight", places + "software", ROLE=role) + "}")
    assert found["owner"] == {"owner": "busbar/prod/worker-1", "install_id": "0123"}


def test_what_was_rotated_on_the_host_is_reported(tmp_path: Path) -> None:
    assert output("preflight", f"STATE_DIR={tmp_path}; rotated") == ""
    write(tmp_path / "rotated", "certificates 2\nother 1\n")
    found = json.loads("{" + output("preflight", f"STATE_DIR={tmp_path}; rotated") + "}")
    assert found == {"certificates": 2}


def roce_port(tmp_path: Path, netdev: str = "ens1np0") -> Path:
    """A RoCE port in sysfs, without the files that only DOCA-OFED's driver has."""
    write(tmp_path / "mlx5_0/ports/1/link_layer", "Ethernet\n")
    (tmp_path / f"mlx5_0/device/net/{netdev}").mkdir(parents=True)
    return tmp_path / "mlx5_0"


def test_a_roce_port_is_reported_with_its_priorities(tmp_path: Path) -> None:
    device = roce_port(tmp_path)
    for point in ("roce_np", "roce_rp"):
        for priority in range(8):
            enabled = "0\n" if (point, priority) == ("roce_rp", 3) else "1\n"
            write(device / f"device/net/ens1np0/ecn/{point}/enable/{priority}", enabled)
    write(device / "tc/1/traffic_class", "Global tclass=106\n")
    programs = (
        'timeout() { shift; "$@"; }; mlnx_qos() { echo "trust of $2"; }; '
        'dcb() { [[ $1 == pfc ]] || return 1; echo "$*"; }; '
    )
    (found,) = json.loads(output("preflight", f"INFINIBAND={tmp_path}; {programs} hcas"))
    assert found["qos"] == {
        "mlnx_qos": "trust of ens1np0",
        "dcb_pfc": "pfc show dev ens1np0 prio-pfc",
        "dcb_app": None,
        "ecn_np": "11111111",
        "ecn_rp": "11101111",
        "traffic_class": "Global tclass=106",
    }


def test_what_a_roce_port_does_not_tell_is_null_and_an_empty_answer_is_empty(tmp_path: Path) -> None:
    roce_port(tmp_path)
    programs = "command() { [[ $2 == dcb ]]; }; timeout() { [[ ${3:-} == -N ]]; }; "
    (found,) = json.loads(output("preflight", f"INFINIBAND={tmp_path}; {programs} hcas"))
    assert found["qos"] == {
        "mlnx_qos": None,
        "dcb_pfc": None,
        "dcb_app": "",
        "ecn_np": None,
        "ecn_rp": None,
        "traffic_class": None,
    }


ADDRESSES = """\
2: bond0    inet 169.254.3.4/16 scope link bond0
2: bond0    inet 198.51.100.7/24 brd 198.51.100.255 scope global bond0
2: bond0    inet 10.0.0.21/24 brd 10.0.0.255 scope global secondary bond0"""


def flannel(**values: str) -> dict[str, str]:
    prelude = (
        f"ip() {{ cat <<'EOF'\n{ADDRESSES}\nEOF\n}}; getent() {{ echo \"$2 STREAM\"; }}; "
        "address_is_configured() { [[ -n ${OF_THE_SITE:-} ]]; }; flannel_address"
    )
    found: dict[str, str] = json.loads("{" + output("preflight", prelude, **values) + "}")
    return found


def test_flannel_takes_the_first_address_of_the_interface_not_that_of_the_node() -> None:
    both = {"node_address": "10.0.0.21", "flannel_address": "198.51.100.7"}
    assert flannel(NODE_ADDRESS="10.0.0.21") == both


def test_an_address_that_the_site_sets_itself_is_not_judged() -> None:
    assert flannel(NODE_ADDRESS="10.0.0.21", OF_THE_SITE="yes") == {"node_address": "", "flannel_address": ""}


def test_routes_are_reported_without_the_default_route_and_the_local_link() -> None:
    prelude = """ip() {
      [[ $2 == -6 ]] && printf '%s\n' 'fe80::/64 dev eth0 metric 256' 'fd00::/64 dev eth0' && return
      printf '%s\n' 'default via 10.0.0.1 dev eth0' '10.45.0.0/16 via 10.0.0.2 dev eth1' \
        'blackhole 10.46.0.0/24 proto bird' '10.0.0.0/24 dev eth0 proto kernel' '10.0.0.0/24 dev eth1'
    }; routes | json_list"""
    found = json.loads(f"[{output('preflight', prelude)}]")
    assert found == ["10.45.0.0/16", "10.46.0.0/24", "10.0.0.0/24", "fd00::/64"]


ROUTES = """\
default via 10.0.0.1 dev eno1 proto dhcp src 10.0.0.21 metric 100
10.0.0.0/20 dev eno1 proto kernel scope link src 10.0.0.21 metric 100
10.0.0.0/20 dev enp37s0f0 proto kernel scope link src 10.0.0.121 metric 101
10.0.0.0/20 dev enp38s0f0 proto kernel scope link src 10.0.0.122 linkdown
10.42.0.0/24 dev cni0 proto kernel scope link src 10.42.0.1
10.0.0.0/20 dev eno1 proto kernel scope link src 10.0.0.22 metric 102"""


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ("32766: from all lookup main", ["10.0.0.0/20 eno1 enp37s0f0"]),
        ("32765: from 10.0.0.121 lookup 101", []),
    ],
)
def test_interfaces_in_one_network_are_reported_unless_a_rule_tells_them_apart(
    rules: str, found: list[str]
) -> None:
    ip = f"ip() {{ [[ $1 == rule ]] && echo '{rules}' || cat <<'EOF'\n{ROUTES}\nEOF\n}}; shared_networks"
    assert output("preflight", ip).splitlines() == found


def test_interfaces_are_named_without_their_peers() -> None:
    prelude = (
        "ip() { printf '1: lo: <UP> mtu 1\\n7: bond0.100@bond0: <UP> mtu 1\\n'; }; interfaces | json_list"
    )
    assert json.loads(f"[{output('preflight', prelude)}]") == ["lo", "bond0.100"]


@pytest.mark.parametrize(("proxy", "found"), [({}, ["a.example", "b.example"]), ({"https_proxy": "p"}, [])])
def test_names_without_an_address_are_reported_unless_a_proxy_resolves_them(
    proxy: dict[str, str], found: list[str]
) -> None:
    prelude = 'timeout() { shift; "$@"; }; getent() { [[ $2 == here.example ]]; }; unresolved | json_list'
    names = {"NAMES": "a.example here.example b.example"}
    assert json.loads(f"[{output('preflight', prelude, **names, **proxy)}]") == found


def test_a_proxy_answers_where_its_port_is_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = f"127.0.0.1/{listener.getsockname()[1]}"
        assert output("preflight", f"truth is_open 10 {proxy}") == "true"
    assert output("preflight", f"truth is_open 10 {proxy}") == "false"


@pytest.mark.parametrize(
    ("url", "address", "asked"),
    [
        ("http://10.0.0.9:3128", "10.0.0.9:3128", "10.0.0.9/3128"),
        ("http://anna:secret@proxy.example:8080/", "proxy.example:8080", "proxy.example/8080"),
        ("http://proxy.example", "proxy.example:1080", "proxy.example/1080"),
        ("http://[fd00::9]:3128", "[fd00::9]:3128", "fd00::9/3128"),
    ],
)
def test_the_proxy_of_a_login_is_reported_with_its_file_and_without_its_password(
    url: str, address: str, asked: str, tmp_path: Path
) -> None:
    (tmp_path / "environment").write_text(f'PATH="/bin"\nhttps_proxy="{url}"\n')
    given = f"LOGIN_FILES=({tmp_path}/none {tmp_path}/environment); "
    given += f'is_open() {{ [[ $2 == "{asked}" ]]; }}; login_proxy'
    found = json.loads("{" + output("preflight", given, https_proxy=url).removeprefix(",") + "}")
    assert found["login_proxy"] == {
        "address": address,
        "file": f"{tmp_path}/environment",
        "answers": True,
    }
    assert output("preflight", given) == ""


@pytest.mark.parametrize(
    ("open_port", "managed", "answers"),
    [("6443", "false", "true"), ("22", "false", "true"), ("", "false", "false"), ("6443", "true", "false")],
)
def test_a_shared_address_that_another_machine_has_is_reported(
    open_port: str, managed: str, answers: str
) -> None:
    is_open = f"[[ ${{2#*/}} == '{open_port}' ]]"
    given = f"managed() {{ {managed}; }}; is_open() {{ {is_open}; }}; truth shared_answers"
    assert output("preflight", given, SHARED_ADDRESS="192.0.2.8") == answers


def test_a_full_tmp_is_reported_and_leaves_nothing_behind(tmp_path: Path) -> None:
    full = "head() { return 1; }; "
    assert run("preflight", f"TMP={tmp_path}; {full} tmp_is_writable").returncode == 1
    assert run("preflight", f"TMP={tmp_path}; tmp_is_writable").returncode == 0
    assert list(tmp_path.iterdir()) == []
    assert run("preflight", f"TMP={tmp_path}/none; tmp_is_writable").returncode == 1


def test_gpudirect_storage_is_reported(tmp_path: Path) -> None:
    (tmp_path / "nvidia_fs").mkdir()
    assert json.loads(output("preflight", f"MODULES={tmp_path}; gdr"))["nvidia_fs"] is True
    assert json.loads(output("preflight", f"MODULES={tmp_path}/none; gdr"))["nvidia_fs"] is False


@pytest.mark.parametrize(("mode", "shared"), [("Y\n", "true"), ("N\n", "false"), ("0\n", "false")])
def test_rdma_devices_are_shared_unless_the_kernel_says_otherwise(
    tmp_path: Path, mode: str, shared: str
) -> None:
    assert output("preflight", f"MODULES={tmp_path}; truth rdma_is_shared") == "true"
    write(tmp_path / "ib_core/parameters/netns_mode", mode)
    assert output("preflight", f"MODULES={tmp_path}; truth rdma_is_shared") == shared


WHOLE = """
begin() { PAYLOAD=${PAYLOAD:-'{}'}; }
keep_script() { echo kept >&2; }
for part in system resources network software; do eval "$part() { printf '\\"$part\\":1'; }"; done
for part in gpus fabric_manager gdr hcas health nfs_client nfs_folder; do
  eval "$part() { printf 2; }"
done
main
"""


WORKERS = {"gpus", "fabric_manager", "gdr", "hcas", "rdma_is_shared", "health", "nfs_client"}
WORKERS |= {"fabric", "pci_settings", "redirecting", "translated", "virtual_machine"}


@pytest.mark.parametrize(
    ("values", "more"),
    [
        ({"ROLE": "worker"}, WORKERS),
        ({"ROLE": "server"}, {"pci_gpus"}),
        ({"ROLE": "lb", "NFS_FOLDER": "/srv"}, {"nfs_folder"}),
        ({"ROLE": "lb", "NFS_SERVER": "10.0.0.9"}, {"nfs_client"}),
    ],
)
@pytest.mark.parametrize("writable", [True, False])
def test_the_report_has_what_the_role_of_the_host_needs(
    values: dict[str, str], more: set[str], writable: bool
) -> None:
    room = f"tmp_is_writable() {{ {'true' if writable else 'false'}; }}; "
    done = run("preflight", room + WHOLE, **values)
    found = json.loads(done.stdout)
    assert set(found) == {
        *("schema_version", "system", "resources", "network", "software", "tmp_is_writable", "epoch"), *more,
    }  # fmt: skip
    assert (found["tmp_is_writable"], done.stderr) == (writable, "kept\n" if writable else "")
    assert found["schema_version"] == 5 and found["epoch"] > 0


# Recorded: the driver's lines as the kernel logs them, between others.
KERNEL = """\
mlx5_core 0000:1b:00.0: Port module event: module 0, Cable plugged
NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
NVRM: GPU 0000:1b:00.0: GPU serial number is 1650922000000.
NVRM: Xid (PCI:0000:43:00): 31, pid=41, name=python, Ch 00000008, intr 00000000. MMU Fault
"""
NVLINK = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)
\t Link 0: Replay Errors: 0
\t Link 0: CRC Errors: 0
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)
\t Link 0: Replay Errors: 0
\t Link 3: Replay Errors: 12
\t Link 3: CRC Errors: 4
"""


def printing(tmp_path: Path, name: str, text: str) -> str:
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "text").write_text(text)
    (tmp_path / "bin" / name).write_text(f"#!/bin/sh\ncat {tmp_path}/text\n")
    (tmp_path / "bin" / name).chmod(0o755)
    return f"PATH={tmp_path}/bin:$PATH; "


def test_the_driver_s_lines_in_the_log_of_the_kernel_are_reported(tmp_path: Path) -> None:
    found = json.loads(output("preflight", printing(tmp_path, "journalctl", KERNEL) + "xids"))
    assert found == [line for line in KERNEL.splitlines() if "Xid" in line]
    assert json.loads(output("preflight", printing(tmp_path, "journalctl", "") + "xids")) == []
    assert output("preflight", "journalctl() { :; }; timeout() { return 1; }; xids") == "null"


def test_a_program_that_fills_the_log_with_its_xids_hides_none_of_the_hardware(tmp_path: Path) -> None:
    first, other = (line for line in KERNEL.splitlines() if "Xid" in line)
    last = other.replace("pid=41", "pid=42")
    log = "\n".join([first, *[other] * 3000, last]) + "\n"
    assert json.loads(output("preflight", printing(tmp_path, "journalctl", log) + "xids")) == [first, last]
    few = printing(tmp_path, "journalctl", log) + "XID_LINES=1; xids"
    assert json.loads(output("preflight", few)) == [last]


def test_a_log_of_the_kernel_without_xids_is_no_error(tmp_path: Path) -> None:
    strict = 'trap \'on_error "$?" "$LINENO" "$BASH_COMMAND"\' ERR; set -E; '
    done = run("preflight", printing(tmp_path, "journalctl", "usb 1-1: new device\n") + strict + "xids")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]", "")


def test_the_time_of_a_report_needs_no_gnu_date(tmp_path: Path) -> None:
    # date of uutils 0.0.30, which Ubuntu 26.04 has a later release of: "invalid format %s.%3N".
    host = {"ROLE": "lb", "NODE_ADDRESS": "127.0.0.1", "PAYLOAD": "{}"}
    done = run("preflight", "begin() { :; }; date() { return 1; }; main", **host)
    assert abs(Report.model_validate_json(done.stdout).epoch - time.time()) < 60


def test_only_counters_of_nvlinks_that_are_not_0_are_reported_with_their_gpu(tmp_path: Path) -> None:
    found = json.loads(output("preflight", printing(tmp_path, "nvidia-smi", NVLINK) + "nvlink_errors"))
    assert found.splitlines() == [
        "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)",
        "\t Link 3: Replay Errors: 12",
        "\t Link 3: CRC Errors: 4",
    ]


def test_what_nvidia_smi_does_not_answer_is_null() -> None:
    assert output("preflight", "timeout() { return 124; }; nvidia_smi -L") == "null"
    assert output("preflight", "timeout() { return 2; }; nvlink_errors") == "null"


def test_pcie_links_of_gpus_and_hcas_are_reported_as_sysfs_shows_them(tmp_path: Path) -> None:
    for address, vendor, kind in (
        ("0000:1b:00.0", "0x10de", "0x030200"),
        ("0000:1c:00.0", "0x15b3", "0x020700"),
        ("0000:1d:00.0", "0x10de", "0x068000"),
    ):
        device = tmp_path / "pci" / address
        for name, text in (
            ("vendor", vendor), ("class", kind), ("current_link_width", "8"), ("max_link_width", "16"),
            ("current_link_speed", "16.0 GT/s PCIe"), ("max_link_speed", "32.0 GT/s PCIe"),
        ):  # fmt: skip
            write(device / name, f"{text}\n")
    (tmp_path / "infiniband/mlx5_0").mkdir(parents=True)
    (tmp_path / "infiniband/mlx5_0/device").symlink_to(tmp_path / "pci/0000:1c:00.0")
    (tmp_path / "infiniband/mlx5_1").mkdir()
    text = output("preflight", f"PCI={tmp_path}/pci; INFINIBAND={tmp_path}/infiniband; pcie_links")
    link = {"width": "8", "max_width": "16", "speed": "16.0 GT/s PCIe", "max_speed": "32.0 GT/s PCIe"}
    assert json.loads(f"[{text}]") == [{"name": "0000:1b:00.0", **link}, {"name": "mlx5_0", **link}]


def test_a_real_h200_in_a_vm_is_read_as_it_is_and_only_its_missing_hca_is_a_fault(tmp_path: Path) -> None:
    gpu = pci_device(tmp_path, "pci0000:00/0000:00:06.0")
    for limit in ("current", "max"):
        write(gpu / f"{limit}_link_width", "16\n")
        write(gpu / f"{limit}_link_speed", "32.0 GT/s PCIe\n")
    given = f"PCI={tmp_path}/pci; INFINIBAND={tmp_path}/none; " + h200.install(tmp_path / "bin")
    (tmp_path / "bin/journalctl").symlink_to("/bin/true")
    parts = '"gpus":%s,"health":%s,"fabric":[%s]'
    text = output(
        "preflight", f'{given} printf \'{{{parts}}}\' "$(gpus)" "$(health)" "$(fabric | json_list)"'
    )
    found = json.loads(text)
    assert found["gpus"]["list"] == [
        {"model": "NVIDIA H200", "driver": "580.159.04", "persistence_mode": True, "mig": False}
    ]
    assert found["health"]["ecc"] == "00000000:00:06.0, 0"
    assert found["health"]["remapped_rows"] == "00000000:00:06.0, No, No"
    assert (found["health"]["nvlink"], found["fabric"]) == ("", ["N/A, N/A"])
    host = report(
        **found,
        kernel="6.18.44-fc-v657-gpu",
        gdr={"peermem": False, "open_modules": True},
        fabric_manager={"version": "", "active": False, "nvswitches": 0},
        hcas=[],
    )
    one = REQUIRED.model_copy(update={"gpus": 1, "gpu_model": "H200", "transport": "gpudirect-rdma"})
    checks = [*check_hardware(one, host), *check_health(one, host)]
    assert [each.what for each in checks] == ["no HCA in /sys/class/infiniband"]


def test_counters_of_ports_that_are_not_0_are_reported(tmp_path: Path) -> None:
    for hca, name, value in (
        ("mlx5_0", "link_downed", "3"), ("mlx5_0", "symbol_error", "0"), ("mlx5_0", "port_xmit_data", "9"),
        ("mlx5_1", "port_rcv_errors", "65535"), ("mlx5_1", "link_error_recovery", "N/A (no PMA)"),
    ):  # fmt: skip
        write(tmp_path / hca / "ports/1/counters" / name, f"{value}\n")
    text = output("preflight", f"INFINIBAND={tmp_path}; port_counters")
    assert json.loads(f"[{text}]") == [
        {"hca": "mlx5_0", "port": 1, "counter": "link_downed", "value": 3},
        {"hca": "mlx5_1", "port": 1, "counter": "port_rcv_errors", "value": 65535},
    ]


def test_the_report_has_what_the_script_of_a_capability_prints() -> None:
    script = 'printf \'{"answer":%s}\' "$(json "$ROLE")"'
    payload = f'{{"also":"{base64.b64encode(script.encode()).decode()}"}}'
    found = json.loads(output("preflight", WHOLE, ROLE="lb", PAYLOAD=payload))
    assert found["also"] == {"answer": "lb"}
