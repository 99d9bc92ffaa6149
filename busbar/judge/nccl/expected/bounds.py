"""Expected busbw, floor and ceiling of one collective on given hardware, with the reasoning in words.

docs/nccl.md describes both. There is no expectation where neither a formula nor a measurement fits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple

from pydantic import Field

from busbar.judge.nccl.expected.profiles import read_yaml
from busbar.judge.nccl.expected.system import NVLINK, RING_SHARE, System
from busbar.judge.nccl.units import gbps
from busbar.models import StrictModel
from busbar.text import counted

# allowance for two printed decimals and the clock: a ring on N >= 3 cannot exceed line rate by more
SLACK = 1.02
# fraction of its bound that a tree reaches between two domains: 78.3 of 93.8 GB/s
TREE_SHARE = 0.83
# a ring loses about 15 % from 2 to 46 nodes: 0.9 B is the floor of two, 0.75 B that of more
LARGE_RING_SHARE = 0.75 / 0.9
# plain Tree on three or more nodes: 191 to 193 of 400 GB/s
TREE_SHARE_OF_MANY = 0.48


class Formula(NamedTuple):
    """Bandwidths in GB/s; `expected` is None if no formula fits. `why`: the reasoning, for users."""

    expected: float | None
    ceiling: float | None
    why: str


def formula(system: System, collective: str, algorithm: str) -> Formula:
    """The bandwidths of COLLECTIVE on SYSTEM. `algorithm` only matters for all_reduce."""
    if system.ranks < 2:
        return Formula(None, None, "one rank: nothing is exchanged")
    if system.domains == 1:
        return _one_domain(system, collective, algorithm)
    found = _between_domains(system, collective, algorithm)
    # a switch does not raise these two: a GPU receives at most the rate of its NVLink and its rails
    gathers = collective in ("all_gather", "reduce_scatter")
    cap = system.nvlink_gbps + system.rate_per_gpu if gathers else system.domain_cap
    expected, ceiling = found.expected, found.ceiling
    if system.domain_cap is None or cap is None or expected is None or ceiling is None or ceiling <= cap:
        return found
    if system.line_rate >= system.nvlink_gbps:
        # the fabric carries more than NVLink: the ring inside a domain is the limit
        expected = min(expected, RING_SHARE * system.nvlink_gbps)
    return Formula(min(expected, cap), cap, f"{found.why}; ceiling is {gbps(cap)} inside a domain")


def ring(system: System) -> float:
    """Busbw of a ring over all domains."""
    return system.line_rate * (1.0 if system.domains == 2 else LARGE_RING_SHARE)


def tree_of_two(system: System) -> float:
    """Busbw of a tree between two domains: above line rate, limited by NVLink inside."""
    most = TREE_SHARE * _once(system)
    return most if system.domain_value is None else min(most, system.domain_value)


def _once(system: System) -> float:
    return 2 * system.line_rate * (system.ranks - 1) / system.ranks


def _one_domain(system: System, collective: str, algorithm: str) -> Formula:
    link = system.nvlink_gbps
    if link <= 0:
        of = f" ({system.gpu})" if system.gpu else ""
        return Formula(None, None, f"one node, and how fast NVLink joins its GPUs{of} is not known")
    if collective in ("gather", "scatter", "hypercube"):
        return Formula(None, link, f"{collective}: no formula for its bound is known")
    why = f"one NVLink domain: a ring reaches {RING_SHARE:g} of {gbps(link)} per GPU"
    if collective != "all_reduce":
        return Formula(RING_SHARE * link, link, why)
    ceiling = max(link, system.domain_cap or link)
    if algorithm == "nvls" and system.nvls is not None:
        best = f"one NVLink domain with NVLS: {gbps(system.nvls)} is the best published"
        return Formula(system.nvls, ceiling, best)
    return Formula(RING_SHARE * link, ceiling, why)


def _between_domains(system: System, collective: str, algorithm: str) -> Formula:
    """The bandwidths over the rails, whatever NVLink carries inside a domain."""
    rate, n, domains, g = system.line_rate, system.ranks, system.domains, system.gpus_per_domain
    if collective == "all_reduce":
        return _all_reduce(system, algorithm)
    if collective in ("all_gather", "reduce_scatter"):
        best = rate * (n - 1) / n * domains / (domains - 1)
        why = f"ring: busbw <= B; at best B(n-1)/n x N/(N-1) = {gbps(best)}"
        return Formula(LARGE_RING_SHARE * rate, max(best, SLACK * rate), why)
    if collective in ("broadcast", "reduce"):
        return Formula(ring(system), SLACK * rate, f"{collective}: each border carries S once")
    if collective == "sendrecv":
        bound, why = system.rate_per_gpu, "sendrecv: one GPU's rails, b"
    elif collective in ("alltoall", "alltoallv"):
        bound, why = rate / g * (n - 1) / (n - g), f"{collective}: B(n-1)/(g(n-g))"
    else:
        return Formula(None, None, f"{collective}: no formula for its bound is known")
    return Formula(LARGE_RING_SHARE * bound, SLACK * bound, f"{why} = {gbps(bound)}")


def _all_reduce(system: System, algorithm: str) -> Formula:
    rate, once = system.line_rate, _once(system)
    if algorithm == "sharp":
        why = f"SHARP: S out and S in at any N: 2B(n-1)/n = {gbps(once)}"
        return Formula(tree_of_two(system), once, why)
    if system.domains == 2:
        two = f"two nodes: a tree sends S once and may reach 2B(n-1)/n = {gbps(once)}, above line rate"
        if algorithm in ("tree", "nvls"):
            return Formula(tree_of_two(system), once, two)
        # NCCL may choose Ring on its own, so a ring's value must be accepted
        return Formula(min(ring(system), once), once, f"ring: busbw <= B; {two}")
    if algorithm == "tree":
        why = f"plain Tree on {system.domains} nodes was seen at {TREE_SHARE_OF_MANY:g} B only"
        return Formula(TREE_SHARE_OF_MANY * rate, SLACK * rate, why)
    why = f"{system.domains} nodes: a ring loses up to 15 %; above B is not credible"
    return Formula(ring(system), SLACK * rate, why)


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


class PublishedResult(StrictModel):
    """One published busbw in GB/s. `nodes`: number of NVLink domains. `gpus`: number of GPUs in one."""

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
    tuned: bool = Field(default=True, description="False: nobody made it fast")
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


CLASSES = (2, 3, 9)  # the fewest domains of the size classes 1, 2 and 3; one domain is class 0


def size_class(domains: int) -> int:
    """The size class: 0, 1, 2, 3 for one domain, two, three to eight, and more."""
    return sum(domains >= fewest for fewest in CLASSES)


@cache
def _of(gpu: str, collective: str) -> tuple[tuple[PublishedResult, System, str], ...]:
    board = SAME_BOARD.get(gpu, gpu)
    return tuple(
        (r, system := r.system(), chosen(system, collective, r.algorithm))
        for r in published_results()
        if r.collective == collective and SAME_BOARD.get(r.gpu, r.gpu) == board
    )


def chosen(system: System, collective: str, algorithm: str) -> str:
    """ALGORITHM, or NCCL's choice: NVLS or its trees in one or two domains whose NVSwitch reduces.

    GPUs whose NVSwitch cannot reduce use a ring, whatever was asked for.
    """
    if algorithm == "nvls" and system.nvls is None:
        return "ring"
    default = algorithm == "auto" and collective == "all_reduce" and system.reduces_in_nvswitch
    return "nvls" if default and system.domains <= 2 else algorithm


def comparable(system: System, collective: str, algorithm: str) -> tuple[list[PublishedResult], bool]:
    """The results of the same board, algorithm and collective, and whether they have the same rails too:
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
        own = system.gpus_per_domain
        # a rack need not be full
        return [r for r, _ in found if r.gpus == own or min(r.gpus, own) > 8], True
    if system.nodes_per_domain > 1:
        # with several racks, NVLink and the rails of one host count, not the number of hosts in a rack
        same = [r for r, _ in found if r.gpus > 16 and r.rails == system.rails]
        return same, bool(same)
    hosts = [(r, measured) for r, measured in found if measured.nodes_per_domain == 1]
    same = [r for r, m in hosts if (m.rails, m.rate_gbps) == (system.rails, system.rate_gbps)]
    other = [r for r, m in hosts if m.line_rate == system.line_rate]
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
    gpu = SAME_BOARD.get(system.gpu, system.gpu)
    key = {"gpu": gpu, "hosts": system.nodes, "collective": collective}
    entries = read_yaml("busbar.judge.nccl.expected", "curves.yaml")
    curves: list[dict[int, float]] = [e["busbw"] for e in entries if {k: e[k] for k in key} == key]
    found: dict[int, Rise] = {}
    for size in {size for curve in curves for size in curve} if len(curves) >= CURVES_OF_A_CLASS else ():
        here = [curve for curve in curves if size in curve]
        if len(here) >= CURVES_OF_A_SIZE:
            of_next = (curve[size] / curve[2 * size] for curve in here if 2 * size in curve)
            of_plateau = min(curve[size] / curve[max(curve)] for curve in here)
            found[size * MIB] = Rise(of_plateau, min(of_next, default=0.0))
    return found


