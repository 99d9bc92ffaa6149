"""Expected busbw, floor and ceiling of one collective on given hardware, with the reasoning in words.

The formulas (formulas.py) give the value; public measurements of the same kind of system may correct it:
- a healthy one below the computed floor lowers it, but a single one not by more than a third: a result
  further away than that, which no other source confirms, is not used;
- where the only result is an outlier, neither it nor the formula is trusted;
- NCCL's own choice between two domains is a ring's value, unless a healthy result shows that it chooses a
  tree on such a system: then the tree's.
Where neither formula nor measurement fits there is no expectation.
"""

from __future__ import annotations

from dataclasses import dataclass

from busbar.nccl.expected.formulas import formula, tree_of_two
from busbar.nccl.expected.published import PublishedResult, comparable
from busbar.nccl.expected.system import System
from busbar.nccl.units import gbps

GIB = 2**30
STANDARD_TOLERANCE = 0.1
# one public result alone may lower the computed value to this part of it
LONE_RESULT_SHARE = 2 / 3
# two results confirm each other within this part
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
    found = formula(system, collective, algorithm)
    said = (*said, found.why)
    expected, note = _corrected(system, collective, algorithm, found.expected)
    said = (*said, note) if note else said
    if expected is None or expected <= 0:
        return Bounds(None, None, found.ceiling, plateau, said)
    if found.ceiling is not None:
        expected = min(expected, found.ceiling)
    floor = (1 - tolerance) * expected
    said = (*said, f"expected {gbps(expected)}, floor {1 - tolerance:g} x = {gbps(floor)}")
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
) -> tuple[float | None, str]:
    """The expected value and what public results say about it."""
    results = sorted(comparable(system, collective, algorithm), key=lambda r: r.busbw)
    if system.domains > 1 and system.hosts_per_domain > 1 and collective not in ("sendrecv", "alltoall"):
        # rails of a whole rack carry more than any collective was seen to use: only measurements tell
        if not results:
            return None, f"{collective} over several racks: no public result is known"
        return results[0].busbw, f"over racks only measurements tell: {_named(results[0])}"
    odd = comparable(system, collective, algorithm, "outlier")
    if computed is not None and odd and not results:
        return (
            None,
            f"the formula gives {gbps(computed)}, the only public result is {_named(odd[0])}: not known",
        )
    if computed is None or not results:
        return computed, ""
    if algorithm == "auto" and collective == "all_reduce" and system.domains == 2:
        tree = tree_of_two(system)
        fabric = (system.rails, system.rate_gbps)
        chosen = [r for r in results if r.algorithm == "auto" and (r.rails, r.rate_gbps) == fabric]
        if tree > computed and chosen and all((1 - STANDARD_TOLERANCE) * tree <= r.busbw for r in chosen):
            return tree, f"NCCL chooses a tree on such a system, as shown by {_named(chosen[0])}"
    for index, result in enumerate(results):
        if (1 - STANDARD_TOLERANCE) * computed <= result.busbw:
            return computed, f"public result of this kind: {_named(result)}; within the computed floor"
        if result.busbw >= LONE_RESULT_SHARE * computed or _confirmed(result, results[index + 1 :]):
            return result.busbw, f"the computed {gbps(computed)} is above the public {_named(result)}"
    return computed, f"not used, no other source confirms it: {_named(results[-1])}"


def _confirmed(result: PublishedResult, others: list[PublishedResult]) -> bool:
    """Whether another source measured nearly the same."""
    return any(
        other.source != result.source and other.busbw * (1 - AGREEMENT) <= result.busbw for other in others
    )


def _named(result: PublishedResult) -> str:
    return f"{gbps(result.busbw)} on {result.nodes} nodes ({result.source}, {result.date})"
