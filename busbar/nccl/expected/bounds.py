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

from busbar.nccl.expected.hardware import RING_SHARE, Hardware
from busbar.nccl.expected.references import Reference, lowest
from busbar.nccl.units import gbps

GIB = 2**30
REDUCING = ("all_reduce",)
RINGED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
STANDARD_TOLERANCE = 0.1
# rounding of two printed decimals, clock granularity: a ring on N >= 3 cannot beat its wire by more
SLACK = 1.02


@dataclass(frozen=True, slots=True)
class Bounds:
    """GB/s; None where it cannot be said. `plateau_bytes`: smaller messages do not show the bandwidth."""

    expected: float | None
    floor: float | None
    ceiling: float | None
    plateau_bytes: int
    reasoning: tuple[str, ...]


def bounds(hw: Hardware, collective: str, algorithm: str, tolerance: float = STANDARD_TOLERANCE) -> Bounds:
    """Bounds for COLLECTIVE at a message that fills the wire."""
    if hw.domains == 1:
        return _finish(hw, collective, algorithm, tolerance, *_one_domain(hw, algorithm), plateau=128 * 2**20)
    if hw.line_rate <= 0:
        why = "no rails or no rate are given: line rate is not known, so nothing can be expected"
        return Bounds(None, None, None, GIB, (why,))
    said = [
        f"B = {hw.rails} rails x {hw.rate_gbps:g} Gb/s / 8"
        + (f" x {hw.hosts_per_domain} hosts" if hw.hosts_per_domain > 1 else "")
        + f" = {gbps(hw.line_rate)} a direction; N = {hw.domains}, n = {hw.ranks}"
    ]
    if collective == "all_reduce":
        found = _all_reduce(hw, algorithm)
    elif collective in ("all_gather", "reduce_scatter"):
        found = _gathering(hw)
    elif collective in ("broadcast", "reduce"):
        found = (
            _ring_share(hw) * hw.line_rate,
            SLACK * hw.line_rate,
            f"{collective}: each border carries S once",
        )
    elif collective in ("alltoall", "alltoallv", "sendrecv"):
        found = _pairwise(hw, collective)
    else:
        why = f"{collective}: no formula for its bound is known here"
        return Bounds(None, None, None, GIB, (*said, why))
    expected, ceiling, why = found
    cap = hw.domain_cap
    if cap is not None and ceiling > cap:
        ceiling = cap
        why += f"; ceiling is NVLink's {gbps(cap)}"
    return _finish(hw, collective, algorithm, tolerance, expected, ceiling, (*said, why), plateau=GIB)


def _finish(
    hw: Hardware, collective: str, algorithm: str, tolerance: float,
    expected: float | None, ceiling: float | None, said: tuple[str, ...], *, plateau: int,
) -> Bounds:  # fmt: skip
    if expected is None:
        return Bounds(None, None, ceiling, plateau, said)
    reference = lowest(hw, collective, algorithm)
    if reference is not None:
        expected, note = _against(expected, reference)
        said = (*said, note)
    floor = (1 - tolerance) * expected
    said = (*said, f"expected {gbps(expected)}, floor {1 - tolerance:g} x = {gbps(floor)}")
    if ceiling is not None:
        said = (*said, f"ceiling {gbps(ceiling)}: above it the number is not credible")
    return Bounds(expected, floor, ceiling, plateau, said)


def _against(expected: float, reference: Reference) -> tuple[float, str]:
    seen = f"{gbps(reference.busbw)} on {reference.nodes} nodes ({reference.source})"
    if (1 - STANDARD_TOLERANCE) * expected <= reference.busbw:
        return expected, f"lowest public figure of this kind: {seen}; within the computed floor"
    return (
        reference.busbw,
        f"the computed {gbps(expected)} is above the lowest public figure of this kind, {seen}",
    )


def _one_domain(hw: Hardware, algorithm: str) -> tuple[float | None, float | None, tuple[str, ...]]:
    cap = hw.domain_cap
    if cap is None:
        return (
            None,
            None,
            (f"one node, and NVLink of {hw.gpu or 'this GPU'} is not known: nothing can be expected",),
        )
    if algorithm == "nvls" and hw.nvls is not None:
        return hw.nvls, cap, (f"one NVLink domain with NVLS: {gbps(hw.nvls)} is the best seen",)
    expected = RING_SHARE * hw.nvlink_gbps
    why = f"one NVLink domain: a ring reaches {RING_SHARE:g} of {gbps(hw.nvlink_gbps)} a GPU"
    return expected, cap, (why,)


def _ring_share(hw: Hardware) -> float:
    # a ring loses about 15 % from 2 to 46 nodes: 0.9 B is the floor of two, 0.75 B that of more
    return 1.0 if hw.domains == 2 else 0.75 / (1 - STANDARD_TOLERANCE)


def _all_reduce(hw: Hardware, algorithm: str) -> tuple[float, float, str]:
    rate, n = hw.line_rate, hw.ranks
    once = 2 * rate * (n - 1) / n
    inside = hw.domain_value
    limited = once if inside is None else min(0.83 * once, inside)
    if algorithm == "sharp":
        return min(0.83 * once, limited), once, f"SHARP: S out and S in at any N: 2B(n-1)/n = {gbps(once)}"
    if hw.domains == 2:
        two = f"two nodes: a tree sends S once and may reach 2B(n-1)/n = {gbps(once)}, above line rate"
        if algorithm in ("tree", "nvls"):
            return min(0.83 * once, limited), once, two
        # NCCL may choose Ring on its own, so a ring's value must be accepted
        return _ring_share(hw) * rate, once, f"ring: busbw <= B; {two}"
    if algorithm == "tree":
        return 0.48 * rate, SLACK * rate, f"plain Tree on {hw.domains} nodes was seen at 0.48 B only"
    return (
        _ring_share(hw) * rate,
        SLACK * rate,
        f"{hw.domains} nodes: a ring loses up to 15 %; above B is not credible",
    )


def _gathering(hw: Hardware) -> tuple[float, float, str]:
    rate, n, domains = hw.line_rate, hw.ranks, hw.domains
    best = rate * (n - 1) / n * domains / (domains - 1)
    return (
        _ring_share(hw) * rate,
        max(best, SLACK * rate),
        f"ring: busbw <= B; at best B(n-1)/n x N/(N-1) = {gbps(best)}",
    )


def _pairwise(hw: Hardware, collective: str) -> tuple[float, float, str]:
    b, n, g = hw.rate_per_gpu, hw.ranks, hw.gpus_per_domain
    if collective == "sendrecv":
        bound, why = b, f"sendrecv: one GPU's rails, b = {gbps(b)}"
    else:
        bound = b * (n - 1) / (n - g)
        why = f"{collective}: b(n-1)/(n-g) = {gbps(bound)}"
    return 0.75 / (1 - STANDARD_TOLERANCE) * bound, SLACK * bound, why
