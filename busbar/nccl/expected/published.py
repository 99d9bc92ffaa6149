"""Public measurements (published.yaml), and which of them is comparable with a given system."""

from __future__ import annotations

from functools import cache

from pydantic import BaseModel, ConfigDict

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
    healthy: bool = True
    source: str

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


def lowest(system: System, collective: str, algorithm: str) -> PublishedResult | None:
    """The lowest healthy result of the same GPU, line rate, algorithm, collective and N (1, 2, more)."""
    matching = [
        r
        for r in published_results()
        if r.healthy
        and r.gpu == system.gpu
        and r.collective == collective
        and r.algorithm in COMPARABLE_ALGORITHMS.get(algorithm, ())
        and _class(r.system().domains) == _class(system.domains)
        and (system.domains == 1 or r.system().line_rate == system.line_rate or _racks(r, system))
    ]
    return min(matching, key=lambda r: r.busbw, default=None)


def _class(domains: int) -> int:
    return min(domains, 3)


def _racks(result: PublishedResult, system: System) -> bool:
    # several racks: what NVLink and the rails of one host give counts, not how full the racks are
    return system.nodes_per_domain > 1 and result.gpus > 16 and result.rails == system.rails