GIB = 2**30
STANDARD_TOLERANCE = 0.1
# measurements within this part of the computed value confirm it
AGREEMENT = 0.1
# the lowest fraction of the best published busbw that a healthy system of the same kind reached: 291 of 390
# GB/s (B200, ring, 46 hosts). It bounds `low` where the evidence is one source, or has other rails.
UNTUNED = 0.75

# how close a public result is: same board and rails, same board and line rate
Evidence = Literal["same system", "same class", "none"]

NO_SYSTEM = "no system like this is in the table of public results"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bandwidths in GB/s; None if unknown. `plateau_bytes`: smaller messages do not reach them.

    Where there is an expectation, 0 < low <= floor <= expected <= ceiling, and floor < expected for a
    tolerance above 0. Below `floor` a system may be healthy but not tuned. `healthy`: the lowest public one.
    """

    expected: float | None
    floor: float | None
    ceiling: float | None
    plateau_bytes: int
    reasoning: tuple[str, ...]
    low: float | None = None
    healthy: float | None = None
    evidence: Evidence = "none"
    basis: str = ""  # all that the expected value rests on, if that is one published run or a formula


def bounds(system: System, collective: str, algorithm: str, tolerance: float = STANDARD_TOLERANCE) -> Bounds:
    """Bounds for COLLECTIVE at a message large enough to reach the plateau."""
    plateau = GIB
    if system.domains == 1:
        plateau = 128 * 2**20 if collective == "all_reduce" else 512 * 2**20
    said: tuple[str, ...] = ()
    if system.domains > 1:
        if system.line_rate <= 0:
            why = "rails or rate are not given: line rate and expected bandwidth are not known"
            return Bounds(None, None, None, plateau, (why,))
        hosts = f" x {system.hosts_per_domain} hosts" if system.hosts_per_domain > 1 else ""
        rate = f"{system.rails} rails x {system.rate_gbps:g} Gb/s / 8{hosts} = {gbps(system.line_rate)}"
        said = (f"B = {rate} per direction; N = {system.domains}, n = {system.ranks}",)
    used = chosen(system, collective, algorithm)
    if used == "ring" != algorithm:
        said = (*said, "the NVSwitch of these GPUs has no NVLS")
    elif used != algorithm:
        said = (*said, "NCCL's default on this NVSwitch is NVLS")
    found = formula(system, collective, used)
    told = _told(system, collective, used)
    said = (*said, found.why, *told.notes)
    if told.expected is None or told.low is None or told.expected <= 0:
        return Bounds(None, None, found.ceiling, plateau, said)
    reached = [_told(each, collective, used).expected for each in _smaller(system, collective, used)]
    expected = min(value for value in (told.expected, found.ceiling, *reached) if value)
    healthy = min(told.low, expected)
    low = (1 - tolerance) * (min(healthy, UNTUNED * expected) if told.is_thin else healthy)
    floor = (1 - tolerance) * expected
    said = (*said, f"expected {gbps(expected)}, floor {1 - tolerance:g} x = {gbps(floor)}")
    if low < floor:
        said = (*said, f"a healthy system that nobody tuned may reach less, down to {gbps(low)}")
    if found.ceiling is not None:
        said = (*said, f"ceiling {gbps(found.ceiling)}: above it the number is not credible")
    return Bounds(expected, floor, found.ceiling, plateau, said, low, healthy, told.evidence, told.basis)


def _smaller(system: System, collective: str, algorithm: str) -> list[System]:
    """The smaller systems of the same kind, from two domains on, at which the expectation may change."""
    known, _ = comparable(system, collective, algorithm)
    steps = {*CLASSES, *(r.nodes + more for r in known for more in (0, 1))}
    return [replace(system, nodes=n * system.nodes_per_domain) for n in steps if 2 <= n < system.domains]


class _Told(NamedTuple):
    """GB/s of one system from formula and public results; `low`: the least of a healthy one.

    `is_thin`: the results are few, or none is of this very system.
    """

    low: float | None
    expected: float | None
    evidence: Evidence
    notes: tuple[str, ...]
    is_thin: bool = True
    basis: str = ""


@cache
def _told(system: System, collective: str, algorithm: str) -> _Told:
    computed = formula(system, collective, algorithm).expected
    if system.ranks < 2:
        return _Told(None, None, "none", ())
    known, is_same = comparable(system, collective, algorithm)
    own = size_class(system.domains)
    is_sendrecv = collective == "sendrecv" and system.domains > 1
    if is_sendrecv:  # falls to a third as systems grow, and not everywhere at the same size
        known = [r for r in known if size_class(r.nodes) == own]
    around_it = around(known, system.domains)
    tuned = [r for r in around_it if r.tuned]
    racks = system.domains > 1 and system.hosts_per_domain > 1
    sources = {r.source for r in known}
    if not tuned or (is_sendrecv and len(sources) < 2):
        # rails of a whole rack carry more than any collective has been seen to use: only measurements count
        if racks or is_sendrecv or computed is None:
            return _Told(None, None, "none", () if computed is None and not racks else (NO_SYSTEM,))
        above = [r.busbw for r in known if r.tuned and r.nodes > system.domains]
        low, most = min((computed, *(r.busbw for r in around_it))), max((computed, *above))
        said = (f"{NO_SYSTEM}: computed only",)
        return _Told(low, most, "none", said, basis="computed, no such system is published")
    evidence: Evidence = "same system" if is_same else "same class"
    lowest = min(r.busbw for r in around_it)
    if computed is not None and all(abs(r.busbw - computed) <= AGREEMENT * computed for r in tuned):
        confirmed = f"confirmed by {tuned[0]}: {evidence}"
        low = computed if lowest >= (1 - AGREEMENT) * computed else lowest
        return _Told(low, computed, evidence, (confirmed,), not is_same or len(sources) < 2)
    # the best result of systems of at least this size, else of the largest smaller one
    least = min(system.domains, max(r.nodes for r in tuned))
    best = max((r for r in tuned if r.nodes >= least), key=lambda r: r.busbw)
    expected, low = best.busbw, lowest
    if racks:  # which need not be full
        most = tree_of_two(system) if system.domains == 2 else ring(system)
        expected, low = min(expected, most), min(low, most)
    elif computed is not None and own not in {size_class(r.nodes) for r in around_it}:
        low = min(low, computed)
    is_thin = not is_same or len({r.source for r in around_it}) < 2
    basis = "one published run" if len(around_it) == 1 else ""
    return _Told(low, expected, evidence, (f"expected from {best}: {evidence}",), is_thin, basis)
