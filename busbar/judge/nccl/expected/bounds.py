"""Expected busbw, floor and ceiling of one collective on given hardware, with the reasoning in words.

The formulas (formulas.py) give the value; public measurements of the same kind of system correct it where
they differ by more than 10 %: the higher one of its size class is expected, the lower one gives the floor.
Between classes, those of the classes around it (published.around) and the formula do. Where neither formula
nor measurement fits there is no expectation.
"""

from __future__ import annotations

from dataclasses import dataclass

from busbar.judge.nccl.expected.formulas import formula, ring, tree_of_two
from busbar.judge.nccl.expected.published import around, chosen, comparable, size_class
from busbar.judge.nccl.expected.system import System
from busbar.judge.nccl.units import gbps

GIB = 2**30
STANDARD_TOLERANCE = 0.1
# measurements within this part of the computed value confirm it
AGREEMENT = 0.1


@dataclass(frozen=True, slots=True)
class Bounds:
    """GB/s; None where it cannot be said. `plateau_bytes`: smaller messages do not reach it.

    Where there is an expectation, 0 < floor <= expected <= ceiling, and floor < expected for a tolerance
    above 0.
    """

    expected: float | None
    floor: float | None
    ceiling: float | None
    plateau_bytes: int
    reasoning: tuple[str, ...]


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
        said = (_line_rate(system),)
    used = chosen(system, collective, algorithm)
    if used != algorithm:
        said = (*said, "NCCL's default on this NVSwitch is NVLS")
    found = formula(system, collective, used)
    low, expected, notes = _corrected(system, collective, used, found.expected)
    said = (*said, found.why, *notes)
    if expected is None or low is None or expected <= 0:
        return Bounds(None, None, found.ceiling, plateau, said)
    if found.ceiling is not None:
        low, expected = min(low, found.ceiling), min(expected, found.ceiling)
    floor = (1 - tolerance) * low
    said = (*said, f"expected {gbps(expected)}, floor {1 - tolerance:g} x {gbps(low)} = {gbps(floor)}")
    if found.ceiling is not None:
        said = (*said, f"ceiling {gbps(found.ceiling)}: above it the number is not credible")
    return Bounds(expected, floor, found.ceiling, plateau, said)


def _line_rate(system: System) -> str:
    hosts = f" x {system.hosts_per_domain} hosts" if system.hosts_per_domain > 1 else ""
    return (
        f"B = {system.rails} rails x {system.rate_gbps:g} Gb/s / 8{hosts} = {gbps(system.line_rate)} per "
        f"direction; N = {system.domains}, n = {system.ranks}"
    )


def _corrected(
    system: System, collective: str, algorithm: str, computed: float | None
) -> tuple[float | None, float | None, tuple[str, ...]]:
    """The value that gives the floor, the expected one, and which public results they follow from."""
    results = around(comparable(system, collective, algorithm), system.domains)
    if collective in ("sendrecv", "alltoall"):  # fall to a third inside a class
        results = [r for r in results if r.nodes == system.domains] or results
    # rails of a whole rack carry more than any collective was seen to use: only measurements tell
    racks = system.domains > 1 and system.hosts_per_domain > 1
    if racks and not results and collective not in ("sendrecv", "alltoall"):
        return None, None, (f"{collective} over several racks: no public result is known",)
    if computed is not None and all(abs(r.busbw - computed) <= AGREEMENT * computed for r in results):
        return computed, computed, tuple(f"confirmed by {r}" for r in results[:1])
    if not results:
        return None, None, ()
    lowest, highest = (choose(results, key=lambda r: r.busbw) for choose in (min, max))
    low, high = lowest.busbw, highest.busbw
    notes: tuple[str, ...] = (f"floor from {lowest}", f"expected from {highest}")
    if racks:  # which need not be full
        most = tree_of_two(system) if system.domains == 2 else ring(system)
        return min(low, most), min(high, most), notes
    # a ring that was asked for tells nothing about NCCL's own choice
    own = [r for r in results if algorithm == "ring" or r.algorithm != "ring" or system.domains == 1]
    if computed is not None and size_class(system.domains) not in {size_class(r.nodes) for r in own}:
        notes = (*notes, f"none of this size class and algorithm: the computed {gbps(computed)} counts too")
        return min(low, computed), max(high, computed), notes
    return low, high, notes
