"""The expectation of a training run, as plain values, from a target and the configuration."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from busbar.judge.nccl import Expectation as Fabric
from stacks.training.package.config import Proof, Training
from stacks.training.package.target import Target, busbw_at


class Expectation(BaseModel):
    """Bandwidths in GB/s (10^9 bytes). `busbw_gbps`: as measured by nccl-tests at this size.

    `shared_checkpoint`: whether all hosts must see the same file. `fabric`: evidence required of NCCL.
    `interfaces`: those that carry the data, if over TCP.
    `storage_bytes`: size of the file by which shared storage is probed; speeds are of the slowest host.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    nodes: tuple[str, ...] = Field(min_length=1)
    ranks_per_node: int = Field(ge=1)
    backend: Literal["nccl", "gloo"]
    device: str | None = None
    steps: int = Field(ge=1)
    gradient_bytes: int = Field(ge=1)
    min_loss_drop: float = Field(gt=0, lt=1)
    busbw_gbps: float | None = Field(default=None, gt=0)
    min_busbw_fraction: float = Field(gt=0, le=1)
    shared_checkpoint: bool = False
    storage_bytes: int | None = Field(default=None, ge=1)
    min_write_mib_s: float = Field(default=0, ge=0)
    min_read_mib_s: float = Field(default=0, ge=0)
    interfaces: tuple[str, ...] = ()
    fabric: Fabric

    @property
    def world_size(self) -> int:
        """Ranks of the whole run."""
        return len(self.nodes) * self.ranks_per_node


def expectation(target: Target, training: Training) -> Expectation:
    """The expectation of the run on one pool."""
    proof, storage = training.proof, training.storage
    launch, ranks = target.launch, target.ranks_per_node(proof)
    size = target.gradient_bytes(proof)
    return Expectation(
        nodes=launch.workers,
        ranks_per_node=ranks,
        backend=proof.backend,
        device=launch.gpu_model if proof.backend == "nccl" else None,
        steps=proof.steps,
        gradient_bytes=size,
        min_loss_drop=proof.min_loss_drop,
        busbw_gbps=busbw_at(target.curve, size),
        min_busbw_fraction=proof.min_busbw_fraction,
        shared_checkpoint=storage.is_shared,
        storage_bytes=storage.probe_bytes if storage.is_shared else None,
        min_write_mib_s=storage.min_write_mib_s,
        min_read_mib_s=storage.min_read_mib_s,
        interfaces=_interfaces(target, proof),
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


def _interfaces(target: Target, proof: Proof) -> tuple[str, ...]:
    if proof.backend == "nccl" and target.launch.transport != "socket":
        return ()
    return tuple(each.interface for each in target.attached)
