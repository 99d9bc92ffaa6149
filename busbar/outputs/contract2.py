"""Contract 2, for stacks that were last updated, or last measured, by a busbar that wrote it.

Its hosts, curves, edges and rails were texts. Outputs of it are read for one release. What its collector
printed stays in the state of a stack until the next measurement, and so does `result`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

VERSION = 2
NAMES = ("nodes", "nccl", "pools")
"""Its outputs that are no more: they are in `details`."""
SCHEMA = 2
"""The schema of the verdicts of that busbar; its collector printed it as `schema`."""

WARNING = (
    "the outputs have contract 2, which the next release of busbar does not read. "
    "Fix: run `busbar up` on that stack"
)
MALFORMED = (AttributeError, KeyError, TypeError, ValueError)
"""What these functions raise for anything else than contract 2."""

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def upgrade(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs with `details`, which contract 2 did not have. Raises MALFORMED."""
    details = {
        "nodes": list(_nodes(outputs.get("nodes") or {})),
        "nccl": {pool: result(entry) for pool, entry in (outputs.get("nccl") or {}).items()},
        "pools": json.loads(outputs.get("pools") or "{}"),
    }
    return {**outputs, "details": json.dumps(json.dumps(details))}


def result(old: Mapping[str, Any]) -> dict[str, Any]:
    """A PoolResult, from what the collector printed or from `nccl[pool]`. Raises MALFORMED."""
    gdrdma, network = map(int, old.get("gdrdma_edges", "0 of 0").split(" of "))
    passed = old.get("verdict") == "pass"
    consistent = old.get("passed", passed) is passed
    return {
        **old,
        "verdict": old.get("verdict") if consistent else "unknown",
        **({"gdrdma_edges": gdrdma, "network_edges": network} if network else {}),
        "hosts_by_rails": dict(re.findall(r"(\d+) on (?:each of )?(\d+) host", old.get("rails", ""))),
        "curve": {name: sorted(_points(text)) for name, text in (old.get("curve") or {}).items()},
    }


def _points(text: str) -> Iterator[tuple[int, float]]:
    """(bytes, GB/s) of each word such as `512MiB=371.2`."""
    for word in text.split():
        count, unit, busbw = re.split(r"(?<=\d)(?=[A-Z])|=", word)
        yield int(count) * _UNITS[unit], float(busbw)


def _nodes(by_role: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """From `NAME ADDRESS [gpus=N] [rails=N]`, separated by `, `, for each role."""
    for role, text in by_role.items():
        for node in text.split(", "):
            name, address, *counts = node.split()
            found = dict(count.split("=", 1) for count in counts)
            yield {"name": name, "role": role, "address": address, "gpus": 0, "rails": 0, **found}
