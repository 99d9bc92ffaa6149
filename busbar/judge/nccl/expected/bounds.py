"""Expected busbw, floor and ceiling of one collective on given hardware, with the reasoning in words.

The formulas (formulas.py) give the value; public measurements of the same kind of system (published.py)
replace it where one of them differs by more than 10 %. From two NVLink domains on, the value of a larger
system is also expected of a smaller one, and the expectation never rises with more domains. The floor is
(1 - tolerance) of the expected value. A healthy system without tuning may lie below it, so there is no
verdict from the floor down to `low`, below which no healthy system of its kind is known. There is no
expectation where neither formula nor measurement fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from busbar.judge.nccl.expected.formulas import formula, ring, tree_of_two
from busbar.judge.nccl.expected.published import (
    CLASSES,
    PublishedResult,
    around,
    chosen,
    comparable,
    size_class,
)
from busbar.judge.nccl.expected.system import System
from busbar.judge.nccl.units import gbps

GIB = 2**30
STANDARD_TOLERANCE = 0.1
# measurements within this part of the computed value confirm it
AGREEMENT = 0.1
# the lowest fraction of the best published busbw that a healthy system of the same kind reached: 291 of 390
# GB/s (B200, ring, 46 hosts). It bounds `low` where the evidence is one source, or has other rails.
UNTUNED = 0.75

Evidence = Literal["same system", "same class", "none"]
"""Closeness of a public result: same board and rails, same board and line rate, or none."""

NO_SYSTEM = "no system like this is in the table of public results"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bandwidths in GB/s; None if unknown. `plateau_bytes`: smaller messages do not reach them.

    Where there is an expectation, 0 < low <= floor <= expected <= ceiling, and floor < expected for a
    tolerance above 0. Between `low` and `floor` a system may be healthy but not tuned. `healthy`: the lowest
    public result of its kind.
    """

    expected: float | None
    floor: float | None
    ceiling: float | None
    plateau_bytes: int
    reasoning: tuple[str, ...]
    low: float | None = None
    healthy: float | None = None
    evidence: Evidence = "none"
    basis: str = ""
    """The only basis of the expected value, if it is one published run or a formula; else empty."""


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


def _line_rate(system: System) -> str:
    hosts = f" x {system.hosts_per_domain} hosts" if system.hosts_per_domain > 1 else ""
    return (
        f"B = {system.rails} rails x {system.rate_gbps:g} Gb/s / 8{hosts} = {gbps(system.line_rate)} per "
        f"direction; N = {system.domains}, n = {system.ranks}"
    )


def _smaller(system: System, collective: str, algorithm: str) -> list[System]:
    """The smaller systems of the same kind, from two domains on, at which the expectation may change."""
    known, _ = comparable(system, collective, algorithm)
    steps = {*CLASSES, *(r.nodes + more for r in known for more in (0, 1))}
    return [replace(system, nodes=n * system.nodes_per_domain) for n in steps if 2 <= n < system.domains]


@dataclass(frozen=True, slots=True)
class _Told:
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
    best = _best(tuned, system)
    expected, low = best.busbw, lowest
    if racks:  # which need not be full
        most = tree_of_two(system) if system.domains == 2 else ring(system)
        expected, low = min(expected, most), min(low, most)
    elif computed is not None and own not in {size_class(r.nodes) for r in around_it}:
        low = min(low, computed)
    is_thin = not is_same or len({r.source for r in around_it}) < 2
    basis = "one published run" if len(around_it) == 1 else ""
    return _Told(low, expected, evidence, (f"expected from {best}: {evidence}",), is_thin, basis)


def _best(known: Sequence[PublishedResult], system: System) -> PublishedResult:
    """The best result of systems of at least this size, else of the largest smaller one."""
    largest = max(r.nodes for r in known)
    fitting = [r for r in known if r.nodes >= min(system.domains, largest)]
    return max(fitting, key=lambda r: r.busbw)
