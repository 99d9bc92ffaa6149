"""How long a step takes, how much of it is computation, and how long an all-reduce of its gradients takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from records import emit

Step = Callable[[], None]
WARMUP = 3


def measure(step: Step, compute: Step, gradient_bytes: int, iterations: int, device: torch.device) -> None:
    """Print the samples of `iterations` runs of each; a sample is the time of the slowest rank.

    `step` is a whole training step with DDP, `compute` the same without the exchange of gradients. The
    all-reduce carries as many bytes as the gradients, in place, float32, and its result is compared.
    """
    world = dist.get_world_size()
    buffer = torch.empty(gradient_bytes // 4, device=device)
    wrong = torch.zeros(1, dtype=torch.int64, device=device)

    def fill() -> None:
        buffer.fill_(dist.get_rank() + 1)

    def compare() -> None:
        wrong.add_((buffer != world * (world + 1) / 2).sum())

    steps = _samples(step, iterations, device)
    computing = _samples(compute, iterations, device)
    reducing = _samples(lambda: dist.all_reduce(buffer), iterations, device, before=fill, after=compare)
    dist.all_reduce(wrong)
    emit(
        "timing",
        bytes=buffer.numel() * 4,
        step_s=steps,
        compute_s=computing,
        allreduce_s=reducing,
        wrong=int(wrong),
    )


def _samples(
    run: Step,
    iterations: int,
    device: torch.device,
    *,
    before: Step = lambda: None,
    after: Step = lambda: None,
) -> list[float]:
    samples = []
    for number in range(WARMUP + iterations):
        before()
        dist.barrier()
        _synchronize(device)
        started = time.perf_counter()
        run()
        _synchronize(device)
        elapsed = torch.tensor(time.perf_counter() - started, dtype=torch.float64, device=device)
        after()
        dist.all_reduce(elapsed, op=dist.ReduceOp.MAX)
        if number >= WARMUP:
            samples.append(float(elapsed))
    return samples


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
