"""What preflight asks: the hosts, the login, and what each kind of host must have."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from busbar import versions
from busbar.config import Bastion, Cluster
from busbar.hosts import scripts as hostscript
from busbar.hosts.downloads import read_checksums
from busbar.hosts.inventory import Inventory
from busbar.nccl.expected import profiles

# Kubernetes 1.35 made failCgroupV1 the kubelet's default.
CGROUP_V2_SINCE = (1, 35)
SERVER_MIN_DISK_GB = 10
LB_MIN_DISK_GB = 1


class Model(BaseModel):
    """A part of the spec: unknown keys are an error, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Login(Model):
    """The key comes from `key_file`, else from `private_key`, else from the ssh-agent."""

    key_file: str | None = None
    private_key: str | None = None
    private_key_password: str | None = None
    bastion: Bastion | None = None


class Target(Model):
    """One host to ask."""

    name: str
    address: str
    port: int
    user: str
    host_key: str
    role: Literal["lb", "server", "worker"]
    pool: str | None = None


class Need(Model):
    """What a host must have; `gpus` and `rails` are 0 where it is no worker."""

    min_disk_gb: int
    plan: str = ""
    """Changes with what is about to be put on such hosts: before that happens, they are looked at again."""
    cgroup_v2: bool = False
    gpus: int = 0
    gpu_model: str | None = None
    driver_on_host: bool = True
    """False where the GPU Operator brings the driver: then GPUs are counted on the PCI bus."""
    rails: int = 0
    rate_gbps: float = 0
    link_layer: str = "infiniband"
    ignore_hcas: tuple[str, ...] = ()
    transport: str = "socket"


class Spec(Model):
    """Everything `busbar preflight` is told on stdin; `needs` is keyed by role, or `worker/<pool>`."""

    schema_version: Literal[1] = 1
    login: Login
    hosts: tuple[Target, ...]
    needs: dict[str, Need]

    def need_of(self, target: Target) -> Need:
        """What this host must have."""
        return self.needs[need_key(target.role, target.pool)]

    def fingerprint(self, target: Target) -> str:
        """Changes when the host, what it must have, or the way it is looked at changes."""
        asked = [target.model_dump(), self.need_of(target).model_dump(), hostscript.digest("preflight")]
        return _digest(asked)


def need_key(role: str, pool: str | None) -> str:
    """The key into `Spec.needs`."""
    return f"{role}/{pool}" if pool else role


def spec_of(cluster: Cluster, *, login: Mapping[str, Any], project: Path | None = None) -> dict[str, Any]:
    """The spec as plain data, ready for JSON; values of `login` may be Pulumi outputs.

    `project` is the folder that `k3s.checksums_file` starts from; without it new checksums are no new plan.
    """
    inventory = Inventory.of(cluster)
    k3s = [cluster.k3s.model_dump(mode="json"), read_checksums(cluster.k3s, project) if project else {}]
    front = [inventory.api_address, inventory.tls_sans]
    number = versions.number(cluster.k3s.version)
    cgroup_v2 = number is None or number >= CGROUP_V2_SINCE
    needs = {
        "lb": Need(min_disk_gb=LB_MIN_DISK_GB, plan=_plan("haproxy", front)),
        "server": Need(
            min_disk_gb=SERVER_MIN_DISK_GB, cgroup_v2=cgroup_v2, plan=_plan("k3s-server", k3s, front)
        ),
    }
    for name, pool in cluster.pools.items():
        needs[need_key("worker", name)] = Need(
            min_disk_gb=pool.min_disk_gb,
            plan=_plan("k3s-agent", k3s, inventory.api_address, pool.model_dump(mode="json")),
            cgroup_v2=cgroup_v2,
            gpus=pool.gpus,
            gpu_model=pool.gpu_model,
            driver_on_host=not _driver_in_container(cluster),
            rails=pool.rails,
            rate_gbps=pool.rate_gbps,
            link_layer=pool.link_layer,
            ignore_hcas=tuple(pool.ignore_hcas),
            transport=transport_of(cluster),
        )
    return {
        "schema_version": 1,
        "login": dict(login),
        "hosts": [asdict(host) for host in inventory.hosts],
        "needs": {key: need.model_dump(mode="json") for key, need in needs.items()},
    }


def _plan(script: str, *inputs: object) -> str:
    return _digest([hostscript.digest(script), *inputs])


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _driver_in_container(cluster: Cluster) -> bool:
    driver = cluster.gpu_operator.values.get("driver")
    return cluster.gpu_operator.enabled and isinstance(driver, dict) and driver.get("enabled") is True


def transport_of(cluster: Cluster) -> str:
    """What NCCL must use between hosts: as configured, else as the profile says, else gpudirect-rdma."""
    validation = cluster.validation
    if validation.transport is not None:
        return validation.transport
    return profiles.load(validation.profile).transport if validation.profile else "gpudirect-rdma"


@dataclass(frozen=True)
class Finding:
    """Something wrong with a host (level "error" stops the bring-up), and what to do about it."""

    host: str
    level: Literal["error", "warning"]
    what: str
    cure: str
