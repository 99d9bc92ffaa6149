"""The JSON line that `host/preflight.sh` prints, typed.

An unknown or missing key means that script and reader differ in version.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from busbar.models import StrictModel


class Listener(StrictModel):
    """A TCP port in use on an address other than loopback."""

    port: int
    process: str


class Disk(StrictModel):
    """A mounted file system below /var/lib/rancher."""

    path: str
    free_bytes: int


class Member(StrictModel):
    """A server in etcd, and whether its Node is Ready."""

    name: str
    ready: bool


class LoginProxy(StrictModel):
    """The proxy that the environment of the login names (HOST:PORT), and the file with it; "" if unknown."""

    address: str
    file: str
    answers: bool


class Owner(StrictModel):
    """The owner mark of a host (host/owner.sh); its texts are empty without one."""

    owner: str
    install_id: str


class FirstValues(StrictModel):
    """Values that the cluster of a server was made with, from its note and from its API where that answers.

    `note`: key of the stack file -> value. `pod_networks`: of Nodes. `etcd_addresses`: of servers by name.
    """

    note: dict[str, str]
    pod_networks: tuple[str, ...]
    etcd_addresses: dict[str, str]
    service_cidr: str
    cluster_dns: str


class Gpu(StrictModel):
    """One GPU, from nvidia-smi."""

    model: str
    driver: str
    persistence_mode: bool
    mig: bool


class Gpus(StrictModel):
    """Result of nvidia-smi (`error` is the end of its output if it failed). `pci`: GPUs on the PCI bus.

    `inforom`: its lines about a corrupted infoROM. `empty_libraries`: files of the driver that have 0 bytes.
    """

    status: Literal["ok", "missing", "failed"]
    error: str
    inforom: str = ""
    list: tuple[Gpu, ...]
    pci: int
    empty_libraries: tuple[str, ...] = ()


class FabricManager(StrictModel):
    """NVIDIA Fabric Manager, needed on NVSwitch systems; `version` is empty if it is not installed."""

    version: str
    active: bool
    nvswitches: int


class Gdr(StrictModel):
    """Kernel modules that GPUDirect RDMA can use."""

    peermem: bool
    open_modules: bool


class Qos(StrictModel):
    """Congestion control of a RoCE port, as texts of programs and of sysfs; None: cannot be read.

    `ecn_np` and `ecn_rp` have a digit per priority: 1 where DCQCN is on as notification, or reaction point.
    """

    mlnx_qos: str | None
    dcb_pfc: str | None
    dcb_app: str | None
    ecn_np: str | None
    ecn_rp: str | None
    traffic_class: str | None


class Hca(StrictModel):
    """One port of one HCA, with the texts of sysfs: "InfiniBand", "4: ACTIVE", "400 Gb/sec (4X NDR)".

    `pci`: address of its PCI function ("0000:1b:00.0", or empty). `netdevs`, `vfs`: its network interfaces
    and number of VFs. `default_route`: whether one of these interfaces carries it. `active_mtu`: "4096", or
    "unknown: " and the reason. `pkeys`: index -> P_Key ("0xffff"). For a RoCE port `gids`: index -> type
    ("RoCE v2"), `netdev_mtu` and `qos`.
    """

    name: str
    port: int
    link_layer: str
    state: str
    rate: str
    fw: str
    active_mtu: str
    pkeys: dict[str, str]
    pci: str
    netdevs: tuple[str, ...]
    vfs: int
    default_route: bool
    gids: dict[str, str] = Field(default={})
    netdev_mtu: str = ""
    qos: Qos | None = None


class PcieLink(StrictModel):
    """A GPU, by its PCI address, or an HCA. Texts of sysfs: "16", "32.0 GT/s PCIe"."""

    name: str
    width: str
    max_width: str
    speed: str
    max_speed: str


class PortCounter(StrictModel):
    """An error counter of a port that is not 0."""

    hca: str
    port: int
    counter: str
    value: int


class Health(StrictModel):
    """Errors counted since the host, or a driver, was started; None: cannot be read.

    `xids`: the kernel's last line per Xid and GPU. `ecc`: "PCI address, uncorrected errors" per GPU.
    `remapped_rows`: "PCI address, pending, failure". `nvlink`: counters that are not 0, below their GPU.
    """

    uptime_seconds: int
    xids: tuple[str, ...] | None
    ecc: str | None
    remapped_rows: str | None
    nvlink: str | None
    links: tuple[PcieLink, ...]
    counters: tuple[PortCounter, ...]


class NfsFolder(StrictModel):
    """The folder of the NFS server. `kind`: "link" if a part of its path is a symbolic link.

    `foreign_exports`: of the folder or one above it, not by busbar. `system_disk`: it is on the file system
    of the operating system. `writable`: by nobody. `managed`: busbar has exported a folder of this host.
    """

    kind: Literal["missing", "folder", "link", "other"]
    foreign_exports: tuple[str, ...]
    system_disk: bool
    free_bytes: int
    writable: bool
    managed: bool


class NfsClient(StrictModel):
    """Whether mount.nfs is there, and the address from which the host reaches the NFS server (or empty)."""

    installed: bool
    source: str


class Report(StrictModel):
    """Everything about one host. `nfs_folder` is for the NFS server, the others from `gpus` on for workers.

    `epoch` is in seconds. The first of `disks` is the one with the container images.
    """

    schema_version: Literal[5]
    os: str
    os_version: str
    arch: str
    kernel: str
    hostname: str
    machine: str
    systemd: bool
    clock_synchronised: str
    cpus: int
    memory_bytes: int
    disks: tuple[Disk, ...]
    tmp_is_writable: bool
    cgroup: Literal["v1", "v2"]
    cgroup_v1_allowed: bool
    memlock: str
    default_route: bool
    addresses: tuple[str, ...]
    interfaces: tuple[str, ...]
    routes: tuple[str, ...]
    """Destinations other than the default route: addresses, or networks such as 10.45.0.0/16."""
    shared_networks: tuple[str, ...] = ()
    """"NETWORK INTERFACE INTERFACE..." where several interfaces are in one network, all by the same rules."""
    unresolved: tuple[str, ...]
    """Host names of the downloads that the host cannot resolve."""
    has_node_address: bool
    proxy_answers: bool = True
    """Whether the host reaches the configured proxy."""
    login_proxy: LoginProxy | None = None
    """Without a configured proxy."""
    shared_answers: bool = False
    """True if a machine answers at hosts.virtual_ip, which may be a host that shares it."""
    node_address: str
    flannel_address: str
    """The first address of the interface with `node_address`; both are empty where the site sets them."""
    listening: tuple[Listener, ...]
    missing_tools: tuple[str, ...]
    active_units: tuple[str, ...]
    managed: tuple[str, ...]
    owner: Owner
    server_name: str
    rotated: dict[str, int]
    """Kind of `k3s.rotate` -> the number that was done on this host."""
    k3s_data: bool
    epoch: float
    k3s_version: str = ""
    """The installed version of K3s, on a host where busbar has installed it; else empty."""
    etcd_members: tuple[Member, ...] = ()
    """The servers in etcd, as reported by a server whose API answers."""
    first_values: FirstValues | None = None
    """On a server with data of its cluster."""
    gpus: Gpus | None = None
    fabric_manager: FabricManager | None = None
    gdr: Gdr | None = None
    hcas: tuple[Hca, ...] = ()
    also: dict[str, Any] = Field(default={})
    """The report of a capability's own script (stacks/NAME)."""
    health: Health | None = None
    fabric: tuple[str, ...] = ()
    """"State, Status" of the NVLink fabric of each GPU, as `nvidia-smi -q` prints them."""
    redirecting: tuple[str, ...] = ()
    """PCI addresses of bridges above GPUs and HCAs that send traffic between devices to the CPU (ACS)."""
    translated: tuple[str, ...] = ()
    """PCI addresses of GPUs and HCAs whose memory accesses the IOMMU translates."""
    pci_settings: dict[str, dict[str, str]] | None = Field(default={})
    """PCI address of a GPU or HCA -> MaxPayload, MaxReadReq, RlxdOrd, ATSCtl of lspci; None without it."""
    virtual_machine: str = ""
    """Its kind, such as "kvm"; "none" on a machine, and empty where systemd does not tell."""
    rdma_is_shared: bool = True
    """Whether network namespaces share the HCAs (ib_core's netns_mode)."""
    nfs_client: NfsClient | None = None
    nfs_folder: NfsFolder | None = None
