"""Which HCA ports are rails: chosen by link layer, state and rate, never by name.

The device that is no rail is mlx5_4 on one image and mlx5_0 on another, so a name says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from busbar.preflight.report import Hca
from busbar.preflight.spec import Need

_RATE = re.compile(r"(?P<gbps>\d+(?:\.\d+)?) Gb/sec")


@dataclass(frozen=True)
class Rails:
    """The ports that carry NCCL traffic, and for every other port the reason why it does not."""

    names: tuple[str, ...]
    ignored: dict[str, str]


def choose(hcas: Iterable[Hca], need: Need) -> Rails:
    """Sort the ports of a host into rails and the rest. Rates are in Gb/s."""
    names: list[str] = []
    ignored: dict[str, str] = {}
    for hca in sorted(hcas, key=lambda hca: (_natural(hca.name), hca.port)):
        # Port 1 is the usual one; NCCL_IB_HCA names another as mlx5_0:2.
        name = hca.name if hca.port == 1 else f"{hca.name}:{hca.port}"
        reason = _why_not(hca, need)
        if reason:
            ignored[name] = reason
        else:
            names.append(name)
    return Rails(tuple(names), ignored)


def rate_gbps(text: str) -> float:
    """The number in sysfs's `400 Gb/sec (4X NDR)`; 0 where there is none."""
    found = _RATE.match(text)
    return float(found["gbps"]) if found else 0.0


def _why_not(hca: Hca, need: Need) -> str | None:
    if any(fnmatchcase(hca.name, pattern) for pattern in need.ignore_hcas):
        return "named in ignore_hcas"
    if hca.link_layer.lower() != need.link_layer:
        return f"link layer is {hca.link_layer or 'unknown'}, not {need.link_layer}"
    if not hca.state.endswith("ACTIVE"):
        return f"port is {hca.state.partition(': ')[2] or hca.state or 'in no known state'}, not ACTIVE"
    if rate_gbps(hca.rate) != need.rate_gbps:
        return f"rate is {rate_gbps(hca.rate):g} Gb/s, not {need.rate_gbps:g}"
    return None


def _natural(name: str) -> list[int | str]:
    """mlx5_2 before mlx5_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
