"""Storage that all hosts share: whether they do, and how fast it is while all use it."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from records import KINDS, emit, gather

_BLOCK = 16 << 20
_MIB = 1 << 20


def probe(folder: Path, size: int, *, local_rank: int) -> None:
    """Each host writes a file of `size` bytes, then reads that of the next host. All do so at the same time.

    Rank 0 prints the MiB/s of the slowest host in each direction, and which hosts did not find their
    neighbour's file, or found other bytes. A host reads what it did not write, so not from its own cache;
    the storage's server may have it in memory.
    """
    host, hosts = int(os.environ["GROUP_RANK"]), int(os.environ["GROUP_WORLD_SIZE"])
    own, theirs = (folder / f".probe.{number % hosts}" for number in (host, host + 1))
    is_first = local_rank == 0
    node = os.environ.get("BUSBAR_NODE") or str(host)
    written = [each for each in gather(_attempt(node, _write, own, size) if is_first else None) if each]
    wanted = {each["file"]: each["sha256"] for each in written if "sha256" in each}
    read = [each for each in gather(_attempt(node, _read, theirs, size) if is_first else None) if each]
    for each in read:
        if "sha256" in each and each["sha256"] != wanted.get(each["file"]):
            each["problem"] = f"{each['file']} has other bytes than the host that wrote it"
    dist.barrier()
    if is_first:
        own.unlink(missing_ok=True)
    problems = {each["node"]: each["problem"] for each in (*read, *written) if "problem" in each}
    emit(
        "storage",
        bytes=size,
        hosts=hosts,
        write_mib_s=_slowest(written, size),
        read_mib_s=_slowest(read, size),
        problems=dict(list(problems.items())[:KINDS]),
    )


def _attempt(node: str, action: Any, path: Path, size: int) -> dict[str, Any]:
    """What came of it: seconds and sha256, or a problem."""
    try:
        seconds, sha256 = action(path, size)
        return {"node": node, "file": path.name, "seconds": seconds, "sha256": sha256}
    except OSError as error:
        return {"node": node, "file": path.name, "problem": f"{path.name}: {error.strerror}"}


def _write(path: Path, size: int) -> tuple[float, str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    block, found, seconds = memoryview(os.urandom(min(_BLOCK, size))), hashlib.sha256(), 0.0
    with path.open("wb") as file:
        for offset in range(0, size, _BLOCK):
            part = block[: min(_BLOCK, size - offset)]
            found.update(part)
            started = time.perf_counter()
            file.write(part)
            seconds += time.perf_counter() - started
        started = time.perf_counter()
        file.flush()
        os.fsync(file.fileno())
        seconds += time.perf_counter() - started
    return seconds, found.hexdigest()


def _read(path: Path, size: int) -> tuple[float, str]:
    found, seconds = hashlib.sha256(), 0.0
    with path.open("rb") as file:
        while True:
            started = time.perf_counter()
            part = file.read(_BLOCK)
            seconds += time.perf_counter() - started
            if not part:
                return seconds, found.hexdigest()
            found.update(part)


def _slowest(results: list[dict[str, Any]], size: int) -> float:
    """MiB/s of the slowest host; 0 where one has failed."""
    if any("seconds" not in each for each in results):
        return 0.0
    return size / _MIB / max(each["seconds"] for each in results)
