"""Reports of preflight as a good worker sends them, to be changed one fact at a time."""

from typing import Any

from busbar.preflight.report import Report

CLOCK = (1_000_000.0, 1_000_002.0)
"""The time before and after the report of `report` was made."""


def hca(name: str, **changes: Any) -> dict[str, Any]:
    """One port of an HCA at 400 Gb/s InfiniBand."""
    port = {"port": 1, "link_layer": "InfiniBand", "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)"}
    port |= {"active_mtu": "4096", "pkeys": {"0": "0xffff"}}
    number = int("".join(filter(str.isdigit, name.removeprefix("mlx5"))) or 0)
    function = {"pci": f"0000:{0x20 + number:02x}:00.0", "netdevs": [], "vfs": 0, "default_route": False}
    return {"name": name, "fw": "28.43.2566", **port, **function, **changes}


LINK = {"width": "16", "max_width": "16", "max_speed": "32.0 GT/s PCIe"}
HEALTHY: dict[str, Any] = {
    "uptime_seconds": 360_000,
    "xids": [],
    "ecc": "".join(f"00000000:{n:02X}:00.0, 0\n" for n in range(8)),
    "remapped_rows": "".join(f"00000000:{n:02X}:00.0, No, No\n" for n in range(8)),
    "nvlink": "",
    "links": [
        # An idle GPU lowers the speed of its link.
        {"name": "0000:1b:00.0", **LINK, "speed": "2.5 GT/s PCIe"},
        {"name": "mlx5_0", **LINK, "speed": "32.0 GT/s PCIe"},
    ],
    "counters": [],
}


def report(**changes: Any) -> Report:
    """What a good worker with 8 GPUs and 8 rails reports, with `changes` laid over."""
    gpu = {"model": "NVIDIA H100 80GB HBM3", "driver": "570.124.06", "persistence_mode": True, "mig": False}
    content: dict[str, Any] = {
        "schema_version": 5,
        "os": "ubuntu",
        "os_version": "24.04",
        "arch": "x86_64",
        "kernel": "6.8.0-60-generic",
        "hostname": "worker-1",
        "machine": "aaaaaaaa",
        "systemd": True,
        "clock_synchronised": "yes",
        "cpus": 192,
        "memory_bytes": 2 << 40,
        "disks": [{"path": "/", "free_bytes": 900 * 10**9}],
        "tmp_is_writable": True,
        "cgroup": "v2",
        "cgroup_v1_allowed": False,
        "memlock": "unlimited",
        "default_route": True,
        "addresses": ["10.0.0.21"],
        "interfaces": ["lo", "eth0"],
        "routes": ["10.0.0.0/24"],
        "unresolved": [],
        "has_node_address": True,
        "node_address": "10.0.0.21",
        "flannel_address": "10.0.0.21",
        "listening": [{"port": 22, "process": "sshd"}],
        "missing_tools": [],
        "active_units": [],
        "managed": [],
        "owner": {"owner": "", "install_id": ""},
        "server_name": "",
        "rotated": {},
        "k3s_data": False,
        "epoch": CLOCK[0] + 1,
        "gpus": {"status": "ok", "error": "", "list": [gpu] * 8, "pci": 8},
        "fabric_manager": {"version": "570.124.06", "active": True, "nvswitches": 4},
        "gdr": {"peermem": True, "open_modules": True},
        "hcas": [hca(f"mlx5_{n}") for n in range(8)],
        "health": HEALTHY,
    }
    return Report.model_validate(content | changes)
