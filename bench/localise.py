"""How often busbar.fabric.localise finds what is slow, on simulated fabrics.

Results have noise of 3 % (`--noise`); 1 % of the runs dip to 40 to 90 %, and 0.5 % give nothing. Slow parts
are 20 % slow where the row does not say otherwise. Times are a model, without the start of the jobs: a pair
runs 36 s, one rail 22.5 s (439 rounds of all pairs of 440 nodes in 263 minutes; 21 rounds with 16 of single
rails in 9), a node alone 20 s (assumed); 256 groups at the same time.

    python bench/localise.py [--trials 300] [--nodes 8,64,440,4096] [--noise 3,5] [--slow 10]
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from busbar.fabric.localise import Group, Kind, Known, plan, score
from tests.unit.fabric.localise.fabric import EXPECTED, RAILS, STAGES, Fabric

PARALLEL = 256
SECONDS: Mapping[Kind, float] = {
    "node": 20, "in_group": 36, "cross_group": 36, "rail_in_group": 22.5, "rail_cross_group": 22.5,
}  # fmt: skip
GROUP_SIZES = {8: 4, 64: 16}
MOST_TRIALS = {4096: 100}

Cause = tuple[str, frozenset[str], tuple[int, ...]]


def causes(fabric: Fabric) -> set[Cause]:
    """The parts that should be named."""
    return {
        *(("node", frozenset({node}), ()) for node in fabric.nodes),
        *(("nvlink", frozenset({node}), ()) for node in fabric.alone),
        *(("rail", frozenset({node}), (rail,)) for node, rail in fabric.rails),
        *(("leaf", frozenset({place}), (rail,)) for place, rail in fabric.leaves),
        *(("uplink", frozenset({place}), ()) for place in fabric.uplinks),
    }


@dataclass
class Outcome:
    """What was named, and what it took: seconds of wall time, seconds of all nodes together, rounds."""

    causes: set[Cause] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    wall: float = 0.0
    used: float = 0.0
    rounds: int = 0
    jobs: int = 0

    def spend(self, seconds: float, groups: int, nodes: int) -> None:
        """Account for a round."""
        self.wall += math.ceil(groups / PARALLEL) * seconds
        self.used += seconds * nodes
        self.rounds += 1


def noisy(busbw: float, draw: random.Random, noise: float) -> float | None:
    """A result as it is measured."""
    luck = draw.random()
    if luck < 0.005:
        return None
    dip = draw.uniform(0.4, 0.9) if luck < 0.015 else 1.0
    return busbw * dip * draw.gauss(1.0, noise)


def staged(fabric: Fabric, draw: random.Random, noise: float) -> Outcome:
    """The plan of busbar.fabric.localise."""
    done, nodes = Outcome(), list(fabric.places)
    results: dict[Group, float | None] = {}
    for stage in STAGES:
        seed = draw.getrandbits(32)
        while groups := plan(stage, nodes, fabric.places, Known(results, EXPECTED), rails=RAILS, seed=seed):
            results |= {group: noisy(fabric.busbw(group), draw, noise) for group in groups}
            done.jobs += 1
            for _, of_round in itertools.groupby(groups, key=lambda group: group.round):
                together = [*of_round]
                seconds = max(SECONDS[group.kind] for group in together)
                done.spend(seconds, len(together), sum(len(group.nodes) for group in together))
    for suspect in score(Known(results, EXPECTED), fabric.places).suspects:
        about = suspect.rail_groups or suspect.nodes
        if suspect.cause == "uplink" and len(about) == 2 == len(set(fabric.places.values())):
            about = tuple(fabric.uplinks) or about  # two groups meet only each other: "one of" is right
        done.causes.add((suspect.cause, frozenset(about), suspect.rails))
        done.named.update(suspect.nodes)
    return done


Break = Callable[[Fabric, random.Random], None]


def nodes_slow(count: int, factor: float = 0.8) -> Break:
    """Nodes that are slow on all rails."""
    return lambda fabric, draw: fabric.nodes.update(
        dict.fromkeys(draw.sample(list(fabric.places), count), factor)
    )


def rails_slow(count: int, factor: float = 0.8) -> Break:
    """One rail each of some nodes."""
    return lambda fabric, draw: fabric.rails.update(
        {(node, draw.randrange(RAILS)): factor for node in draw.sample(list(fabric.places), count)}
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
    "5 nodes, 10 %": nodes_slow(5, 0.9),
    "1 node, 10 %": nodes_slow(1, 0.9),
    "3 rails, 10 %": rails_slow(3, 0.9),
    "1 rail, 10 %": rails_slow(1, 0.9),
}


def row(size: int, scenario: str, trials: int, noise: float) -> str:
    """One line of the table."""
    per_group = GROUP_SIZES.get(size, 32)
    right = found = sought = parts = named = healthy = 0
    walls: list[float] = []
    used = rounds = jobs = 0.0
    for trial in range(trials):
        draw = random.Random(f"{size} {scenario} {trial}")
        fabric = Fabric({f"n{i:04}": f"g{i // per_group:03}" for i in range(size)})
        SCENARIOS[scenario](fabric, draw)
        done = staged(fabric, draw, noise)
        bad = {*fabric.nodes, *fabric.alone, *(node for node, _ in fabric.rails)}
        right += done.causes == causes(fabric)
        parts += len(done.causes & causes(fabric))
        found, sought = found + len(bad & done.named), sought + len(bad)
        named, healthy = named + len(done.named - bad), healthy + size - len(bad)
        used, rounds, jobs = used + done.used, rounds + done.rounds, jobs + done.jobs
        walls.append(done.wall / 60)
    nodes, share = (f"{n / sought:.1%}" if sought else "-" for n in (found, parts))
    return (
        f"{size:>5}  {scenario:<14} {noise:>5.0%} {trials:>6} {right / trials:>7.1%} {nodes:>7} {share:>7} "
        f"{named / healthy:>8.3%} {jobs / trials:>5.1f} {rounds / trials:>6.1f} {sum(walls) / trials:>6.1f} "
        f"{max(walls):>6.1f} {used / trials / size / 60:>6.1f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--nodes", default="8,64,440,4096")
    parser.add_argument("--noise", default="3", help="in per cent")
    parser.add_argument("--slow", default="", help="only rows whose name has this, such as 10")
    given = parser.parse_args()
    print(
        "nodes  slow           noise trials   cause   nodes   parts  healthy  jobs rounds  wall  max   used"
    )
    print(
        "                                     right   found   found    named             min  min  min/node"
    )
    chosen = [name for name in SCENARIOS if given.slow in name]
    cells = itertools.product(map(int, given.nodes.split(",")), map(float, given.noise.split(",")), chosen)
    for size, noise, scenario in cells:
        if size < 8 and scenario[0] in "35":
            continue
        began, trials = time.monotonic(), min(given.trials, MOST_TRIALS.get(size, given.trials))
        text = row(size, scenario, trials, noise / 100)
        print(f"{text}   ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
