"""Settings of a pod on the workers of a pool, with which jobs run as the validation did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from busbar.config import Cluster
from busbar.config.cluster import Taint
from busbar.hosts.host import Host
from busbar.hosts.inventory import Inventory
from busbar.manifests import nccljob
from busbar.models import OutputModel

# Variables only of the validation: a job has its own number of ranks, and its own way to print evidence.
_OF_THE_VALIDATION = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_RUNTIME_CONNECT", "NCCL_TOPO_FILE")


class PoolLaunch(OutputModel):
    """One pool: its workers, and the settings under which its bandwidth was measured."""

    workers: tuple[str, ...] = Field(min_length=1)
    """The names of their Nodes."""
    gpus: int = Field(ge=1)
    """GPUs of each worker."""
    rails: int = Field(ge=1)
    """HCA ports of each worker that carry NCCL traffic."""
    rail_hcas: dict[str, tuple[str, ...]] | None = None
    """Worker -> the names of its rails at its last preflight, as NCCL_IB_HCA has them (mlx5_0, or mlx5_0:2
    for port 2). Workers differ. A worker whose rails are not known is absent."""
    rate_gbps: float
    """Rate of one rail in Gb/s."""
    link_layer: str
    """infiniband or ethernet."""
    transport: str
    """The transport that the validation requires, such as gpudirect-rdma."""
    profile: str | None = None
    """The system profile of the validation."""
    gpu_model: str | None = None
    """Text in the GPU's product name, from the pool's configuration."""
    resources: dict[str, str] = Field(default={})
    """Extended resources of a pod that uses a whole worker, without its GPUs."""
    host_paths: dict[str, str] = Field(default={})
    """Folders of the worker that its pods mount, by the path in the pod."""
    taints: tuple[Taint, ...] = ()
    """Taints of the workers, which the pods tolerate."""
    runtime_class: str = ""
    """RuntimeClass of the pods; empty for none."""
    shm_size: str
    """Size of /dev/shm."""
    memory: str | None = None
    """Memory that a pod requests."""
    env: dict[str, str] = Field(default={})
    """The NCCL settings of profile and configuration."""
    topology_file: str | None = None
    """The NCCL topology file that the validation used, by name; its content is not an output."""
    topology: tuple[str, ...] | None = None
    """The keys of the labels by which Nodes say where they are in the fabric, the farthest level first."""
    interfaces: tuple[tuple[str, ...], ...] | None = None
    """For each rail, in the order of PCI addresses, the names of its network interface: one where all workers
    agree. Absent unless they are known for all workers."""
    roce: tuple[str, ...] | None = None
    """Congestion control of the workers' RoCE rails (PFC, ECN), each state once. Absent where preflight does
    not check it."""
    without_nfs: tuple[str, ...] | None = None
    """Workers on which preflight found no NFS client."""


def launches(inventory: Inventory, facts: Mapping[str, Mapping[str, Any]]) -> dict[str, PoolLaunch]:
    """Every pool that has workers; `facts` of preflight by host.

    Raises as busbar.manifests.nccljob.resolve does.
    """
    cluster = inventory.cluster
    workers = {name: inventory.usable_of(name) for name in cluster.pools}
    return {name: _launch(cluster, name, hosts, facts) for name, hosts in workers.items() if hosts}


def _launch(
    cluster: Cluster, pool: str, workers: Sequence[Host], facts: Mapping[str, Mapping[str, Any]]
) -> PoolLaunch:
    job = nccljob.resolve(cluster, pool, [worker.name for worker in workers])
    configured, validation = cluster.pools[pool], cluster.validation_of(pool)
    # All workers of a pool have the same levels.
    levels = tuple(key for key, _ in workers[0].labels)
    return PoolLaunch(
        workers=job.nodes,
        gpus=configured.gpus,
        rails=configured.rails,
        rail_hcas=_rail_hcas(job.nodes, configured.rails, facts) or None,
        rate_gbps=configured.rate_gbps,
        link_layer=configured.link_layer,
        transport=job.transport,
        profile=validation.profile,
        gpu_model=configured.gpu_model,
        resources={**{name: str(n) for name, n in job.hca_resources.items()}, **job.extra_resources},
        host_paths=dict(job.host_paths),
        taints=job.taints,
        runtime_class=job.runtime_class,
        shm_size=job.shm_size,
        memory=job.memory,
        # An algorithm that only all_reduce has would fail the other collectives of a job.
        env={
            name: value
            for name, value in job.env.items()
            if _is_setting(name) and name not in job.all_reduce_env
        },
        topology_file=validation.topology_file,
        topology=levels or None,
        interfaces=_interfaces([facts.get(worker.name, {}).get("rail_interfaces") for worker in workers]),
        roce=tuple(
            sorted({state for worker in workers for state in facts.get(worker.name, {}).get("roce", ())})
        )
        or None,
        without_nfs=tuple(
            worker.name for worker in workers if facts.get(worker.name, {}).get("nfs_client") is False
        )
        or None,
    )


def _rail_hcas(
    workers: Sequence[str], rails: int, facts: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[str, ...]]:
    """Worker -> its rails, without workers that have another number: they were in quarantine at preflight."""
    found = {worker: facts.get(worker, {}).get("rails") for worker in workers}
    return {
        name: tuple(hcas) for name, hcas in found.items() if isinstance(hcas, list) and len(hcas) == rails
    }


def _interfaces(found: Sequence[Sequence[str] | None]) -> tuple[tuple[str, ...], ...] | None:
    known = [names for names in found if names]
    if len(known) != len(found) or len({len(names) for names in known}) != 1:
        return None
    return tuple(tuple(sorted(set(names))) for names in zip(*known, strict=True))


def _is_setting(name: str) -> bool:
    return not name.startswith("OMPI_") and name not in _OF_THE_VALIDATION
