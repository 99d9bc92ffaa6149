"""Public measurements (references.yaml), and which of them speaks for a given system."""

from __future__ import annotations

from functools import cache

from pydantic import BaseModel, ConfigDict

from busbar.nccl.data import read_yaml
from busbar.nccl.expected.hardware import NVLINK, Hardware

# which algorithms' figures speak for a run of the named one
SPEAKS_FOR = {
    "ring": ("ring", "auto"),
    "auto": ("ring", "auto", "nvls"),
    "nvls": ("nvls",),
    "tree": ("tree",),
    "sharp": ("sharp",),
}


class Reference(BaseModel):
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

    def hardware(self) -> Hardware:
        """The system that was measured."""
        rack = 4 if self.gpus > 16 or self.gpu.startswith("GB") else self.gpus
        hosts = self.gpus // rack
        return Hardware(
            gpu=self.gpu,
            nodes=self.nodes * hosts,
            gpus_per_node=rack,
            rails=self.rails,
            rate_gbps=self.rate_gbps,
            nvlink_gbps=NVLINK.get(self.gpu, 0.0),
            nodes_per_domain=hosts,
        )


@cache
def references() -> tuple[Reference, ...]:
    """All references, in file order."""
    return tuple(Reference(**entry) for entry in read_yaml("busbar.nccl.expected", "references.yaml"))


def lowest(hw: Hardware, collective: str, algorithm: str) -> Reference | None:
    """The lowest healthy figure of the same GPU, line rate, algorithm, collective and N (1, 2, more)."""
    matching = [
        r
        for r in references()
        if r.healthy
        and r.gpu == hw.gpu
        and r.collective == collective
        and r.algorithm in SPEAKS_FOR.get(algorithm, ())
        and _class(r.hardware().domains) == _class(hw.domains)
        and (hw.domains == 1 or r.hardware().line_rate == hw.line_rate or _racks(r, hw))
    ]
    return min(matching, key=lambda r: r.busbw, default=None)


def _class(domains: int) -> int:
    return min(domains, 3)


def _racks(reference: Reference, hw: Hardware) -> bool:
    # several racks: what NVLink and the rails of one host give counts, not how full the racks are
    return hw.nodes_per_domain > 1 and reference.gpus > 16 and reference.rails == hw.rails
