"""Expected busbw, floor and ceiling of one collective on given hardware, with the reasoning in words.

S is the message, n the ranks, N the NVLink domains, B the line rate of a domain, b that of a GPU.
- ring, N >= 2: each border carries 2S(n-1)/n, so busbw <= B.
- tree or NVLS tree, N = 2: each domain sends S once, so busbw may reach 2B(n-1)/n, above line rate.
- tree, N >= 3: inner domains send 2S: busbw <= B(n-1)/n; plain Tree was seen at 0.48 B.
- SHARP: each domain sends and receives S at any N: 2B(n-1)/n, limited by what NVLink gives inside.
- all_gather, reduce_scatter: ring B; best case B(n-1)/n x N/(N-1).
- sendrecv: one GPU's rails, b. alltoall: b(n-1)/(n-g).
"""

from __future__ import annotations

from dataclasses import dataclass

from busbar.nccl.expected.published import PublishedResult, lowest
from busbar.nccl.expected.system import RING_SHARE, System
from busbar.nccl.units import gbps

GIB = 2**30
REDUCING = ("all_reduce",)
RINGED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
STANDARD_TOLERANCE = 0.1
# rounding of two printed decimals, clock granularity: a ring on N >= 3 cannot exceed line rate by more
SLACK = 1.02


@dataclass(frozen=True, slots=True)
class Bounds:
    """GB/s; None where it cannot be said. `plateau_bytes`: smaller messages do not reach it."""

    expected: float | None
    floor: float | None
    ceiling: float | None
    plateau_bytes: int
    reasoning: tuple[str, ...]


def bounds(system: System, collective: str, algorithm: str, tolerance: float = STANDARD_TOLERANCE) -> Bounds:
    """Bounds for COLLECTIVE at a message large enough to reach the plateau."""
    if system.domains == 1:
        return _finish(
            system, collective, algorithm, tolerance, *_one_domain(system, algorithm), plateau=128 * 2**20
        )
    if system.line_rate <= 0:
        why = "rails or rate are not given: line rate and expected bandwidth are not known"
        return Bounds(None, None, None, GIB, (why,))
    said = [
        f"B = {system.rails} rails x {system.rate_gbps:g} Gb/s / 8"
        + (f" x {system.hosts_per_domain} hosts" if system.hosts_per_domain > 1 else "")
        + f" = {gbps(system.line_rate)} per direction; N = {system.domains}, n = {system.ranks}"
    ]
    if collective == "all_reduce":
        formula = _all_reduce(system, algorithm)
    elif collective in ("all_gather", "reduce_scatter"):
        formula = _gathering(system)
    elif collective in ("broadcast", "reduce"):
        formula = (
            _ring_share(system) * system.line_rate,
            SLACK * system.line_rate,
            f"{collective}: each border carries S once",
        )
    elif collective in ("alltoall", "alltoallv", "sendrecv"):
        formula = _pairwise(system, collective)
    else:
        why = f"{collective}: no formula for its bound is known"
        return Bounds(None, None, None, GIB, (*said, why))
    expected, ceiling, why = formula
    cap = system.domain_cap
    if cap is not None and ceiling > cap:
        ceiling = cap
        why += f"; ceiling is NVLink's {gbps(cap)}"
    return _finish(system, collective, algorithm, tolerance, expected, ceiling, (*said, why), plateau=GIB)


def _finish(
    system: System, collective: str, algorithm: str, tolerance: float,
    expected: float | None, ceiling: float | None, said: tuple[str, ...], *, plateau: int,
) -> Bounds:  # fmt: skip
    if expected is None:
        return Bounds(None, None, ceiling, plateau, said)
    published = lowest(system, collective, algorithm)
    if published is not None:
        expected, note = _against(expected, published)
        said = (*said, note)
    floor = (1 - tolerance) * expected
    said = (*said, f"expected {gbps(expected)}, floor {1 - tolerance:g} x = {gbps(floor)}")
    if ceiling is not None:
        said = (*said, f"ceiling {gbps(ceiling)}: above it the number is not credible")
    return Bounds(expected, floor, ceiling, plateau, said)


def _against(expected: float, published: PublishedResult) -> tuple[float, str]:
    seen = f"{gbps(published.busbw)} on {published.nodes} nodes ({published.source})"
    if (1 - STANDARD_TOLERANCE) * expected <= published.busbw:
        return expected, f"lowest public figure of this kind: {seen}; within the computed floor"
    return (
        published.busbw,
        f"the computed {gbps(expected)} is above the lowest public figure of this kind, {seen}",
    )


def _one_domain(system: System, algorithm: str) -> tuple[float | None, float | None, tuple[str, ...]]:
    cap = system.domain_cap
    if cap is None:
        why = f"one node, and the NVLink rate of {system.gpu or 'this GPU'} is not known"
        return None, None, (why,)
    if algorithm == "nvls" and system.nvls is not None:
        return system.nvls, cap, (f"one NVLink domain with NVLS: {gbps(system.nvls)} is the best published",)
    expected = RING_SHARE * system.nvlink_gbps
    why = f"one NVLink domain: a ring reaches {RING_SHARE:g} of {gbps(system.nvlink_gbps)} per GPU"
    return expected, cap, (why,)


def _ring_share(system: System) -> float:
    # a ring loses about 15 % from 2 to 46 nodes: 0.9 B is the floor of two, 0.75 B that of more
    return 1.0 if system.domains == 2 else 0.75 / (1 - STANDARD_TOLERANCE)


def _all_reduce(system: System, algorithm: str) -> tuple[float, float, str]:
    rate, n = system.line_rate, system.ranks
    once = 2 * rate * (n - 1) / n
    inside = system.domain_value
    limited = once if inside is None else min(0.83 * once, inside)
    if algorithm == "sharp":
        return min(0.83 * once, limited), once, f"SHARP: S out and S in at any N: 2B(n-1)/n = {gbps(once)}"
    if system.domains == 2:
        two = f"two nodes: a tree sends S once and may reach 2B(n-1)/n = {gbps(once)}, above line rate"
        if algorithm in ("tree", "nvls"):
            return min(0.83 * once, limited), once, two
        # NCCL may choose Ring on its own, so a ring's value must be accepted
        return _ring_share(system) * rate, once, f"ring: busbw <= B; {two}"
    if algorithm == "tree":
        return 0.48 * rate, SLACK * rate, f"plain Tree on {system.domains} nodes was seen at 0.48 B only"
    return (
        _ring_share(system) * rate,
        SLACK * rate,
        f"{system.domains} nodes: a ring loses up to 15 %; above B is not credible",
    )


def _gathering(system: System) -> tuple[float, float, str]:
    rate, n, domains = system.line_rate, system.ranks, system.domains
    best = rate * (n - 1) / n * domains / (domains - 1)
    return (
        _ring_share(system) * rate,
        max(best, SLACK * rate),
        f"ring: busbw <= B; at best B(n-1)/n x N/(N-1) = {gbps(best)}",
    )


def _pairwise(system: System, collective: str) -> tuple[float, float, str]:
    b, n, g = system.rate_per_gpu, system.ranks, system.gpus_per_domain
    if collective == "sendrecv":
        bound, why = b, f"sendrecv: one GPU's rails, b = {gbps(b)}"
    else:
        bound = b * (n - 1) / (n - g)
        why = f"{collective}: b(n-1)/(n-g) = {gbps(bound)}"
    return 0.75 / (1 - STANDARD_TOLERANCE) * bound, SLACK * bound, why
