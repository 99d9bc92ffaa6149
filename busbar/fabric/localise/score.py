"""What is slow, from the results of the stages so far: nodes, rails, leaves, uplinks, or everything.

A node is healthy with one good pair, or when the median of its runs with healthy partners is good; it is
confirmed when that median is bad. What most nodes of a rail group have in common is a switch's.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from busbar.fabric.localise.groups import FEW_NODES, GOOD, PAIRS, Group, Kind, Known, Places, by_place
from busbar.fabric.localise.peers import (
    FEWEST_RUNS,
    MOST_RUNS,
    RUNS_PER_RAIL,
    SLOW,
    nodes_by_peers,
    rails_by_peers,
)

Cause = Literal["node", "nvlink", "rail", "leaf", "uplink", "settings"]

# Part of a node's rails, or of a group's pairs across, that makes the cause the node, the uplink.
MOST = 0.5
# All rails carry as much, so a pair is as slow as its slowest rail. Where it reaches less than this part of
# that one's share, something else is slow, of which one rail alone needs less: CPUs.
OF_ITS_RAIL = 0.5
# Part of a rail group that is slow where its leaf is: all of it but for chance.
OF_A_LEAF = 0.7
# Where rails were not tried, in a smaller group so many nodes may be slow by themselves.
FEWEST_OF_A_LEAF = 8
# Rails below this part of the others of their node need no comparison with them.
FAR_BELOW = 0.85


@dataclass(frozen=True, slots=True)
class Suspect:
    """What is slow. With more than one of `nodes` or `rail_groups` it is one of them: which, was not seen.

    `node`, `nvlink` (a node alone) and `rail` (HCAs of a node) have `nodes`; `leaf` has `rail_groups`, and
    `rails` where they were tried; `uplink` has `rail_groups`, or none where it is the spine or all uplinks;
    `settings`, which all nodes share, has neither. `runs` are the evidence. `peers`: what the others reach,
    in GB/s, where only that shows it.
    """

    cause: Cause
    nodes: tuple[str, ...] = ()
    rail_groups: tuple[str, ...] = ()
    rails: tuple[int, ...] = ()
    runs: tuple[Group, ...] = ()
    peers: float | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """`undecided`: nodes without a good pair that no run with a healthy partner has judged.
    `confirmed`: nodes that such runs found slow, whatever the cause. `slow_alone`: nodes whose runs alone
    were all bad. `unclear`, `unclear_rails`: nodes and rails that may be 10 % slower than their peers, and
    how many more runs shall tell; 0 where none can. `spread`: of one run, relative; 0 where it is not known.
    """

    suspects: tuple[Suspect, ...]
    healthy: tuple[str, ...]
    confirmed: tuple[str, ...]
    undecided: tuple[str, ...]
    slow_alone: tuple[str, ...]
    unclear: Mapping[str, int] = field(default_factory=dict)
    unclear_rails: Mapping[tuple[str, int], int] = field(default_factory=dict)
    spread: float = 0.0


class _Runs:
    """The runs that can be judged, each as a part of what was expected, by the node they tell about."""

    def __init__(self, known: Known, places: Places) -> None:
        self.share = known.shares()
        self.alone: dict[str, list[Group]] = {}
        self.pairs: dict[str, list[Group]] = {}
        self.rails: dict[str, list[Group]] = {}
        for group in known.results:
            of_kind = self.pairs if group.kind in PAIRS else self.alone if group.rail is None else self.rails
            # The second node of a rail's run is the healthy partner.
            for node in group.nodes if group.rail is None else group.nodes[:1]:
                of_kind.setdefault(node, []).append(group)
        self.nodes = list(dict.fromkeys((*self.alone, *self.pairs)))
        self.uplinks = tuple(_uplinks(self, places))
        slow = {place for each in self.uplinks for place in each.rail_groups}
        # Pairs across slow uplinks say nothing of their nodes.
        left = {
            group: busbw
            for group, busbw in known.results.items()
            if group.kind != "cross_group" or not slow & {places.get(node, "") for node in group.nodes}
        }
        comparable = replace(known, results=left)
        self.first, self.again = nodes_by_peers(comparable, "A"), nodes_by_peers(comparable, "B")
        self.rails_again = rails_by_peers(known)

    def bad(self, group: Group) -> bool:
        """False also for a run that cannot be judged."""
        return self.share.get(group, GOOD) < GOOD

    def median(self, groups: Iterable[Group]) -> float:
        return statistics.median_high([self.share[group] for group in groups] or [math.inf])

    def with_good_pair(self, stages: str, kinds: Container[Kind] = PAIRS) -> dict[str, None]:
        """Nodes with a good pair of these stages and kinds."""
        pairs = (group for group in self.share if group.kind in kinds and group.stage in stages)
        return {node: None for group in pairs if self.share[group] >= GOOD for node in group.nodes}

    def with_partners(self, partners: Container[str], stages: str) -> dict[str, list[Group]]:
        """Node -> its runs with a partner in these stages; partners themselves are left out."""
        found: dict[str, list[Group]] = {}
        for node, groups in self.pairs.items():
            judged = (g for g in groups if g.stage in stages and g in self.share)
            if node not in partners and (runs := [g for g in judged if g.partner(node) in partners]):
                found[node] = runs
        return found

    def bad_rails(self, node: str, pairs: Iterable[Group]) -> tuple[tuple[int, ...], bool]:
        """Rails that no run found good and those slower than their peers; none of them, and True, where they
        are most of the node's rails, or do not explain how slow its pairs are."""
        best = self.best_rails(node)
        unfit = [rail for rail, share in best.items() if share < GOOD]
        slowest = min((best[rail] for rail in unfit), default=0.0)
        peers = self.rails_again.get(node)
        level, slower = (peers.level, peers.slow) if peers else ({}, {})
        # The better of two runs of a rail that is as slow as all others of its node is bad by chance.
        bad = {*(rail for rail in unfit if level.get(rail, 0.0) < SLOW), *slower}
        # Pairs that only their peers show to be slow have no share where nothing is expected.
        of_pairs = self.median(group for group in pairs if group in self.share)
        whole = len(unfit) > MOST * len(best) or of_pairs < OF_ITS_RAIL * slowest
        return () if whole else tuple(sorted(bad)), whole or (bool(unfit) and not bad)

    def best_rails(self, node: str) -> dict[int, float]:
        """The better run of each of its rails."""
        best: dict[int, float] = {}
        for group in self.rails.get(node, ()):
            if group.rail is not None and group in self.share:
                best[group.rail] = max(best.get(group.rail, 0.0), self.share[group])
        return best

    def unclear(self, confirmed: Container[str], undecided: Container[str]) -> dict[str, int]:
        """Nodes that may be 10 % slow: of few nodes all, else those whose runs of stage A are like those of
        such a node."""
        first, again = self.first, self.again
        can_tell = len(self.nodes) > 2 and (first.level or not self.pairs)
        few = dict.fromkeys(self.nodes, FEWEST_RUNS if can_tell else 0)
        found = few if len(self.nodes) <= FEW_NODES else first.unclear
        # Runs across slow uplinks are no evidence, but a node must not run indefinitely.
        left = {
            node: MOST_RUNS - sum(group.stage == "B" for group in self.pairs.get(node, ())) for node in found
        }
        return {
            node: max(0, min(left[node], again.unclear.get(node, 0) if node in again.level else more))
            for node, more in found.items()
            if node not in confirmed
            and (node not in again.level or node in again.unclear)
            and node not in undecided
        }

    def unclear_rails(self, confirmed: Iterable[str]) -> dict[tuple[str, int], int]:
        """The same of the rails of nodes of which none is far below the others. Few rails all run again, as
        peers."""
        found: dict[tuple[str, int], int] = {}
        for node in confirmed:
            peers, best = self.rails_again.get(node), self.best_rails(node)
            lowest = min(GOOD, FAR_BELOW * statistics.median(best.values() or [0.0]))
            if peers and peers.unclear and min(best.values(), default=0.0) > lowest:
                few = RUNS_PER_RAIL * (len(best) - 1) < FEWEST_RUNS
                again = dict.fromkeys(best, max(peers.unclear.values())) if few else peers.unclear
                found |= {(node, rail): more for rail, more in again.items()}
        return found


