"""A small DistributedDataParallel training that survives restarts: the program of the examples.

Started by torchrun, or by mpirun with MASTER_ADDR and MASTER_PORT. It needs nothing but torch.

    train.py FOLDER [STEPS]

Every 20 steps rank 0 writes FOLDER/checkpoint.pt; a start that finds one resumes from it, with any number
of ranks. FOLDER must be on storage that outlives the pod with rank 0: after a restart it may be another one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64
EVERY = 20


def ranks() -> tuple[int, int, int]:
    """Rank, number of ranks, and rank on this host, as torchrun or Open MPI tells them."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
    rank, world, local = (int(os.environ[name]) for name in names)
    return rank, world, local


def save(path: Path, state: dict[str, Any]) -> None:
    """The file has its name only when all of it is on the disk: a crash leaves the previous one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.new")
    with unfinished.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def load(path: Path, rank: int) -> dict[str, Any] | None:
    """The checkpoint on every rank, or None. Rank 0 reads it: others may see the folder a moment later."""
    state = None
    if rank == 0 and path.is_file():
        state = torch.load(path, map_location="cpu", weights_only=True)
    box = [state]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def main(folder: Path, steps: int) -> None:
    """Train, print the loss, write checkpoints."""
    rank, world, local = ranks()
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(local)
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo", rank=rank, world_size=world)
    model = torch.nn.Linear(WIDTH, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first, path = 1, folder / "checkpoint.pt"
    if state := load(path, rank):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1
        if rank == 0:
            print(f"resumed after step {state['step']} with {world} ranks", flush=True)
    parallel = DistributedDataParallel(model, device_ids=[local] if on_gpu else None)
    # A different batch per rank and step, also after a restart.
    for step in range(first, steps + 1):
        generator = torch.Generator().manual_seed(step * 1_000_003 + rank)
        inputs = torch.randn(256, WIDTH, generator=generator).to(device)
        loss = ((parallel(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % EVERY == 0:
            save(path, {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()})
            print(f"step {step} of {steps}, {world} ranks: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200)
