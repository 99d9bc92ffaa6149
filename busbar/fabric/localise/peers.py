"""Which nodes and rails are slower than their peers, from repeated runs.

A part that is 10 % slow lies on the limit of `GOOD`, where one run is a matter of luck. Here its runs are
compared with runs in which it had no part: it is slow where their median is below 0.95 of the others', and
their ranks are lower than chance makes them. Ranks assume no shape of the noise, and weigh how few peers are.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from busbar.fabric.localise.groups import PAIRS, Group, Kind, Known, Stage

Part = TypeVar("Part", bound=Hashable)

# A part that is so slow shall be found, and one below the middle between it and its peers is slow.
SOUGHT, SLOW = 0.9, 0.95
# The ranks of fewer runs cannot differ enough. If the spread needs more runs, no part is judged.
FEWEST_RUNS, MOST_RUNS = 7, 28
# Fewer runs do not tell that the spread is too wide for any part to be judged.
FEWEST_FOR_SPREAD = 2 * FEWEST_RUNS
# GB/s. Results are printed in steps of 0.01.
LEAST_BUSBW = 1.0
RUNS_PER_RAIL = 2
# Number of the lowest parts that are compared one by one with the others.
COMPARED = 32


class Evidence(NamedTuple):
    """Limits of a comparison. `chance`: a healthy part is at most this many standard errors lower by chance.
    `missed`: a slow part may seem this many standard errors faster. `healthy`: the share of all parts that
    certainly reaches what healthy ones do.
    """

    chance: float
    missed: float
    healthy: float


# One of 4,000 healthy nodes reaches `chance`, and one of 200 slow nodes does not run again. A node whose
# rails are compared is slow itself, so that less evidence is needed. Slow nodes spoil the runs of others too.
OF_NODES, OF_RAILS = Evidence(3.5, 2.6, 0.25), Evidence(2.6, 1.6, 0.5)
# Stage A does not name nodes. It only selects the nodes that run again.
OF_FIRST_RUNS = OF_NODES._replace(chance=math.inf)


@dataclass(frozen=True, slots=True)
class Peers(Generic[Part]):
    """The result of a comparison. `slow`: slow part -> its runs, and the median of its peers in GB/s.
    `unclear`: part -> the number of further runs that will decide, 0 if none can. `level`: any other part ->
    the median of its runs relative to its peers'. `spread`: relative spread of one run, 0 if it is not known.
    """

    slow: dict[Part, tuple[tuple[Group, ...], float]]
    unclear: dict[Part, int]
    level: dict[Part, float]
    spread: float


def nodes_by_peers(known: Known, stage: Stage) -> Peers[str]:
    """The nodes, by their pairs of a stage. Those of stage A only say which of them shall run again."""
    pairs = {group: group.nodes for group in known.results if group.kind in PAIRS and group.stage == stage}
    return _compare(known.results, pairs, OF_FIRST_RUNS if stage == "A" else OF_NODES)


def rails_by_peers(known: Known) -> dict[str, Peers[int]]:
    """The rails of each node of stage C, by its other ones. Their partners are healthy."""
    runs: dict[tuple[str, int], list[Group]] = {}
    for group in known.results:
        if group.rail is not None:
            runs.setdefault((group.nodes[0], group.rail), []).append(group)
    of_nodes: dict[str, dict[Group, tuple[int, ...]]] = {}
    for (node, rail), groups in runs.items():
        # Its first runs were low by choice, where it has run again.
        counted = groups[RUNS_PER_RAIL:] or groups
        of_nodes.setdefault(node, {}).update(dict.fromkeys(counted, (rail,)))
    return {node: _compare(known.results, of_node, OF_RAILS) for node, of_node in of_nodes.items()}


def rails_of_all(known: Known) -> tuple[Peers[tuple[str, int]], Peers[tuple[str, int]]]:
    """Every rail of every node, by all other ones. The first runs of `plan_rails` only say which run again.

    Two nodes alone cannot be told apart: the first one stands for both.
    """
    groups = [group for group in known.results if group.rail is not None]
    nodes = sorted({node for group in groups for node in group.nodes})
    told = {*nodes[:1]} if len(nodes) == 2 else {*nodes}
    parts = {g: tuple((node, g.rail or 0) for node in g.nodes if node in told) for g in groups}
    # The first run of a rail is the first one that names its node first.
    first = {parts[group][0]: group for group in reversed(parts)}.values()
    again = {group: both for group, both in parts.items() if group not in {*first}}
    before = {group: parts[group] for group in first}
    return _compare(known.results, before, OF_FIRST_RUNS), _compare(known.results, again, OF_NODES)


@dataclass(frozen=True, slots=True)
class _Test(Generic[Part]):
    """A part, its runs with good partners, and by how many standard errors their ranks are lower than those
    of its peers, which have `reached` that."""

    part: Part
    runs: tuple[Group, ...]
    share: float
    spread: float
    # Number of the runs that have this spread.
    measured: int
    lower: float = 0.0
    reached: float = 0.0

    def is_slow(self, chance: float) -> bool:
        return self.share < SLOW and self.lower >= chance and not _too_wide(self.spread)


def _compare(
    results: Mapping[Group, float | None], parts: Mapping[Group, tuple[Part, ...]], evidence: Evidence
) -> Peers[Part]:
    """Compare the parts of runs. What the clearest slow one spoils is left out for the others."""
    values: dict[tuple[Kind, bool], list[float]] = {}
    for group, busbw in results.items():
        values.setdefault((group.kind, group.stage == "A"), []).append(busbw or 0.0)
    # Later stages may have runs of a kind of slow parts only.
    middle = {kind: statistics.median(values[kind, first]) for kind, first in sorted(values)}
    middle = {kind: busbw for kind, busbw in middle.items() if busbw >= LEAST_BUSBW}
    left = {group: (results[group] or 0.0) / middle[group.kind] for group in parts if group.kind in middle}
    runs = _by_part(left, parts)
    slow: dict[Part, tuple[tuple[Group, ...], float]] = {}
    while True:
        tests = _tests(left, parts, evidence)
        clear = [test for test in tests if test.is_slow(evidence.chance)]
        if not clear:
            break
        worst = max(clear, key=lambda test: test.lower)
        slow[worst.part] = worst.runs, worst.reached * middle[worst.runs[0].kind]
        left = {group: share for group, share in left.items() if worst.part not in parts[group]}
    unclear: dict[Part, int] = {}
    for test in tests:
        # Where one of three nodes is slow, the other two have no peers left.
        if test.share < _limit(evidence, test.spread, len(test.runs)) and not (slow and len(tests) < 3):
            had = len(runs[test.part])
            more = 2 * had if len(test.runs) >= FEWEST_RUNS else FEWEST_RUNS
            # Few runs may spread widely by chance. More do not help where none gives a result.
            enough = test.measured >= FEWEST_FOR_SPREAD or not any(left.values())
            never = enough and _too_wide(test.spread)
            unclear[test.part] = 0 if never else max(0, min(more, MOST_RUNS - had))
    level = {test.part: test.share for test in tests}
    return Peers(slow, unclear, level, next((test.spread for test in tests if test.spread < math.inf), 0.0))


def _tests(
    left: Mapping[Group, float], parts: Mapping[Group, tuple[Part, ...]], evidence: Evidence
) -> list[_Test[Part]]:
    """The parts, the slowest first. The lowest ones are compared with runs in which they had no part."""
    runs, level = _by_part(left, parts), _levels(left, parts)
    # Where most runs gave nothing, no part is slower than usual.
    usual = statistics.median(level.values() or [1.0]) or 1.0
    good = {part for part, share in level.items() if share >= SLOW * usual}
    of_good = [share for group, share in left.items() if good.issuperset(parts[group])]
    spread = _spread(of_good)
    found: list[_Test[Part]] = []
    for part, share in sorted(level.items(), key=lambda item: item[1]):
        test = _Test(part, tuple(runs[part]), share / usual, spread, len(of_good))
        if share < usual and len(found) < COMPARED and evidence.chance < math.inf:
            others = {group: other for group, other in left.items() if part not in parts[group]}
            good = _good(_levels(others, parts), evidence.healthy)
            clean = [group for group in others if good.issuperset(parts[group])]
            with_good = [group for group in test.runs if good.issuperset({*parts[group]} - {part})]
            # What kinds reach beside each other is not known so well.
            kinds = Counter(group.kind for group in clean) & Counter(group.kind for group in with_good)
            kind = max(kinds, key=kinds.__getitem__, default=None)
            with_good = [group for group in with_good if group.kind == kind]
            theirs = sorted(left[group] for group in clean if group.kind == kind)
            mine, reached = [left[group] for group in with_good], statistics.median(theirs or [0.0])
            if mine and reached:
                own = statistics.median(mine)
                around = [*(share - own + reached for share in mine), *theirs]
                lower = _lower(mine, theirs)
                test = _Test(
                    part, tuple(with_good), own / reached, _spread(around), len(around), lower, reached
                )
            else:
                test = replace(test, runs=())
        found.append(test)
    return found


def _too_wide(spread: float) -> bool:
    return ((OF_NODES.chance + OF_NODES.missed) * spread / (1 - SOUGHT)) ** 2 > MOST_RUNS


def _limit(evidence: Evidence, spread: float, runs: int) -> float:
    """Above it, so many runs are not those of a slow part."""
    if not runs:
        return math.inf
    # The median of more than two runs has a wider error than their mean.
    error = spread / math.sqrt(runs) * (1.25 if runs > 2 else 1.0)
    return max(SOUGHT * (1 + evidence.missed * error), SLOW)


def _by_part(runs: Iterable[Group], parts: Mapping[Group, tuple[Part, ...]]) -> dict[Part, list[Group]]:
    found: dict[Part, list[Group]] = {}
    for group in runs:
        for part in parts[group]:
            found.setdefault(part, []).append(group)
    return found


def _levels(shares: Mapping[Group, float], parts: Mapping[Group, tuple[Part, ...]]) -> dict[Part, float]:
    runs = _by_part(shares, parts)
    return {part: statistics.median(shares[group] for group in found) for part, found in runs.items()}


def _good(level: Mapping[Part, float], healthy: float) -> set[Part]:
    if not level:
        return set()
    reached = sorted(level.values())[int((1 - healthy) * len(level))]
    return {part for part, share in level.items() if share >= SLOW * reached}


def _spread(found: list[float]) -> float:
    """The relative spread of one run, by the median deviation, which dips do not widen. It is one standard
    error too wide, because few values may agree by chance."""
    middle = statistics.median(found) if len(found) > 2 else 0.0
    if not middle:
        return math.inf
    deviation = statistics.median(abs(value - middle) for value in found)
    return 1.4826 * deviation / middle * (1 + 1.2 / math.sqrt(len(found)))


def _lower(mine: list[float], theirs: list[float]) -> float:
    """By how many standard errors the ranks of `mine` are lower (Mann and Whitney); `theirs` are sorted."""
    n, m = len(mine), len(theirs)
    higher = sum(m - (bisect_left(theirs, each) + bisect_right(theirs, each)) / 2 for each in mine)
    return (higher - n * m / 2) / math.sqrt(n * m * (n + m + 1) / 12)
