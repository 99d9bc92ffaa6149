"""Ranks of stacks/training/program, a process each, with the part of torch.distributed that they use.

Without torch: what computes with tensors is run by the drills only (tests/lab/test_training.py).
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

PROGRAM = Path(__file__).resolve().parents[3] / "program"
WORLD, PER_HOST = 4, 2
SECONDS = 60
_FORK = multiprocessing.get_context("fork")


class Tensor:
    """Numbers, with what the program does to tensors that it does not compute with."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    @property
    def data(self) -> Tensor:
        return self

    def copy_(self, other: Tensor) -> None:
        self.values = list(other.values)

    def __float__(self) -> float:
        [value] = self.values
        return value


class Group:
    """torch.distributed of one rank. Objects go through files, named by the number of the call."""

    ReduceOp = types.SimpleNamespace(MAX=max)

    def __init__(self, rank: int, barrier: Any, folder: Path) -> None:
        self._rank, self._barrier, self._folder = rank, barrier, folder
        self._calls = itertools.count()

    def get_rank(self) -> int:
        return self._rank

    def get_world_size(self) -> int:
        return WORLD

    def barrier(self) -> None:
        self._barrier.wait(SECONDS)

    def all_gather_object(self, found: list[Any], value: Any) -> None:
        call = next(self._calls)
        (self._folder / f"{call}.{self._rank}").write_bytes(pickle.dumps(value))
        self.barrier()
        found[:] = [pickle.loads((self._folder / f"{call}.{rank}").read_bytes()) for rank in range(WORLD)]

    def broadcast(self, tensor: Tensor, source: int) -> None:
        tensor.values = self._gathered(tensor)[source]

    def all_reduce(self, tensor: Tensor, op: Callable[[list[float]], float]) -> None:
        tensor.values = [op(list(each)) for each in zip(*self._gathered(tensor), strict=True)]

    def _gathered(self, tensor: Tensor) -> list[list[float]]:
        found: list[Any] = [None] * WORLD
        self.all_gather_object(found, tensor.values)
        return found


@dataclass(frozen=True)
class Ran:
    """By rank: what the action returned, and the lines that it printed."""

    returned: list[Any]
    printed: list[list[str]]


def run(folder: Path, act: Callable[[int], Any]) -> Ran:
    """Run ACT(rank) on 2 ranks of each of 2 hosts; it imports modules of the program by their names.

    Raises AssertionError, with its traceback on stderr, where it fails on a rank.
    """
    exchange = folder / "exchange"
    exchange.mkdir()
    barrier = _FORK.Barrier(WORLD)
    ranks = [_FORK.Process(target=_rank, args=(rank, barrier, exchange, act)) for rank in range(WORLD)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(SECONDS)
    assert [process.exitcode for process in ranks] == [0] * WORLD
    return Ran(
        [pickle.loads((exchange / f"returned.{rank}").read_bytes()) for rank in range(WORLD)],
        [(exchange / f"printed.{rank}").read_text().splitlines() for rank in range(WORLD)],
    )


SAFE = ["save", "fsync .checkpoint.pt", "rename to checkpoint.pt", "fsync folder"]
"""The steps of `writes` after which a crash leaves either the former file or the whole new one."""


def writes(act: Callable[[], None]) -> list[str]:
    """The steps by which ACT writes a checkpoint; names without what is behind their last dot."""
    calls: list[str] = []
    torch, fsync, replace = sys.modules["torch"], os.fsync, Path.replace

    def save(value: Any, file: Any) -> None:
        calls.append("save")
        file.write(b"x")

    def synced(fd: Any) -> None:
        calls.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{fd}')).name.rpartition('.')[0]}")
        fsync(fd)

    def rename(path: Path, target: Path) -> Path:
        calls.append(f"rename to {target.name}")
        return replace(path, target)

    with (
        mock.patch.object(torch, "save", save),
        mock.patch.object(os, "fsync", synced),
        mock.patch.object(Path, "replace", rename),
    ):
        act()
    return calls


def import_program(modules: Mapping[str, Any]) -> None:
    """Make the program's modules importable; they find these modules in place of torch."""
    sys.modules.update(modules)
    sys.path.insert(0, str(PROGRAM))


def stand_in(dist: Any) -> dict[str, Any]:
    """The modules that the program imports from torch, for those of its functions that need no more."""
    torch = types.ModuleType("torch")
    named = {
        "distributed": dist,
        "nn": types.SimpleNamespace(Module=object),
        "Tensor": Tensor,
        "float64": None,
        "tensor": lambda value, **_: Tensor(value),
        "zeros_like": lambda tensor: Tensor(*(0 for _ in tensor.values)),
        "save": pickle.dump,
        "load": lambda path, **_: pickle.loads(path.read_bytes()),
    }
    for name, value in named.items():
        setattr(torch, name, value)
    parallel = types.SimpleNamespace(DistributedDataParallel=None)
    return {
        "torch": torch, "torch.distributed": dist, "torch.nn": torch.nn, "torch.nn.parallel": parallel,
    }  # fmt: skip


def _rank(rank: int, barrier: Any, folder: Path, act: Callable[[int], Any]) -> None:
    host = rank // PER_HOST
    os.environ |= {"GROUP_RANK": str(host), "GROUP_WORLD_SIZE": str(WORLD // PER_HOST)}
    os.environ |= {"BUSBAR_NODE": f"gpu-{host + 1}", "LOCAL_RANK": str(rank % PER_HOST)}
    import_program(stand_in(Group(rank, barrier, folder)))
    try:
        with (folder / f"printed.{rank}").open("w") as sys.stdout:
            returned = act(rank)
    except BaseException:
        barrier.abort()
        raise
    (folder / f"returned.{rank}").write_bytes(pickle.dumps(returned))
