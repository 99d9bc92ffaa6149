"""Chooses the HCA ports that are rails: by link layer, state and rate, never by name.

A storage HCA is mlx5_4 on one image and mlx5_0 on another, so names do not identify rails.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from busbar.preflight.report import Hca
from busbar.preflight.spec import HostRequirements

_RATE = re.compile(r"(?P<gbps>\d+(?:\.\d+)?) Gb/sec")


@dataclass(frozen=True)
class Rails:
    """The ports that carry NCCL traffic, by name; for every other port the reason why it is not a rail."""

    ports: dict[str, Hca]
    ignored: dict[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rails, as in NCCL_IB_HCA."""
        return tuple(self.ports)


def choose(hcas: Iterable[Hca], required: HostRequirements) -> Rails:
    """Choose the rails among the ports of a host."""
    rails: dict[str, Hca] = {}
    ignored: dict[str, str] = {}
    for hca in sorted(hcas, key=lambda hca: (_natural(hca.name), hca.port)):
        # Port 1 is the usual one; NCCL_IB_HCA names another as mlx5_0:2.
        name = hca.name if hca.port == 1 else f"{hca.name}:{hca.port}"
        reason = _why_not(hca, required)
        if reason:
            ignored[name] = reason
        else:
            rails[name] = hca
    return Rails(rails, ignored)


def rate_gbps(text: str) -> float:
    """The number in sysfs's `400 Gb/sec (4X NDR)`; 0 if there is none."""
    found = _RATE.match(text)
    return float(found["gbps"]) if found else 0.0


def _why_not(hca: Hca, required: HostRequirements) -> str | None:
    if any(fnmatchcase(hca.name, pattern) for pattern in required.ignore_hcas):
        return "named in ignore_hcas"
    if hca.link_layer.lower() != required.link_layer:
        return f"link layer is {hca.link_layer or 'unknown'}, not {required.link_layer}"
    if not hca.state.endswith("ACTIVE"):
        return f"port is {hca.state.partition(': ')[2] or hca.state or 'in an unknown state'}, not ACTIVE"
    if rate_gbps(hca.rate) != required.rate_gbps:
        return f"rate is {rate_gbps(hca.rate):g} Gb/s, not {required.rate_gbps:g}"
    return None


def _natural(name: str) -> list[int | str]:
    """Sort key that puts mlx5_2 before mlx5_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
