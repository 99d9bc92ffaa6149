"""The output of the run: records of one JSON object per line, messages of NCCL, digests of gradients, times.

Rank 0 alone prints; stacks/training/package/log.py reads it. Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

KEY = "busbar_training"
NCCL_KEY = "busbar_training_nccl"
KINDS = 8  # the kubelet splits lines of more than 16 KiB
WARMUP = 3
_CHUNK = 1 << 24  # elements: bounds the memory that a digest needs
_MASK = (1 << 64) - 1
Step = Callable[[], None]


def emit(kind: str, **values: Any) -> None:
    """Print one record from rank 0. NaN and infinity are printed as texts: JSON has no such numbers."""
    if dist.get_rank() == 0:
        texts = {k: str(v) for k, v in values.items() if isinstance(v, float) and not math.isfinite(v)}
        record = {KEY: kind, **values, **texts}
        print(json.dumps(record, separators=(",", ":"), allow_nan=False), flush=True)


def gather(value: Any) -> list[Any]:
    """The values of all ranks, by rank, on every rank."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def counted(values: list[Any]) -> dict[str, int]:
    """How often each value is there; of more than KINDS, the rest is counted as "others"."""
    found = Counter(map(str, values)).most_common()
    kept = dict(found[:KINDS])
    return {**kept, "others": len(values) - sum(kept.values())} if len(found) > KINDS else kept


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """64 bits that depend on every bit of the float32 tensors and on its position.

    Computed where the tensors are: integer sums wrap around and do not depend on their order, so ranks with
    the same bits have the same digest.
    """
    total = 0
    for number, tensor in enumerate(tensors, 1):
        bits = tensor.detach().reshape(-1).view(torch.int32)
        for start in range(0, bits.numel(), _CHUNK):
            chunk = bits[start : start + _CHUNK].to(torch.int64)
            weights = torch.arange(start, start + chunk.numel(), device=chunk.device) * 2 + 1
            total += int((chunk * weights).sum()) * (2 * number + 1)
    return f"{total & _MASK:016x}"


class NcclMessages:
    """NCCL writes its messages to a file of each process; rank 0 prints those of all ranks, in one piece.

    So they are in one log, whole lines, however many hosts there are.
    """

    def __init__(self) -> None:
        folder = Path(tempfile.gettempdir())
        self._file = folder / f"nccl.{socket.gethostname()}.{os.getpid()}.log"
        os.environ["NCCL_DEBUG_FILE"] = str(self._file)

    def print_all(self) -> None:
        """Print every rank's messages behind their number and size: a line that is lost or cut shows."""
        for rank, text in enumerate(gather(self._text())):
            if dist.get_rank() != 0:
                continue
            lines = [line for line in text.splitlines() if line.strip()]
            size = sum(len(line.encode()) + 1 for line in lines)
            print(json.dumps({NCCL_KEY: rank, "lines": len(lines), "bytes": size}, separators=(",", ":")))
            for line in lines:
                print(line)
        sys.stdout.flush()

    def print_own(self) -> None:
        """Print this process's messages on stderr: where the run fails, they are the only hint."""
        print(self._text(), file=sys.stderr, flush=True)

    def remove(self) -> None:
        """Remove the file."""
        self._file.unlink(missing_ok=True)

    def _text(self) -> str:
        try:
            return self._file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""  # gloo, or nothing was printed: the reader of the log decides what that means


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
