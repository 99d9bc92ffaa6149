"""Public measurements (published.yaml), and the choice of those that are comparable to a given system."""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from busbar.judge.nccl.expected.formulas import SLACK
from busbar.judge.nccl.expected.profiles import read_yaml
from busbar.judge.nccl.expected.system import NVLINK, System
from busbar.judge.nccl.units import gbps
from busbar.text import counted

# algorithm of a run -> algorithms whose published results are comparable
COMPARABLE_ALGORITHMS = {
    "ring": ("ring", "auto"),
    "auto": ("ring", "auto", "nvls"),
    "nvls": ("nvls",),
    "tree": ("tree",),
    "sharp": ("sharp",),
}
# GPUs on the same board with the same NVLink: H200 only differs from H100 in its memory
SAME_BOARD = {"H200": "H100"}


class PublishedResult(BaseModel):
    """One published busbw in GB/s. `nodes`: number of NVLink domains. `gpus`: number of GPUs in one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu: str
    rails: int
    rate_gbps: float
    gpus: int
    nodes: int
    algorithm: str
    collective: str
    busbw: float
    nccl: str = Field(default="", pattern=r"^(\d+\.\d+\.\d+)?$")
    date: str = Field(default="", pattern=r"^(20\d\d(-\d\d)?)?$", description="year, or year and month")
    health: Literal["healthy", "degraded", "outdated"] = "healthy"
    tuned: bool = Field(default=True, description="False: healthy, and nobody made it fast")
    source: str = Field(min_length=10)
    reason: str = Field(default="", description="why it is more than 10 % off what is expected")

    def system(self) -> System:
        """The system that was measured."""
        rack = 4 if self.gpus > 16 or self.gpu.startswith("GB") else self.gpus
        hosts = self.gpus // rack
        return System(
            gpu=self.gpu,
            nodes=self.nodes * hosts,
            gpus_per_node=rack,
            rails=self.rails,
            rate_gbps=self.rate_gbps,
            nvlink_gbps=NVLINK.get(self.gpu, 0.0),
            nodes_per_domain=hosts,
        )

    def __str__(self) -> str:
        """The result as text: 390.28 GB/s on 2 nodes (NCCL 2.19.3, 2023-12, crusoecloud/crusoe-ml-k3s ..)."""
        what = "node" if self.gpus <= 16 else "rack"
        where = [f"NCCL {self.nccl}" if self.nccl else "", self.date, self.source]
        return f"{gbps(self.busbw)} on {counted(self.nodes, what)} ({', '.join(filter(None, where))})"


@cache
def published_results() -> tuple[PublishedResult, ...]:
    """All results, in file order."""
    entries = read_yaml("busbar.judge.nccl.expected", "published.yaml")
    return tuple(
        PublishedResult(**{**entry, "nodes": nodes, "busbw": busbw})
        for entry in entries
        for nodes, busbw in entry["busbw"].items()
    )


CLASSES = (2, 3, 9)
"""The smallest number of domains in the size classes 1, 2 and 3; one domain is class 0."""


def size_class(domains: int) -> int:
    """The size class: 0, 1, 2, 3 for one domain, two, three to eight, and more."""
    return sum(domains >= fewest for fewest in CLASSES)


@cache
def _of(gpu: str, collective: str) -> tuple[tuple[PublishedResult, System, str], ...]:
    board = SAME_BOARD.get(gpu, gpu)
    found = (r for r in published_results() if r.health == "healthy" and r.collective == collective)
    return tuple(
        (r, system := r.system(), chosen(system, collective, r.algorithm))
        for r in found
        if SAME_BOARD.get(r.gpu, r.gpu) == board
    )


def chosen(system: System, collective: str, algorithm: str) -> str:
    """ALGORITHM, or NCCL's choice: NVLS or its trees in one or two domains whose NVSwitch reduces."""
    default = algorithm == "auto" and collective == "all_reduce" and system.reduces_in_nvswitch
    return "nvls" if default and system.domains <= 2 else algorithm


def comparable(system: System, collective: str, algorithm: str) -> tuple[list[PublishedResult], bool]:
    """Healthy results of the same board, algorithm and collective, and whether they have the same rails too:
    without such results, those with the same line rate are used.

    For one domain only results of one domain are used, for more domains those of more, in any number.
    """
    # only all_reduce uses switches or trees for the reduction
    algorithms = COMPARABLE_ALGORITHMS.get(algorithm if collective == "all_reduce" else "auto", ())
    found = [
        (result, measured)
        for result, measured, used in _of(system.gpu, collective)
        if used in algorithms
        and (measured.domains == 1) == (system.domains == 1)
        # a result above line rate is from a tree, whatever algorithm was requested
        and not (algorithm == "ring" and measured.domains > 1 and result.busbw > SLACK * measured.line_rate)
    ]
    if system.domains == 1:
        return [result for result, _ in found if _same_board(result, system)], True
    same = [result for result, measured in found if _same_rails(result, measured, system)]
    other = [result for result, measured in found if _same_rate(measured, system)]
    return same or other, bool(same)


def around(results: list[PublishedResult], domains: int) -> list[PublishedResult]:
    """The RESULTS that apply to DOMAINS: of its size class; beyond the largest of these also of the next.

    If the class has none: those of the nearest class below and above it (for two domains: none).
    """
    own = size_class(domains)
    classes = {size_class(r.nodes) for r in results}
    if own not in classes and own < 2 and any(r.gpus <= 16 for r in results):
        return []
    below = max((c for c in classes if c <= own), default=None)
    above = min((c for c in classes if c > own), default=None)
    if own in classes and any(r.nodes >= domains for r in results if size_class(r.nodes) == own):
        above = None
    return [r for r in results if size_class(r.nodes) in (below, above)]


def _same_board(result: PublishedResult, system: System) -> bool:
    # a rack need not be full
    return result.gpus == system.gpus_per_domain or min(result.gpus, system.gpus_per_domain) > 8


def _same_rails(result: PublishedResult, measured: System, system: System) -> bool:
    # with several racks, NVLink and the rails of one host count, not the number of hosts in a rack
    if system.nodes_per_domain > 1:
        return result.gpus > 16 and result.rails == system.rails
    of_both = ((each.rails, each.rate_gbps) for each in (measured, system))
    return measured.nodes_per_domain == 1 and len({*of_both}) == 1


def _same_rate(measured: System, system: System) -> bool:
    return (
        measured.nodes_per_domain == system.nodes_per_domain == 1 and measured.line_rate == system.line_rate
    )
