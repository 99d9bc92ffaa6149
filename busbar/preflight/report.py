"""The JSON line that `host/preflight.sh` prints, typed."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A part of the report; a key more or less means that script and reader do not belong together."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Listener(Part):
    """A TCP port that is taken on more than loopback."""

    port: int
    process: str


class Gpu(Part):
    """One GPU as nvidia-smi names it."""

    model: str
    driver: str


class Gpus(Part):
    """What nvidia-smi said (`error` is its text where it failed), and how many GPUs are on the PCI bus."""

    status: Literal["ok", "missing", "failed"]
    error: str
    list: tuple[Gpu, ...]
    pci: int


class FabricManager(Part):
    """NVIDIA Fabric Manager, needed by NVSwitch systems; `version` is empty where there is none."""

    version: str
    active: bool


class Gdr(Part):
    """What GPUDirect RDMA can go by."""

    peermem: bool
    open_modules: bool


class Hca(Part):
    """One port of one HCA, with the texts of sysfs: "InfiniBand", "4: ACTIVE", "400 Gb/sec (4X NDR)"."""

    name: str
    port: int
    link_layer: str
    state: str
    rate: str
    fw: str


class Report(Part):
    """Everything about one host; the last five are there for workers only. `epoch` is in seconds."""

    schema_version: Literal[1]
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
    swap_bytes: int
    disk_free_bytes: int
    cgroup: Literal["v1", "v2"]
    cgroup_v1_allowed: bool
    memlock: str
    default_route: bool
    addresses: tuple[str, ...]
    listening: tuple[Listener, ...]
    missing_tools: tuple[str, ...]
    active_units: tuple[str, ...]
    managed: tuple[str, ...]
    k3s_data: bool
    epoch: float
    gpus: Gpus | None = None
    fabric_manager: FabricManager | None = None
    gdr: Gdr | None = None
    hcas: tuple[Hca, ...] = ()
