"""The pools of the cluster that Slurm uses: what a pod of Slurm needs to hold a whole worker."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from busbar.outputs import ClusterOutputs, PoolLaunch
from busbar.text import listed
from stacks.slurm_k8s.package.config import PoolSettings, Slurm


@dataclass(frozen=True)
class Pool:
    """One pool. `gpu_type`: of Slurm, "" for none. `gpu_files`: None if Slurm detects the GPUs."""

    name: str
    launch: PoolLaunch
    gpu_type: str
    gpu_files: str | None

    @property
    def gres(self) -> str:
        """The GPUs of a node in Slurm's terms."""
        return ":".join(filter(None, ["gpu", self.gpu_type, str(self.launch.gpus)]))

    @property
    def needs_memlock(self) -> bool:
        """True if its jobs register memory with HCAs."""
        return self.launch.transport != "socket"


def pools_of(cluster: ClusterOutputs, slurm: Slurm) -> dict[str, Pool]:
    """The pools of `slurm` on a cluster for which there are no `refusals`."""
    return {
        name: _pool(name, cluster.pools[name], slurm.pools.get(name, PoolSettings()))
        for name in slurm.pools or sorted(cluster.pools)
    }


def refusals(cluster: ClusterOutputs, slurm: Slurm) -> Iterator[str]:
    """The reasons why Slurm may not be installed on a cluster that has passed, each with its fix."""
    known = sorted(cluster.pools)
    if not known:
        yield "has no pool with measured workers"
    for name in slurm.values.get("nodesets") or ():
        if name not in (slurm.pools or known):
            yield f"has no pool {name}, which values.nodesets names. Fix: remove values.nodesets.{name}"
    for name in slurm.values.get("partitions") or ():
        if name in (slurm.pools or known):
            yield f"has a pool {name}, which makes the partition {name}. Fix: rename values.partitions.{name}"
    for name in slurm.pools:
        if name not in cluster.pools:
            yield f"has no pool {name} with measured workers. Fix: pools of {listed(known) or 'none'}"
        elif name not in cluster.nccl:
            yield f"pool {name} was not measured. Fix: raise validation.run of {slurm.cluster}"


def _pool(name: str, launch: PoolLaunch, settings: PoolSettings) -> Pool:
    model = settings.gpu_type or re.sub(r"[^a-z0-9]+", "_", (launch.gpu_model or "").lower()).strip("_")
    return Pool(name, launch, model, settings.gpu_files)


def gres_conf(pools: Mapping[str, Pool]) -> str:
    """gres.conf of all nodes: they share one file, in which a line without NodeName holds for all."""
    if all(pool.gpu_files is None for pool in pools.values()):
        return "AutoDetect=nvidia\n"
    lines = []
    for pool in pools.values():
        kind = f" Type={pool.gpu_type}" if pool.gpu_type else ""
        where = f"NodeName={pool.name}-[0-{len(pool.launch.workers) - 1}] " if len(pools) > 1 else ""
        found = f"File={pool.gpu_files}" if pool.gpu_files else "AutoDetect=nvidia"
        lines.append(f"{where}Name=gpu{kind} {found}")
    return "\n".join(lines) + "\n"
