"""Checkpoints that survive a crash: a file has its final name only when all of it is on the disk."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from records import emit, gather
from torch import nn

NAME = "checkpoint.pt"


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Rank 0 writes the state after `step`: temporary file, fsync, rename, fsync of the folder."""
    if dist.get_rank() == 0:
        started = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f".{NAME}.{os.getpid()}"
        with unfinished.open("wb") as file:
            torch.save({"step": step, "model": model.state_dict(), "momentum": _momentum(optimizer)}, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(folder / NAME)
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        seconds = time.monotonic() - started
        path = folder / NAME
        emit("checkpoint", step=step, bytes=path.stat().st_size, seconds=seconds, sha256=_sha256(path))
    dist.barrier()


def resume(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, local_rank: int) -> int:
    """Load the newest checkpoint on all ranks; returns its step, 0 where no rank sees one.

    One rank reads the file and broadcasts it, because without shared storage only its host has the file.
    One rank per host reports the sha256 that it sees: with shared storage all see the same.
    """
    path = folder / NAME
    seen = gather(_sha256(path) if local_rank == 0 and path.is_file() else None)
    holders = [rank for rank, sha256 in enumerate(seen) if sha256]
    if not holders:
        return 0
    source, state = holders[0], None
    if dist.get_rank() == source:
        state = torch.load(path, map_location="cpu", weights_only=True)
    steps: list[Any] = gather(state["step"] if state else None)
    for name, parameter in model.named_parameters():
        _receive(parameter.data, state and state["model"][name], source)
    for number, parameter in enumerate(model.parameters()):
        buffer = torch.zeros_like(parameter.data)
        _receive(buffer, state and state["momentum"][number], source)
        optimizer.state[parameter]["momentum_buffer"] = buffer
    files = {sha256: seen.count(sha256) for sha256 in seen if sha256}
    emit("resume", step=steps[source], sha256=seen[source], files=files)
    return int(steps[source])


def remove(folder: Path) -> None:
    """Remove the checkpoint of a run that has ended well: shared storage would keep it for ever."""
    if dist.get_rank() == 0:
        (folder / NAME).unlink(missing_ok=True)


def _momentum(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    [group] = optimizer.param_groups
    return [optimizer.state[parameter]["momentum_buffer"] for parameter in group["params"]]


def _receive(tensor: torch.Tensor, value: torch.Tensor | None, source: int) -> None:
    if value is not None:
        tensor.copy_(value)
    dist.broadcast(tensor, source)


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()
