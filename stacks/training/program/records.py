"""The records that the run prints: one JSON object per line, from rank 0 only.

stacks/training/package/log.py reads them. Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import torch.distributed as dist

KEY = "busbar_training"
NCCL_KEY = "busbar_training_nccl"
KINDS = 8  # the kubelet splits lines of more than 16 KiB


def emit(kind: str, **values: Any) -> None:
    """Print one record from rank 0. NaN and infinity are printed as texts: JSON has no such numbers."""
    if dist.get_rank() == 0:
        print(json.dumps({KEY: kind, **_finite(values)}, separators=(",", ":"), allow_nan=False), flush=True)


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


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
