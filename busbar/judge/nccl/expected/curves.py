"""The rise of busbw with the message size: the lower envelope of known-good curves (curves.yaml)."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from busbar.judge.nccl.expected.profiles import read_yaml
from busbar.judge.nccl.expected.published import SAME_BOARD
from busbar.judge.nccl.expected.system import System

CURVES_OF_A_CLASS = 5
# curves needed for a size: fewer show one machine rather than the usual value
CURVES_OF_A_SIZE = 3
MIB = 2**20


class Rise(NamedTuple):
    """Lowest busbw of known-good curves at a size, as fractions of the largest message and the next one."""

    of_plateau: float
    of_next: float


def envelope(system: System | None, collective: str) -> dict[int, Rise]:
    """Bytes -> rise of the known-good curves in the class of SYSTEM; empty if there are too few."""
    if system is None or system.nodes_per_domain > 1:
        return {}
    return _envelope(SAME_BOARD.get(system.gpu, system.gpu), system.nodes, collective)


@cache
def _envelope(gpu: str, hosts: int, collective: str) -> dict[int, Rise]:
    entries = read_yaml("busbar.judge.nccl.expected", "curves.yaml")
    key = {"gpu": gpu, "hosts": hosts, "collective": collective}
    curves: list[dict[int, float]] = [e["busbw"] for e in entries if {k: e[k] for k in key} == key]
    if len(curves) < CURVES_OF_A_CLASS:
        return {}
    sizes = sorted({size for curve in curves for size in curve})
    return {
        size * MIB: Rise(
            min(curve[size] / curve[max(curve)] for curve in here),
            min((curve[size] / curve[2 * size] for curve in here if 2 * size in curve), default=0.0),
        )
        for size in sizes
        if len(here := [curve for curve in curves if size in curve]) >= CURVES_OF_A_SIZE
    }