def runs_alone(slow_in_pairs: bool) -> int:
    """Runs alone, none of them good, after which a node is slow alone.

    One run in 60 is bad by chance. Pairs that are slow too are evidence of their own.
    """
    return 2 if slow_in_pairs else 4


def score(known: Known, places: Places) -> Scores:
    """Find what is slow by the results of the stages so far; more stages say more."""
    runs = _Runs(known, places)
    partners = runs.with_good_pair("A")
    judging = runs.with_partners(partners, "B")
    if not partners:
        partners = runs.with_good_pair("AB")
        judging = runs.with_partners(partners, "AB")
    judging = {
        node: [g for g in found if g.partner(node) not in runs.again.slow] or found
        for node, found in judging.items()
    }
    bad = {node: found for node, found in judging.items() if runs.median(found) < GOOD}
    confirmed = {**{node: [*found] for node, (found, _) in runs.again.slow.items()}, **bad}
    undecided = [node for node in runs.pairs if node not in partners and node not in judging]
    alone = [node for node, groups in runs.alone.items() if all(map(runs.bad, groups))]
    inside = [node for node in alone if len(runs.alone[node]) >= runs_alone(node in confirmed)]
    between = {node: found for node, found in confirmed.items() if node not in inside}
    suspects = (
        *_slow_inside(runs, inside),
        *_slow_between(runs, places, between, {*confirmed} - {*bad}),
        *_one_of(runs, undecided),
        *runs.uplinks,
    )
    unclear = {*confirmed, *undecided, *alone}
    healthy = tuple(node for node in runs.nodes if node not in unclear)
    return Scores(
        suspects,
        healthy,
        tuple(confirmed),
        tuple(undecided),
        tuple(alone),
        runs.unclear(confirmed, undecided),
        runs.unclear_rails(confirmed),
        runs.again.spread or runs.first.spread,
    )


