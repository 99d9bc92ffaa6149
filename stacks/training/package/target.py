"""The pools that may be used for training, and what a run on one of them must show.

Both follow from the cluster's outputs and the configuration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pydantic import Field

from busbar.judge.nccl import Expectation as Fabric
from busbar.models import StrictModel
from busbar.outputs import ClusterOutputs, PoolLaunch, PoolResult
from busbar.outputs.contract import Curve
from stacks.training.package import networks
from stacks.training.package.config import Proof, Training
from stacks.training.package.networks import Attachment


@dataclass(frozen=True)
class Target:
    """One pool: the settings of its pods, and the measured result of its fabric.

    `attached`: the interfaces of its pods beside eth0.
    """

    pool: str
    launch: PoolLaunch
    result: PoolResult
    attached: tuple[Attachment, ...] = ()

    @property
    def curve(self) -> Curve:
        """(bytes, busbw in GB/s) of all_reduce, the smallest size first; empty if not measured."""
        return self.result.curve.get("all_reduce", ())

    def ranks_per_node(self, proof: Proof) -> int:
        """Ranks on each worker."""
        return proof.ranks_per_node or self.launch.gpus

    def gradient_bytes(self, proof: Proof) -> int:
        """The configured size, else the largest measured message up to 1 GiB, else the smallest one."""
        if proof.gradient_bytes:
            return proof.gradient_bytes
        sizes = [size for size, _ in self.curve]
        return max((size for size in sizes if size <= 1 << 30), default=min(sizes))


def with_cluster_export(cluster: ClusterOutputs, training: Training) -> Training:
    """The configuration, with server and export of the cluster if `storage.nfs.from_cluster` is set."""
    storage, found = training.storage, cluster.nfs_server
    if storage.nfs is None or not storage.nfs.from_cluster or found is None:
        return training
    nfs = storage.nfs.model_copy(
        update={"from_cluster": False, "server": found.address, "export": found.export}
    )
    return training.model_copy(update={"storage": storage.model_copy(update={"nfs": nfs})})


def targets(cluster: ClusterOutputs, training: Training) -> dict[str, Target]:
    """The pools of `training` on a cluster for which there are no `refusals`."""
    found = {}
    for pool in training.pools or sorted(cluster.pools):
        launch, of_pool = cluster.pools[pool], training.networks.get(pool, ())
        attached = networks.attachments(training.namespace, pool, of_pool, launch)
        found[pool] = Target(pool, launch, cluster.nccl[pool], attached)
    return found


def warnings(found: dict[str, Target], training: Training) -> Iterator[str]:
    """Warnings about settings that are allowed but probably not intended, one sentence each."""
    for pool, target in found.items():
        if target.launch.topology_file:
            yield (
                f"pool {pool}: its bandwidth was measured with the NCCL topology file "
                f"{target.launch.topology_file}, which the training run does not have"
            )
        if training.storage.mode == "nfs" and target.launch.without_nfs:
            yield (
                f"pool {pool}: preflight found no mount.nfs on {', '.join(target.launch.without_nfs)}, whose "
                "pods then cannot mount storage.nfs. Fix: install an NFS client there (nfs-common)"
            )


def busbw_at(curve: Curve, size: int) -> float | None:
    """busbw in GB/s at `size` bytes, interpolated between measured sizes by the logarithm of the size.

    Above the largest size it is that of the largest; below the smallest it is unknown: None.
    """
    if not curve or size < curve[0][0]:
        return None
    for (low, slow), (high, fast) in pairwise(curve):
        if low <= size < high:
            return slow + (fast - slow) * math.log(size / low) / math.log(high / low)
    return curve[-1][1]


def refusals(cluster: ClusterOutputs, training: Training) -> Iterator[str]:
    """The reasons why nothing may be installed on a cluster that has passed, each with its fix."""
    nfs, known = training.storage.nfs, ", ".join(sorted(cluster.pools))
    if nfs and nfs.from_cluster and cluster.nfs_server is None:
        yield (
            "has no output `nfs_server`, which storage.nfs.from_cluster needs. Fix: add nfs_server to its "
            "configuration and update it; or give storage.nfs.server and export"
        )
    for pool, of_pool in training.networks.items():
        if pool in cluster.pools:
            yield from networks.problems(pool, of_pool, cluster.pools[pool])
        else:
            yield f"has no pool {pool}. Fix: name in `networks` only pools of the cluster: {known}"
    for pool in training.pools or sorted(cluster.pools):
        result = cluster.nccl.get(pool)
        if pool not in cluster.pools:
            yield f"has no pool {pool}. Fix: list in `pools` only pools of the cluster: {known}"
        elif result is None or result.verdict != "pass":
            found = "no result" if result is None else f"the verdict {result.verdict}"
            fix = "raise validation.run there and update it"
            yield f"pool {pool} has {found} in the output `nccl`, expected pass. Fix: {fix}"
        elif training.proof.enabled:
            yield from _without_expectation(Target(pool, cluster.pools[pool], result), training.proof)


def _without_expectation(target: Target, proof: Proof) -> Iterator[str]:
    """The reason why there is no bandwidth to compare the run with."""
    if not target.curve:
        yield (
            f"pool {target.pool}: all_reduce was not measured, and training needs it. Fix: add all_reduce to "
            "validation.collectives there and update it"
        )
    elif busbw_at(target.curve, size := target.gradient_bytes(proof)) is None:
        yield (
            f"pool {target.pool}: the smallest measured all_reduce has {target.curve[0][0]} bytes, the "
            f"gradients {size}. Fix: raise proof.gradient_bytes, or lower validation.min_bytes there"
        )


class Expectation(StrictModel):
    """Bandwidths in GB/s (10^9 bytes). `busbw_gbps`: as measured by nccl-tests at this size.

    `machines`: of the nodes, by the cluster's outputs. `shared_checkpoint`: whether all hosts must see the
    same file. `fabric`: evidence required of NCCL.
    """

    nodes: tuple[str, ...] = Field(min_length=1)
    machines: dict[str, str] = Field(default={})
    ranks_per_node: int = Field(ge=1)
    backend: Literal["nccl", "gloo"]
    device: str | None = None
    steps: int = Field(ge=1)
    gradient_bytes: int = Field(ge=1)
    min_loss_drop: float = Field(gt=0, lt=1)
    busbw_gbps: float | None = Field(default=None, gt=0)
    min_busbw_fraction: float = Field(gt=0, le=1)
    shared_checkpoint: bool = False
    fabric: Fabric

    @property
    def world_size(self) -> int:
        """Ranks of the whole run."""
        return len(self.nodes) * self.ranks_per_node


def expectation(target: Target, training: Training) -> Expectation:
    """The expectation of the run on one pool."""
    launch, proof = target.launch, training.proof
    ranks, size = target.ranks_per_node(proof), target.gradient_bytes(proof)
    return Expectation(
        nodes=launch.workers,
        machines=launch.machines,
        ranks_per_node=ranks,
        backend=proof.backend,
        device=launch.gpu_model if proof.backend == "nccl" else None,
        steps=proof.steps,
        gradient_bytes=size,
        min_loss_drop=proof.min_loss_drop,
        busbw_gbps=busbw_at(target.curve, size),
        min_busbw_fraction=proof.min_busbw_fraction,
        shared_checkpoint=training.storage.is_shared,
        fabric=Fabric.model_validate(
            {
                "profile": launch.profile,
                "nodes": len(launch.workers),
                "gpus_per_node": ranks,
                "gpu": launch.gpu_model,
                # Fewer ranks than GPUs leave rails unused.
                "rails": launch.rails if ranks == launch.gpus else 0,
                "rate_gbps": launch.rate_gbps,
                "transport": launch.transport,
            }
        ),
    )
