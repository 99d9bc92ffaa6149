"""The rates that a system can carry: NVLink per GPU generation, and line rate per NVLink domain.

GB/s are 1e9 B/s, one direction. An NVLink domain is a host, or a whole rack for NVL72.
Sources: NVIDIA data sheets for NVLink; measured NVLS values as in published.yaml.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

# NVIDIA H100 80GB HBM3 | NVIDIA A100-SXM4-40GB | NVIDIA GB200 | h100-sxm5
MODEL = re.compile(
    r"\b(?:P100|V100|T4|A10G?|A30|A40|A100|A800|L4|L40S?|H20|H100|H200|H800|B100|B200|B300|GH200|GB200|GB300"
    r"|MI\d{3}X?)\b",
    re.IGNORECASE,
)

# GB/s of one GPU's NVLink, one direction; of an MI GPU its seven xGMI links
NVLINK = {
    "MI300X": 448.0, "MI325X": 448.0, "MI355X": 537.6,
    "V100": 150.0, "A100": 300.0, **dict.fromkeys(("H100", "H200", "H20", "GH200"), 450.0),
    **dict.fromkeys(("B200", "B300", "GB200", "GB300"), 900.0),
}  # fmt: skip
# what ROCm prints where it does not know the model
UNNAMED = "AMD Radeon Graphics"
# best busbw seen for reductions inside the NVLink switch; other GPUs have none
NVLS = {"H100": 481.0, "H200": 481.0, "B200": 841.0, "B300": 841.0, "GB200": 847.0, "GB300": 847.0}
# A switch that reduces sends a byte once, which busbw counts nearly twice: the most seen is 1.07 of NVLink.
IN_SWITCH = 1.2
# part of NVLink that a ring in one domain reaches: 0.75 to 0.82 on A100, H100, B200
RING_SHARE = 0.75


def models(text: str) -> set[str]:
    """Known GPU models that TEXT names, in capitals: {'H100'}; empty without one."""
    return {m.upper() for m in MODEL.findall(text)}


# GPUs on a board whose NVSwitch joins all of them
BOARD_GPUS = 8
SWITCHED = ("A100", "H100", "H200", "B200", "B300")
# H100 PCIe | H100 NVL | H100 80GB HBM3 MIG 1g.10gb | GRID A100-10C | A40-48Q: a card, or a part
VARIANT = re.compile(r"PCI|\bNVL\b|\bCNX\b|\bMIG\b|\bGRID\b|-\d+[ABCQ]\b", re.IGNORECASE)
# names of other lines of products, whatever their number
OTHER_PRODUCTS = re.compile(
    r"GeForce|\b[RG]TX|Quadro|TITAN|Tesla|Radeon|Instinct|Gaudi|Jetson|Orin|Thor|\bCMP|\b[ALT]\d{1,4}X?\b",
    re.IGNORECASE,
)


def gpu_name(text: str) -> str:
    """The model in a name: H100-SXM5-80GB -> H100. H100 PCIe, H100 NVL and the like stay unchanged."""
    found = models(text)
    return found.pop() if len(found) == 1 and not VARIANT.search(text) else text


def is_gpu(printed: str, wanted: str) -> bool | None:
    """Whether the name PRINTED in a device list is the GPU WANTED; None where that is not known."""
    asked, found = models(wanted), models(printed)
    if printed == UNNAMED and any(model.startswith("MI") for model in asked):
        return True
    if found == asked if asked else wanted.lower() in printed.lower():
        kinds = ({m.upper() for m in VARIANT.findall(text)} for text in (printed, wanted))
        return next(kinds) == next(kinds)
    return False if found or OTHER_PRODUCTS.search(printed) else None


def board(names: set[str]) -> str | None:
    """The one model of GPUs that the device list NAMES, if an NVSwitch board carries it; else None."""
    found = {m for name in names for m in models(name)}
    if len(found) != 1 or any(VARIANT.search(name) or not models(name) for name in names):
        return None
    model = found.pop()
    return model if model in SWITCHED else None


@dataclass(frozen=True, slots=True)
class System:
    """A system as far as a collective sees it."""

    gpu: str
    nodes: int
    gpus_per_node: int
    rails: int
    rate_gbps: float
    nvlink_gbps: float
    nodes_per_domain: int = 1

    @property
    def ranks(self) -> int:
        """GPUs in all."""
        return self.nodes * self.gpus_per_node

    @property
    def domains(self) -> int:
        """NVLink domains; N in the formulas."""
        return math.ceil(self.nodes / self.nodes_per_domain)

    @property
    def hosts_per_domain(self) -> int:
        """Participating hosts per domain. As in the sources, racks are assumed to be filled evenly; where
        they cannot be, this is the number of hosts in the smallest.
        """
        return self.nodes // self.domains

    @property
    def gpus_per_domain(self) -> int:
        """GPUs per domain; g in the formulas."""
        return self.hosts_per_domain * self.gpus_per_node

    @property
    def line_rate(self) -> float:
        """GB/s that leave one domain, one direction; B in the formulas."""
        return self.rails * self.rate_gbps / 8 * self.hosts_per_domain

    @property
    def rate_per_gpu(self) -> float:
        """GB/s of the rails nearest to one GPU; a GPU without its own rail shares one. b in the formulas."""
        return self.rate_gbps / 8 * max(1.0, self.rails / self.gpus_per_node)

    @property
    def nvls(self) -> float | None:
        """Busbw of in-switch reductions in one domain; None where the GPU has none."""
        return NVLS.get(self.gpu) if self.nvlink_gbps > 0 else None

    @property
    def reduces_in_nvswitch(self) -> bool:
        """Whether an NVSwitch that can reduce joins the GPUs, enough of them that this is the fastest."""
        return self.nvls is not None and self.gpus_per_domain >= BOARD_GPUS

    @property
    def domain_cap(self) -> float | None:
        """Limit above which no number from one domain is credible; None if NVLink is not known."""
        if self.nvls is not None:
            return IN_SWITCH * self.nvlink_gbps
        return self.nvlink_gbps or None

    @property
    def domain_value(self) -> float | None:
        """Busbw that a domain's NVLink gives to a tree, NVLS or SHARP reduction inside it."""
        if self.nvls is not None:
            return self.nvls
        return RING_SHARE * self.nvlink_gbps if self.nvlink_gbps else None