def _slow_inside(runs: _Runs, nodes: Sequence[str]) -> Iterator[Suspect]:
    if len(nodes) > max(1, MOST * len(runs.nodes)):
        yield Suspect("settings", runs=tuple(group for node in nodes for group in runs.alone[node]))
        return
    yield from (Suspect("nvlink", (node,), runs=tuple(runs.alone[node])) for node in nodes)


def _slow_between(
    runs: _Runs, places: Places, confirmed: Mapping[str, list[Group]], by_peers: Container[str]
) -> Iterator[Suspect]:
    """Leaves, then nodes and rails that no leaf explains; what else they have shows after its repair."""
    rails = {node: runs.bad_rails(node, pairs) for node, pairs in confirmed.items()}
    explained: set[str] = set()
    for place, members in by_place(runs.nodes, places).items():
        of_group = [node for node in members if node in confirmed]
        asked = [node for node in of_group if node in runs.rails]
        common = _common([rails[node][0] for node in asked])
        untried = not runs.rails and len(of_group) >= FEWEST_OF_A_LEAF
        if (common or untried) and len(of_group) > OF_A_LEAF * len(members):
            about = [g for node in asked or of_group for g in (runs.rails if asked else confirmed)[node]]
            shown = tuple(group for group in about if group.rail is None or group.rail in common)
            yield Suspect("leaf", rail_groups=(place,), rails=common, runs=shown)
            explained.update(node for node in of_group if not rails[node][1])
    for node, found in confirmed.items():
        if node not in explained:
            bad = rails[node][0]
            shown = tuple(g for g in runs.rails[node] if g.rail in bad) if bad else tuple(found)
            of_rail = runs.rails_again[node].slow.get(bad[0]) if bad else None
            of_node = runs.again.slow.get(node) if node in by_peers and not bad else None
            _, peers = of_rail or of_node or (None, None)
            yield Suspect("rail" if bad else "node", (node,), rails=bad, runs=shown, peers=peers)


def _common(found: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Rails that are bad on most nodes, and on at least two."""
    counts = Counter(rail for rails in found for rail in rails)
    return tuple(sorted(rail for rail, n in counts.items() if n > max(1, OF_A_LEAF * len(found))))


def _one_of(runs: _Runs, undecided: Sequence[str]) -> Iterator[Suspect]:
    """Suspect the nodes that no healthy one has judged; where no pair is good, the settings."""
    pairs = dict.fromkeys(group for node in undecided for group in runs.pairs[node])
    bad = tuple(group for group in pairs if runs.bad(group))
    if bad and (len(runs.nodes) == 2 or len(undecided) < len(runs.pairs)):
        yield Suspect("node", tuple(undecided), runs=bad)
    elif bad and len(bad) == len(pairs):
        yield Suspect("settings", runs=bad)


def _uplinks(runs: _Runs, places: Places) -> Iterator[Suspect]:
    """Rail groups of which most pairs across are bad, of nodes that are good inside their group."""
    inside = runs.with_good_pair("AB", ("in_group",))
    left = {
        group: tuple(places.get(node, "") for node in group.nodes)
        for group in runs.share
        if group.kind == "cross_group" and group.stage == "A" and all(node in inside for node in group.nodes)
    }
    bad = tuple(group for group in left if runs.bad(group))
    all_groups = {place for both in left.values() for place in both}
    found = []
    while (worst := _worst(runs, left)) is not None:
        touched = tuple(group for group, both in left.items() if worst in both)
        others = {place for group in touched for place in left[group]} - {worst}
        left = {group: both for group, both in left.items() if worst not in both}
        # Two groups that only ever met each other cannot be told apart.
        met_others = any(place in others for both in left.values() for place in both)
        names = (worst,) if len(others) > 1 or met_others else (worst, *others)
        found.append(Suspect("uplink", rail_groups=names, runs=touched))
    if len(found) > 1 and len(found) > MOST * len(all_groups):
        found = [Suspect("uplink", runs=bad)]
    yield from found


def _worst(runs: _Runs, left: Mapping[Group, tuple[str, ...]]) -> str | None:
    """The rail group with the largest part of bad pairs, if these are most of its pairs and at least two."""
    pairs: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    for group, both in left.items():
        pairs.update(both)
        if runs.bad(group):
            bad.update(both)
    most = [place for place in bad if bad[place] > max(1, MOST * pairs[place])]
    return max(most, key=lambda place: bad[place] / pairs[place], default=None)
