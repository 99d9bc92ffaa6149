"""Public measurements (published.yaml), and which of them is comparable with a given system."""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from busbar.nccl.expected.profiles import read_yaml
from busbar.nccl.expected.system import NVLINK, System

# algorithm of a run -> algorithms whose published results are comparable
COMPARABLE_ALGORITHMS = {
    "ring": ("ring", "auto"),
    "auto": ("ring", "auto", "nvls"),
    "nvls": ("nvls",),
    "tree": ("tree",),
    "sharp": ("sharp",),
}

Health = Literal["healthy", "degraded", "outdated", "outlier"]  # as published.yaml explains


class PublishedResult(BaseModel):
    """One published busbw in GB/s; `nodes` and `gpus` count NVLink domains and the GPUs in one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu: str
    rails: int
    rate_gbps: float
    gpus: int
    nodes: int
    algorithm: str
    collective: str
    busbw: float
    date: str = Field(pattern=r"^20\d\d(-\d\d)?$", description="year, or year and month")
    health: Health
    source: str = Field(min_length=10)

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


@cache
def published_results() -> tuple[PublishedResult, ...]:
    """All results, in file order."""
    return tuple(PublishedResult(**entry) for entry in read_yaml("busbar.nccl.expected", "published.yaml"))


@cache
def _of(gpu: str, collective: str, health: Health) -> tuple[tuple[PublishedResult, System], ...]:
    found = (r for r in published_results() if (r.gpu, r.collective) == (gpu, collective))
    return tuple((r, r.system()) for r in found if r.health == health)


def comparable(
    system: System, collective: str, algorithm: str, health: Health = "healthy"
) -> list[PublishedResult]:
    """Healthy ones of the same GPU, line rate, algorithm, collective and N (1, 2, more; of racks 1, more)."""
    # only all_reduce is reduced in switches, or by trees
    algorithms = COMPARABLE_ALGORITHMS.get(algorithm if collective == "all_reduce" else "auto", ())
    return [
        result
        for result, measured in _of(system.gpu, collective, health)
        if result.algorithm in algorithms
        and _class(measured) == _class(system)
        and (system.domains == 1 or measured.line_rate == system.line_rate or _racks(result, system))
    ]


def _class(system: System) -> int:
    # fewer racks are not slower than many
    return min(system.domains, 2 if system.nodes_per_domain > 1 else 3)


def _racks(result: PublishedResult, system: System) -> bool:
    # several racks: what NVLink and the rails of one host give counts, not how full the racks are
    return system.nodes_per_domain > 1 and result.gpus > 16 and result.rails == system.rails
