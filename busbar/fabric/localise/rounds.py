"""The groups of a stage. Deterministic: the same arguments give the same groups.

A. Each node alone; then one pair inside its rail group; then one across rail groups, with partners drawn over
   all of them, because a group that always meets the same other one cannot be told from it.
B. Nodes without a good pair, each with three different healthy partners, of its own rail group first. Nodes
   that were slow alone run alone again.
C. Nodes that stage B confirmed, each with a healthy partner: one HCA and its GPU at a time, twice.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, cycle, islice

from busbar.fabric.localise.groups import FEW_NODES, Group, Known, Places, Stage, by_place, kind_of
from busbar.fabric.localise.peers import RUNS_PER_RAIL, rails_of_all
from busbar.fabric.localise.score import runs_alone, score

PARTNERS = 3
# So many nodes of a rail group run at least where one of them is compared with the others.
PEERS = 8
# Rounds of pairs across rail groups: where one group has most of the nodes, others' nodes run again.
ROUNDS_ACROSS = 4

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
        groups = _first(nodes, places, draw) if not known.results else iter(())
    elif stage == "B":
        groups = _second(_Partners(nodes, places, known, stage, draw), known)
    else:
        groups = _third(_Partners(nodes, places, known, stage, draw), rails)
    return tuple(sorted(groups, key=lambda group: group.round))


def plan_rails(
    nodes: Sequence[str], places: Places, known: Known, *, rails: int, seed: int = 0
) -> tuple[Group, ...]:
    """The runs of every rail of every node: once with a partner, then again of what may be 10 % slow.

    To be asked until it has no more groups, as `plan`. A rail that runs again has partners whose rail is not
    in question, and others run in the same rounds, as its peers.
    """
    draw = random.Random(f"{seed} rails")
    ring = [node for found in by_place(nodes, places).values() for node in draw.sample(found, len(found))]
    has_run = any(each.rail is not None for each in known.results)
    runs = _doubtful_rails(ring, known, rails, draw) if has_run else _every_rail(ring, rails)
    found = (Group("C", at, kind_of(pair, places, of_rail=True), pair, rail) for at, pair, rail in runs)
    return tuple(sorted(found, key=lambda each: each.round))


def _every_rail(ring: Sequence[str], rails: int) -> Iterator[tuple[int, Pair, int]]:
    """Round, pair and rail: each node has the next one of the ring as its partner."""
    last = len(ring) - 1
    for at, node in enumerate(ring if last else ()):
        # It is also the partner of the one before, which has another turn.
        turn = 2 if at == last and last % 2 == 0 else at % 2
        yield from ((turn * rails + rail, (node, ring[at - last]), rail) for rail in range(rails))


def _doubtful_rails(
    ring: list[str], known: Known, rails: int, draw: random.Random
) -> Iterator[tuple[int, Pair, int]]:
    """Round, pair and rail of what runs again, and of its peers in the same rounds."""
    before, again = rails_of_all(known)
    unclear = {
        part: again.unclear.get(part, 0) if part in again.level or part in again.slow else more
        for part, more in before.unclear.items()
        if part[0] in ring
    }
    due = {part: more for part, more in unclear.items() if more}
    doubtful, met = {*unclear, *again.slow}, Counter[Pair]()
    draw.shuffle(ring)
    number = 1 + max(each.round for each in known.results)
    while due:
        free, busy = dict.fromkeys(ring), list[tuple[Pair, int]]()
        for node, rail in sorted(due, key=lambda part: -due[part]):
            others = [other for other in free if other != node] if node in free else []
            partner = min(others, key=lambda o: ((o, rail) in doubtful, met[node, o]), default=None)
            if partner is not None:
                busy.append(((node, partner), rail))
                met[node, partner] += 1
                due[node, rail] -= 1
                del free[node], free[partner]
        yield from ((number, pair, rail) for pair, rail in busy)
        if len(free) < 2:
            # Peers run after them: the partners with each other, or of two nodes the same on other rails.
            number += 1
            free = dict.fromkeys(node for node in ring if node not in {pair[0] for pair, _ in busy})
        idle = iter([*free][:PEERS])
        pairs = [*zip(idle, idle, strict=False)] or [pair for pair, _ in busy]
        for pair, rail in zip(pairs, cycle(rail for _, rail in busy), strict=False):
            order = ((rail + more) % rails for more in range(rails))
            clear = next((r for r in order if not doubtful & {(node, r) for node in pair}), None)
            if clear is not None:
                yield number, pair, clear
        number += 1
        due = {part: more for part, more in due.items() if more}


def _first(nodes: Sequence[str], places: Places, draw: random.Random) -> Iterator[Group]:
    yield from (Group("A", 0, "node", (node,)) for node in nodes)
    members = by_place(nodes, places)
    last = 0
    for found in members.values():
        draw.shuffle(found)
        pairs = list(zip(found[::2], found[1::2], strict=False))
        rounds = [pairs] if pairs else []
        if pairs and len(found) % 2:
            # The last of an odd number meets the first one too.
            rounds.append([(found[-1], found[0])])
        last = max(last, len(rounds))
        for number, pairs in enumerate(rounds, 1):
            yield from (Group("A", number, "in_group", pair) for pair in pairs)
    for number, pairs in enumerate(_across(members, draw), last + 1):
        yield from (Group("A", number, "cross_group", pair) for pair in pairs)


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
    """Healthy nodes as partners: no node twice in a round. The first three of a node differ; then those of
    its own rail group go first."""

    def __init__(self, nodes: Iterable[str], places: Places, known: Known, stage: Stage, draw: random.Random):
        self.places, self.wanted, self.found = places, dict.fromkeys(nodes), score(known, places)
        found, self.healthy = self.found, self.only(self.found.healthy)
        draw.shuffle(self.healthy)
        # A node that is slow alone can be good in pairs; it is asked last, because it runs alone again too.
        unclear = {*found.undecided, *found.confirmed}
        self.healthy += [node for node in self.only(found.slow_alone) if node not in unclear]
        self.runs: Counter[str] = Counter()
        self._met: Counter[frozenset[str]] = Counter()
        before = [group for group in known.results if group.stage == stage or not self.healthy]
        self._met.update(frozenset(group.nodes) for group in before)
        self.only_new = not self.healthy and not any(found.unclear.values())
        rounds = (group.round + 1 for group in known.results if group.stage == stage)
        self.round_after = max(rounds, default=0)

    def only(self, nodes: Iterable[str]) -> list[str]:
        """Those of them that are in this stage."""
        return [node for node in nodes if node in self.wanted]

    def round(self, nodes: Iterable[str], among: Sequence[str]) -> list[Pair]:
        """A partner for each node, where there is one."""
        found: list[Pair] = []
        free = dict.fromkeys(among)
        used: set[str] = set()
        for node in nodes:
            partner = None if node in used else self._partner(node, free)
            if partner is not None:
                for each in (node, partner):
                    used.add(each)
                    free.pop(each, None)
                    self.runs[each] += 1
                self._met[frozenset((node, partner))] += 1
                found.append((node, partner))
        return found

    def _partner(self, node: str, free: Iterable[str]) -> str | None:
        def order(other: str) -> tuple[int, bool, int]:
            met = self._met[frozenset((node, other))]
            is_far = self.places.get(node, "") != self.places.get(other, "")
            return met if self.runs[node] < PARTNERS else 0, is_far, met

        others = (other for other in free if other != node and not (self.only_new and order(other)[2]))
        return min(others, key=order, default=None)

    def chosen(self, asked: Iterable[str]) -> list[str]:
        """Healthy nodes, enough as partners of some and as peers besides, of their own rail groups first."""
        inside = by_place((node for node in self.healthy if node not in asked), self.places)
        found, wanted = [], 0
        for place, nodes in by_place(asked, self.places).items():
            enough = max(3 * len(nodes), PEERS - len(nodes))
            wanted += enough
            found += inside.get(place, [])[:enough]
        rest = (node for node in self.healthy if node not in asked and node not in found)
        return [*found, *islice(rest, max(0, wanted - len(found)))]


def _second(who: _Partners, known: Known) -> Iterator[Group]:
    alone = Counter(group.nodes[0] for group in known.results if group.kind == "node")
    before = {
        n for group in known.results if group.stage == "B" and group.kind != "node" for n in group.nodes
    }
    unclear = {node: more for node, more in who.found.unclear.items() if more and node in who.wanted}
    undecided = [node for node in who.only(who.found.undecided) if node not in before]
    if not who.healthy and len(undecided) > FEW_NODES:
        undecided, who.healthy = [], [node for node in undecided if node not in unclear]
    # Where no pair was good, pairs of few nodes that were not tried may be.
    due = {node: unclear.get(node, PARTNERS if who.healthy else 2 * PARTNERS) for node in undecided} | unclear
    partners = who.chosen(due)
    if unclear and len(who.wanted) <= FEW_NODES and len(partners) < 3 * len(due):
        # So few give no pairs without the nodes in question, unless all run.
        due = {node: max(unclear.values()) for node in partners} | due
    if len(partners) < len(due):
        partners = [*dict.fromkeys((*partners, *(unclear if who.healthy else due)))]
    busy: list[set[str]] = []
    for number in range(2 * max(due.values(), default=0)):
        # Nodes with the fewest partners choose first.
        asked = sorted((node for node in due if who.runs[node] < due[node]), key=who.runs.__getitem__)
        pairs = who.round(asked, partners)
        if not pairs:
            break
        if unclear.keys() & {*asked}:
            taken = {node for pair in pairs for node in pair}
            idle = [node for node in partners if node not in taken and node not in due]
            pairs += who.round(idle, idle)
        busy.append({node for pair in pairs for node in pair})
        at = who.round_after + number
        yield from (Group("B", at, kind_of(pair, who.places), pair) for pair in pairs)
    for node in who.only(who.found.slow_alone):
        free = (number for number in count() if number >= len(busy) or node not in busy[number])
        for _ in range(alone[node], runs_alone(node in due or node in who.found.confirmed)):
            yield Group("B", who.round_after + next(free), "node", (node,))


def _third(who: _Partners, rails: int) -> Iterator[Group]:
    confirmed = who.only(who.found.confirmed)
    if len(confirmed) > len(who.healthy):
        return
    due = {(node, rail): RUNS_PER_RAIL for node in confirmed for rail in range(rails)}
    if who.round_after:
        due = {(node, rail): more for (node, rail), more in who.found.unclear_rails.items() if more}
    number = who.round_after
    while due:
        asked: dict[str, list[int]] = {}
        for node, rail in due:
            asked.setdefault(node, []).append(rail)
        for pair in who.round(who.only(asked), who.healthy):
            for later, rail in enumerate(asked[pair[0]]):
                yield Group("C", number + later, kind_of(pair, who.places, of_rail=True), pair, rail)
        number += max(map(len, asked.values()))
        due = {part: left - 1 for part, left in due.items() if left > 1}
