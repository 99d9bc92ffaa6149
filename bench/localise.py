"""How often busbar.fabric.localise finds what is slow, beside two rivals, on simulated fabrics.

Results have noise of 3 %; 1 % of the runs dip to 40 to 90 %, and 0.5 % give nothing. Slow parts are 20 % slow
where the row does not say otherwise. Times are a model, without the start of the jobs: a pair runs 36 s, one
rail 22.5 s (439 rounds of all pairs of 440 nodes in 263 minutes; 21 rounds with 16 of single rails in 9), a
node alone 20 s (assumed); 256 groups at the same time.

    python bench/localise.py [--trials 300] [--nodes 8,64,440,4096] [--unknown]
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from busbar.fabric.localise import Group, Kind, Known, Stage, plan, score

RAILS = 8
PARALLEL = 256
SECONDS: Mapping[Kind, float] = {
    "node": 20, "in_group": 36, "cross_group": 36, "rail_in_group": 22.5, "rail_cross_group": 22.5,
}  # fmt: skip
EXPECTED: Mapping[Kind, float] = dict.fromkeys(SECONDS, 1.0)
STAGES: tuple[Stage, ...] = ("A", "B", "C")
GROUP_SIZES = {8: 4, 64: 16}
# All pairs run as many trials as this many results are enough for.
MOST_RESULTS = 1_000_000
MOST_TRIALS = {4096: 100}

Cause = tuple[str, frozenset[str], tuple[int, ...]]


@dataclass
class Fabric:
    """Parts and how slow they are, as a part of their normal rate."""

    places: dict[str, str]
    nodes: dict[str, float] = field(default_factory=dict)
    alone: dict[str, float] = field(default_factory=dict)
    rails: dict[tuple[str, int], float] = field(default_factory=dict)
    leaves: dict[tuple[str, int], float] = field(default_factory=dict)
    uplinks: dict[str, float] = field(default_factory=dict)

    def busbw(self, nodes: tuple[str, ...], rails: Iterable[int]) -> float:
        """What a run on these rails reaches without noise: NCCL waits for its slowest ring."""
        if len(nodes) == 1:
            return self.alone.get(nodes[0], 1.0)
        at = {self.places[node] for node in nodes}
        slow = [self.nodes[node] for node in nodes if node in self.nodes]
        if self.rails or self.leaves:
            slow += [self.rails.get((node, rail), 1.0) for node in nodes for rail in rails]
            slow += [self.leaves.get((place, rail), 1.0) for place in at for rail in rails]
        if self.uplinks and len(at) > 1:
            slow += [self.uplinks.get(place, 1.0) for place in at]
        return min(slow, default=1.0)

    def causes(self) -> set[Cause]:
        """What should be named."""
        return {
            *(("node", frozenset({node}), ()) for node in self.nodes),
            *(("nvlink", frozenset({node}), ()) for node in self.alone),
            *(("rail", frozenset({node}), (rail,)) for node, rail in self.rails),
            *(("leaf", frozenset({place}), (rail,)) for place, rail in self.leaves),
            *(("uplink", frozenset({place}), ()) for place in self.uplinks),
        }


@dataclass
class Outcome:
    """What was named, and what it took: seconds of wall time, seconds of all nodes together, rounds."""

    causes: set[Cause] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    wall: float = 0.0
    used: float = 0.0
    rounds: int = 0

    def spend(self, seconds: float, groups: int, nodes: int) -> None:
        """Account for a round."""
        self.wall += math.ceil(groups / PARALLEL) * seconds
        self.used += seconds * nodes
        self.rounds += 1


def noisy(busbw: float, draw: random.Random) -> float | None:
    """A result as it is measured."""
    luck = draw.random()
    if luck < 0.005:
        return None
    dip = draw.uniform(0.4, 0.9) if luck < 0.015 else 1.0
    return busbw * dip * draw.gauss(1.0, 0.03)


def staged(fabric: Fabric, draw: random.Random, expected: Mapping[Kind, float]) -> Outcome:
    """The plan of busbar.fabric.localise."""
    done, nodes = Outcome(), list(fabric.places)
    results: dict[Group, float | None] = {}
    for stage in STAGES:
        known = Known(results, expected)
        rounds: dict[int, list[Group]] = {}
        for group in plan(stage, nodes, fabric.places, known, rails=RAILS, seed=draw.getrandbits(32)):
            rails = range(RAILS) if group.rail is None else (group.rail,)
            results[group] = noisy(fabric.busbw(group.nodes, rails), draw)
            rounds.setdefault(group.round, []).append(group)
        for groups in rounds.values():
            seconds = max(SECONDS[group.kind] for group in groups)
            done.spend(seconds, len(groups), sum(len(group.nodes) for group in groups))
    for suspect in score(Known(results, expected), fabric.places).suspects:
        about = suspect.rail_groups or suspect.nodes
        if suspect.cause == "uplink" and len(about) == 2 == len(set(fabric.places.values())):
            about = tuple(fabric.uplinks) or about  # two groups meet only each other: "one of" is right
        done.causes.add((suspect.cause, frozenset(about), suspect.rails))
        done.named.update(suspect.nodes)
    return done


def all_pairs(fabric: Fabric, draw: random.Random, expected: Mapping[Kind, float]) -> Outcome:
    """Each node with each other one: slow is a node whose median is bad, an uplink whose cross pairs are."""
    done, nodes = Outcome(), list(fabric.places)
    bad = dict.fromkeys(nodes, 0)
    across: dict[str, list[int]] = {place: [0, 0] for place in fabric.places.values()}
    for i, one in enumerate(nodes):
        for other in nodes[i + 1 :]:
            share = noisy(fabric.busbw((one, other), range(RAILS)), draw) or 0.0
            bad[one] += share < 0.9
            bad[other] += share < 0.9
            if fabric.places[one] != fabric.places[other]:
                for node in (one, other):
                    counts = across[fabric.places[node]]
                    counts[0] += share < 0.9
                    counts[1] += 1
    uplinks = {place for place, (slow, pairs) in across.items() if slow > 0.5 * pairs}
    done.causes = {("uplink", frozenset({place}), ()) for place in uplinks if len(uplinks) < len(across) / 2}
    blamed = {place for _, found, _ in done.causes for place in found}
    done.named = {n for n in nodes if bad[n] > 0.5 * (len(nodes) - 1) and fabric.places[n] not in blamed}
    done.causes |= {("node", frozenset({node}), ()) for node in done.named}
    for _ in range(len(nodes) - 1):
        done.spend(SECONDS["in_group"], len(nodes) // 2, len(nodes))
    return done


def halving(fabric: Fabric, draw: random.Random, expected: Mapping[Kind, float]) -> Outcome:
    """Groups of square-root size; bad ones are halved, a single node runs with one of a good group."""
    done, nodes = Outcome(), list(fabric.places)
    size = math.isqrt(len(nodes))
    groups = [tuple(nodes[i : i + size]) for i in range(0, len(nodes), size)]
    good: list[str] = []
    while groups:
        done.spend(SECONDS["in_group"], len(groups), sum(max(2, len(group)) for group in groups))
        halves: list[tuple[str, ...]] = []
        for group in groups:
            with_partner = (*group, *good[:1]) if len(group) == 1 else group
            if len(with_partner) < 2 or many(fabric, with_partner, draw) >= 0.9:
                good += group
            elif len(group) == 1:
                done.named.update(group)
            else:
                middle = len(group) // 2
                halves += [group[:middle], group[middle:]]
        groups = halves
    done.causes = {("node", frozenset({node}), ()) for node in done.named}
    return done


def many(fabric: Fabric, nodes: tuple[str, ...], draw: random.Random) -> float:
    """A run over many nodes, in a ring."""
    rings = zip(nodes, (*nodes[1:], nodes[0]), strict=True)
    return noisy(min(fabric.busbw(pair, range(RAILS)) for pair in rings), draw) or 0.0


Break = Callable[[Fabric, random.Random], None]


def nodes_slow(count: int, factor: float = 0.8) -> Break:
    """Nodes that are slow on all rails."""
    return lambda fabric, draw: fabric.nodes.update(
        dict.fromkeys(draw.sample(list(fabric.places), count), factor)
    )


def rails_slow(count: int) -> Break:
    """One rail each of some nodes."""
    return lambda fabric, draw: fabric.rails.update(
        {(node, draw.randrange(RAILS)): 0.8 for node in draw.sample(list(fabric.places), count)}
    )


def alone_slow(fabric: Fabric, draw: random.Random) -> None:
    """One node slow inside; its NVLink is not what limits its pairs."""
    fabric.alone[draw.choice(list(fabric.places))] = 0.8


def leaf_slow(fabric: Fabric, draw: random.Random) -> None:
    """One leaf switch: a rail of a whole group."""
    fabric.leaves[draw.choice(list(fabric.places.values())), draw.randrange(RAILS)] = 0.8


def uplink_slow(fabric: Fabric, draw: random.Random) -> None:
    """The uplinks of one group."""
    fabric.uplinks[draw.choice(list(fabric.places.values()))] = 0.8


SCENARIOS: Mapping[str, Break] = {
    "none": lambda fabric, draw: None,
    "1 node": nodes_slow(1),
    "5 nodes": nodes_slow(5),
    "1 rail": rails_slow(1),
    "3 rails": rails_slow(3),
    "1 leaf": leaf_slow,
    "1 uplink": uplink_slow,
    "1 NVLink": alone_slow,
    "5 nodes, 15 %": nodes_slow(5, 0.85),
    "1 node, 15 %": nodes_slow(1, 0.85),
    "1 node, 10 %": nodes_slow(1, 0.9),
}
METHODS = {"busbar": staged, "all pairs": all_pairs, "halving": halving}


def row(method: str, size: int, scenario: str, trials: int, expected: Mapping[Kind, float]) -> str:
    """One line of the table."""
    per_group = GROUP_SIZES.get(size, 32)
    right = found = sought = named = healthy = 0
    walls: list[float] = []
    used = rounds = 0.0
    for trial in range(trials):
        draw = random.Random(f"{size} {scenario} {trial}")
        fabric = Fabric({f"n{i:04}": f"g{i // per_group:03}" for i in range(size)})
        SCENARIOS[scenario](fabric, draw)
        done = METHODS[method](fabric, draw, expected)
        bad = {*fabric.nodes, *fabric.alone, *(node for node, _ in fabric.rails)}
        right += done.causes == fabric.causes()
        found, sought = found + len(bad & done.named), sought + len(bad)
        named, healthy = named + len(done.named - bad), healthy + size - len(bad)
        used, rounds = used + done.used, rounds + done.rounds
        walls.append(done.wall / 60)
    nodes = f"{found / sought:.1%}" if sought else "-"
    return (
        f"{size:>5}  {scenario:<14} {method:<10} {trials:>6} {right / trials:>7.1%} {nodes:>7} "
        f"{named / healthy:>8.3%} {rounds / trials:>6.1f} {sum(walls) / trials:>6.1f} "
        f"{max(walls):>6.1f} {used / trials / size / 60:>6.1f}"
    )


def trials_of(method: str, size: int, most: int) -> int:
    """Fewer where they take long; 0 where they take too long."""
    most = min(most, MOST_TRIALS.get(size, most))
    return min(most, MOST_RESULTS // (size * size // 2)) if method == "all pairs" else most


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--nodes", default="8,64,440,4096")
    parser.add_argument("--unknown", action="store_true", help="nothing is expected: upper quartiles count")
    given = parser.parse_args()
    expected = {} if given.unknown else EXPECTED
    print("nodes  slow           method     trials   cause   nodes  healthy rounds   wall    max   used")
    print("                                          right   found    named          min    min  min/node")
    for size in map(int, given.nodes.split(",")):
        for scenario in SCENARIOS:
            for method in METHODS:
                if trials := trials_of(method, size, given.trials):
                    began = time.monotonic()
                    text = row(method, size, scenario, trials, expected)
                    print(f"{text}   ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
