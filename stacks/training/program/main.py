"""A short training run that proves a cluster: DDP on all ranks, with a worker killed on the way.

Started by torchrun on every host. A fresh run trains to half of its steps, writes a checkpoint, goes on for
two steps, and kills its last rank. torchrun restarts the ranks; they resume from the checkpoint, repeat these
two steps, finish, and measure. Rank 0 prints what happened as records (records.py); whether that is enough is
decided by stacks/training/package/verdict.py. Whoever changes what is measured raises REVISION in
stacks/training/package/proof.py.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import socket
from datetime import timedelta
from itertools import groupby
from pathlib import Path

import checkpoint
import torch
import torch.distributed as dist
from model import LEARNING_RATE, MOMENTUM, Chain, Task
from records import NcclMessages, counted, digest, emit, gather, measure
from torch.nn.parallel import DistributedDataParallel

SCHEMA = 1
REPEATED_STEPS = 2


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("nccl", "gloo"), required=True)
    parser.add_argument("--gradient-bytes", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="at least 8")
    parser.add_argument("--iterations", type=int, required=True, help="samples of each time")
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder of this run")
    parser.add_argument("--timeout-seconds", type=int, required=True, help="of one collective")
    return parser.parse_args()


def main() -> None:
    """Run once."""
    args = arguments()
    messages = NcclMessages()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if args.backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(args.backend, timeout=timedelta(seconds=args.timeout_seconds))
    try:
        _run(args, device, local_rank, messages)
    except BaseException:
        messages.print_own()
        raise
    finally:
        messages.remove()
    dist.destroy_process_group()


def _run(args: argparse.Namespace, device: torch.device, local_rank: int, messages: NcclMessages) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    model = Chain(args.gradient_bytes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    task = Task(model.width, device)
    _announce(args, model, device)
    done = checkpoint.resume(args.checkpoints, model, optimizer, local_rank=local_rank)
    parallel = DistributedDataParallel(model, device_ids=[local_rank] if device.type == "cuda" else None)
    fresh, half = done == 0, args.steps // 2

    def backward(step: int) -> torch.Tensor:
        inputs, targets = task.batch(step, rank)
        loss = torch.nn.functional.mse_loss(parallel(inputs), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        return loss.detach()

    for step in range(done + 1, args.steps + 1):
        loss = backward(step)
        _report(step, loss, digest(p.grad for p in model.parameters() if p.grad is not None), world)
        optimizer.step()
        if step == done + 1:
            messages.print_all()
        if fresh and step == half:
            checkpoint.save(args.checkpoints, step, model, optimizer)
        if fresh and step == half + REPEATED_STEPS:
            _kill_last_rank(rank, world)

    def step_() -> None:
        backward(0)
        optimizer.step()

    def compute() -> None:
        with parallel.no_sync():
            backward(0)

    parameters = gather(digest(model.parameters()))
    measure(step_, compute, model.gradient_bytes, args.iterations, device)
    emit("end", step=args.steps, parameters=counted(parameters))
    checkpoint.remove(args.checkpoints)


def _announce(args: argparse.Namespace, model: Chain, device: torch.device) -> None:
    """Print what is run, then who takes part: a record per host, whose ranks have consecutive numbers."""
    emit(
        "start",
        schema=SCHEMA,
        backend=args.backend,
        world_size=dist.get_world_size(),
        gradient_bytes=model.gradient_bytes,
        steps=args.steps,
        torch=str(torch.__version__),
    )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    places = gather((os.environ.get("BUSBAR_NODE") or "", socket.gethostname(), name))
    for place, members in groupby(enumerate(places), key=lambda member: member[1]):
        node, pod, device_name = place
        ranks = [rank for rank, _ in members]
        emit("host", node=node, pod=pod, device=device_name, first_rank=ranks[0], ranks=len(ranks))


def _report(step: int, loss: torch.Tensor, gradients: str, world: int) -> None:
    """The mean loss of all ranks, how many losses differ, and how many ranks have which gradients."""
    found = gather((float(loss), gradients))
    losses = [value for value, _ in found]
    emit(
        "step",
        step=step,
        loss=sum(losses) / world,
        distinct_losses=len(set(losses)),
        gradients=counted([each for _, each in found]),
    )


def _kill_last_rank(rank: int, world: int) -> None:
    """End the last rank as a crash would; the others wait for it in vain."""
    emit("kill", rank=world - 1)
    dist.barrier()
    if rank == world - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


if __name__ == "__main__":
    main()
