"""The groups of a stage. Deterministic: the same arguments give the same groups.

A. Each node alone; then one pair inside its rail group; then one across rail groups, with partners drawn over
   all of them, because a group that always meets the same other one cannot be told from it.
B. Nodes without a good pair, each with three different healthy partners, of its own rail group first. Nodes
   that were slow alone run alone again.
C. Nodes that stage B confirmed, each with a healthy partner: one HCA and its GPU at a time, twice.
"""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import count

from busbar.fabric.localise.groups import Group, Kind, Known, Places, Stage, by_place
from busbar.fabric.localise.score import Findings, runs_alone, score

PARTNERS = 3
# Rounds of pairs in stage B: more than three only where healthy partners are fewer than those they judge.
ROUNDS_B = 6
# Rounds of pairs across rail groups: where one group has most of the nodes, others' nodes run again.
ROUNDS_ACROSS = 4
# So many nodes may all be slow by themselves; where more are, it is not the nodes.
FEW_NODES = 16
RUNS_PER_RAIL = 2

Pair = tuple[str, str]


def plan(
    stage: Stage,
    nodes: Sequence[str],
    places: Places,
    known: Known | None = None,
    *,
    rails: int = 0,
    seed: int = 0,
) -> tuple[Group, ...]:
    """The groups of a stage over some nodes, by round; empty where there is nothing to ask.

    `known` has the results of the stages before. `rails` is how many HCAs stage C tries on each node, HCA k
    with GPU k; 0 where they cannot be tried alone.
    """
    draw = random.Random(f"{seed} {stage}")
    known = known or Known()
    if stage == "A":
        groups = _first(nodes, places, draw)
    elif stage == "B":
        groups = _second(_Partners(nodes, places, score(known, places), known, draw))
    else:
        groups = _third(_Partners(nodes, places, score(known, places), Known(), draw), rails)
    return tuple(sorted(groups, key=lambda group: group.round))


def _first(nodes: Sequence[str], places: Places, draw: random.Random) -> Iterator[Group]:
    yield from (Group("A", 0, "node", (node,)) for node in nodes)
    members = by_place(nodes, places)
    last = 0
    for found in members.values():
        draw.shuffle(found)
        for number, pairs in enumerate(_inside(found), 1):
            last = max(last, number)
            yield from (Group("A", number, "in_group", pair) for pair in pairs)
    for number, pairs in enumerate(_across(members, draw), last + 1):
        yield from (Group("A", number, "cross_group", pair) for pair in pairs)


def _inside(nodes: Sequence[str]) -> list[list[Pair]]:
    """Rounds of pairs that have every node: the last of an odd number meets the first one too."""
    pairs = list(zip(nodes[::2], nodes[1::2], strict=False))
    odd = len(nodes) % 2 and len(nodes) > 1
    return [pairs, [(nodes[-1], nodes[0])]] if odd else [pairs] if pairs else []


def _across(members: dict[str, list[str]], draw: random.Random) -> Iterator[list[Pair]]:
    """Rounds of pairs between groups: the largest one always gives a node, so that few are left over."""
    left = {place: list(found) for place, found in members.items()}
    pairs = []
    while len(left) > 1:
        largest = max(left, key=lambda place: len(left[place]))
        weights = [0 if place == largest else len(found) for place, found in left.items()]
        other = draw.choices(list(left), weights)[0]
        pairs.append((left[largest].pop(), left[other].pop()))
        for place in (largest, other):
            if not left[place]:
                del left[place]
    if pairs:
        yield pairs
    for place, over in left.items() if pairs else ():
        partners = [node for other, found in members.items() if other != place for node in found]
        draw.shuffle(partners)
        for first in range(0, len(over), len(partners))[: ROUNDS_ACROSS - 1]:
            yield list(zip(over[first:], partners, strict=False))


class _Partners:
    """Who is asked in a stage, and with whom: no node twice in a round, no two nodes twice."""

    def __init__(
        self, nodes: Iterable[str], places: Places, found: Findings, known: Known, draw: random.Random
    ) -> None:
        wanted = dict.fromkeys(nodes)
        self.suspects = [node for node in found.undecided if node in wanted]
        self.slow_alone = [node for node in found.slow_alone if node in wanted]
        self.confirmed = [node for node in found.confirmed if node in wanted]
        self.healthy = [node for node in found.healthy if node in wanted]
        draw.shuffle(self.healthy)
        # A node that is slow alone can be good in pairs; it is asked last, because it runs alone again too.
        unclear = {*found.undecided, *found.confirmed}
        self.healthy += [node for node in self.slow_alone if node not in unclear]
        self._places = places
        self._inside = by_place(self.healthy, places)
        self._met: dict[str, set[str]] = {}
        for group in () if self.healthy else known.results:
            if len(group.nodes) == 2:
                self._meet(*group.nodes)

    def round(self, nodes: Iterable[str], among: Sequence[str]) -> Iterator[tuple[Kind, Pair]]:
        """A partner for each node, where there is one."""
        used: set[str] = set()
        for node in nodes:
            partner = None if node in used else self._free(node, among, used)
            if partner is not None:
                used.update((node, partner))
                self._meet(node, partner)
                inside = self._places.get(node, "") == self._places.get(partner, "")
                yield "in_group" if inside else "cross_group", (node, partner)

    def _free(self, node: str, among: Sequence[str], used: Container[str]) -> str | None:
        own = self._inside.get(self._places.get(node, ""), [])
        met = self._met.get(node, ())
        free = (other for other in (*own, *among) if other not in used and other not in met and other != node)
        return next(free, None)

    def _meet(self, one: str, other: str) -> None:
        self._met.setdefault(one, set()).add(other)
        self._met.setdefault(other, set()).add(one)


def _second(who: _Partners) -> Iterator[Group]:
    busy: list[set[str]] = []
    runs = dict.fromkeys(who.suspects, 0)
    # Where no pair was good, pairs of few nodes that were not tried may be.
    among = who.healthy or (who.suspects if len(who.suspects) <= FEW_NODES else [])
    for number in range(ROUNDS_B):
        # Nodes with the fewest partners choose first.
        asked = sorted((n for n in runs if runs[n] < PARTNERS or not who.healthy), key=runs.__getitem__)
        if not asked:
            break
        busy.append(set())
        for kind, pair in who.round(asked, among):
            runs[pair[0]] += 1
            busy[number].update(pair)
            yield Group("B", number, kind, pair)
    for node in who.slow_alone:
        free = (number for number in count() if number >= len(busy) or node not in busy[number])
        for _ in range(1, runs_alone(node in runs)):
            yield Group("B", next(free), "node", (node,))


def _third(who: _Partners, rails: int) -> Iterator[Group]:
    if len(who.confirmed) > len(who.healthy):
        return
    kinds: dict[Kind, Kind] = {"in_group": "rail_in_group", "cross_group": "rail_cross_group"}
    for run in range(RUNS_PER_RAIL):
        for kind, pair in list(who.round(who.confirmed, who.healthy)):
            yield from (Group("C", run * rails + rail, kinds[kind], pair, rail) for rail in range(rails))
