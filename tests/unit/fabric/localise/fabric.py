"""A fabric whose slow parts are known, and the three stages run on it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from busbar.fabric.localise import Group, Kind, Known, Stage, plan, score
from busbar.fabric.localise.score import Scores

RAILS = 8
STAGES: tuple[Stage, ...] = ("A", "B", "C")
EXPECTED: Mapping[Kind, float] = {
    "node": 480.0, "in_group": 400.0, "cross_group": 400.0, "rail_in_group": 50.0, "rail_cross_group": 50.0,
}  # fmt: skip
# Of a result, what the measurement made of it: nothing, noise, a dip.
Luck = Callable[[Group], float | None]


def exactly(group: Group) -> float | None:
    return 1.0


def noise(seed: int | str, spread: float = 0.03) -> Luck:
    """Noise; 1 % of the runs dip to 40 to 90 %, and 0.5 % give nothing."""
    draw = random.Random(seed)

    def luck(group: Group) -> float | None:
        chance = draw.random()
        if chance < 0.005:
            return None
        return draw.gauss(1.0, spread) * (draw.uniform(0.4, 0.9) if chance < 0.015 else 1.0)

    return luck


@dataclass
class Fabric:
    """How fast slow parts are, as a part of what they should be."""

    places: dict[str, str]
    nodes: dict[str, float] = field(default_factory=dict)
    alone: dict[str, float] = field(default_factory=dict)
    rails: dict[tuple[str, int], float] = field(default_factory=dict)
    leaves: dict[tuple[str, int], float] = field(default_factory=dict)
    uplinks: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, *sizes: int) -> Fabric:
        """Rail groups su0, su1, ... of so many nodes: su0-0, su0-1, ..."""
        return cls({f"su{su}-{i}": f"su{su}" for su, size in enumerate(sizes) for i in range(size)})

    @property
    def names(self) -> list[str]:
        return list(self.places)

    def busbw(self, group: Group) -> float:
        """GB/s of a run: the slowest part on its way."""
        if group.kind == "node":
            return EXPECTED["node"] * self.alone.get(group.nodes[0], 1.0)
        rails = range(RAILS) if group.rail is None else (group.rail,)
        at = {self.places[node] for node in group.nodes}
        shares = [self.nodes.get(node, 1.0) for node in group.nodes]
        shares += [self.rails.get((node, rail), 1.0) for node in group.nodes for rail in rails]
        shares += [self.leaves.get((place, rail), 1.0) for place in at for rail in rails]
        shares += [self.uplinks.get(place, 1.0) for place in at if len(at) > 1]
        return EXPECTED[group.kind] * min(shares)

    def run(self, groups: tuple[Group, ...], luck: Luck = exactly) -> dict[Group, float | None]:
        found: dict[Group, float | None] = {}
        for group in groups:
            share = luck(group)
            found[group] = None if share is None else share * self.busbw(group)
        return found

    def known_after(
        self,
        last: Stage,
        *,
        luck: Luck = exactly,
        expected: Mapping[Kind, float] = EXPECTED,
        seed: int = 0,
        rails: int = RAILS,
    ) -> Known:
        known = Known({}, expected)
        for stage in STAGES[: STAGES.index(last) + 1]:
            while groups := plan(stage, self.names, self.places, known, rails=rails, seed=seed):
                known = Known({**known.results, **self.run(groups, luck)}, expected)
        return known

    def diagnose(
        self,
        *,
        luck: Luck = exactly,
        expected: Mapping[Kind, float] = EXPECTED,
        seed: int = 0,
        rails: int = RAILS,
    ) -> Scores:
        known = self.known_after("C", luck=luck, expected=expected, seed=seed, rails=rails)
        return score(known, self.places)


def named(findings: Scores) -> list[tuple[str, tuple[str, ...], tuple[int, ...]]]:
    """Cause, what it is about, rails."""
    return [(s.cause, s.rail_groups or s.nodes, s.rails) for s in findings.suspects]
