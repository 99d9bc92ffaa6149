"""Profiles: the hardware of known systems, and the settings of their NCCL test, as data.

Each profile is an entry of profiles.yaml, whole or with the keys in which it differs from another one.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import Field

from busbar.models import StrictModel, parse_yaml

Transport = Literal["gpudirect-rdma", "rdma", "socket"]
Fabric = Literal["infiniband", "roce"]
Algorithm = Literal["auto", "ring", "tree", "nvls", "sharp"]
# of every profile: without these NCCL prints no transport line, and no evidence is never a pass
EVIDENCE = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV"}


class UnknownProfileError(LookupError):
    """There is no such profile; the message lists the existing profiles."""

    exit_code = 64


class HostPath(StrictModel):
    """A device or folder of the host that the workers need, such as /dev/gdrdrv for GDRCopy."""

    path: str
    type: Literal["CharDevice", "Directory", "File"] = "CharDevice"


class Profile(StrictModel):
    """One kind of system. Rates are per direction; sizes are in bytes; memory is in Kubernetes quantities.

    `env`: variables that the run needs on any machine of this kind.
    """

    name: str
    description: str
    gpu: str = Field(description="model as in the reference table: A40, A100, H100, ...; '' for none")
    gpus_per_node: int = Field(ge=1)
    rails: int = Field(ge=0, description="HCAs a node that carry data; 0 = no RDMA fabric")
    rate_gbps: float = Field(ge=0, description="Gb/s of one rail, one direction")
    net_devices: int | None = Field(default=None, description="per host, where a plugin joins rails")
    transport: Transport
    networks: list[str] = Field(default=[], description="in `via NET/<name>`, without _v suffix")
    fabric: Fabric | None = Field(default=None, description="link layer of the rails; None: no HCAs")
    algorithm: Algorithm
    nvlink_gbps: float = Field(ge=0, description="GB/s of one GPU's NVLink, one direction; 0 = PCIe only")
    nodes_per_domain: int = Field(default=1, ge=1, description="hosts in one NVLink domain: 18 for NVL72")
    env: dict[str, str] = Field(default={})
    mpi_args: list[str] = Field(default=[])
    hca_resource: str | None = None
    hca_count: int = Field(default=0, ge=0)
    workers: int = Field(default=2, ge=1, description="workers of the source's MPIJob")
    extra_resources: dict[str, str] = Field(default={})
    memory: str
    runtime_class: str | None = None
    host_paths: list[HostPath] = Field(default=[])
    topology_file: str | None = None
    require_plugin: str | None = Field(default=None, description="network that must carry the data: IBext")
    min_nccl: str | None = Field(default=None, description="oldest NCCL release that is accepted")
    min_bytes: int = Field(default=512 * 2**20, ge=0)
    max_bytes: int = Field(default=8 * 2**30, ge=1)
    source: str


@cache
def read_yaml(package: str, name: str) -> Any:
    """The content of the YAML file NAME of PACKAGE. Raises FileNotFoundError."""
    return parse_yaml(resources.files(package).joinpath(name).read_text(encoding="utf-8"))


def names() -> list[str]:
    """Names of all profiles, sorted."""
    return sorted(read_yaml(__package__, "profiles.yaml"))


@cache
def load(name: str) -> Profile:
    """Return the profile NAME. Raises UnknownProfileError."""
    if name not in names():
        raise UnknownProfileError(f"unknown profile {name!r}; use one of {', '.join(names())}")
    values = _values(name)
    return Profile(name=name, **{**values, "env": {**values.get("env", {}), **EVIDENCE}})


def _values(name: str) -> dict[str, Any]:
    """The keys of the profile NAME: its own, and the others of the profile that it is `like`."""
    own = dict(read_yaml(__package__, "profiles.yaml")[name])
    base = own.pop("like", None)
    return {**(_values(base) if base else {}), **own}
