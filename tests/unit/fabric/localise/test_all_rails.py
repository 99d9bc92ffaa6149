"""Every rail of every node runs once, and those that may be 10 % slow again. How often that finds one."""

import random
from collections import Counter

import pytest

from busbar.fabric.localise import Known, plan_rails
from busbar.fabric.localise.peers import rails_of_all
from tests.unit.fabric.localise.fabric import EXPECTED, RAILS, Fabric, Luck, exactly, noise

TRIALS = 100


def rails_known(fabric: Fabric, luck: Luck = exactly, seed: int = 0, rails: int = RAILS) -> Known:
    known = Known({}, EXPECTED)
    while groups := plan_rails(fabric.names, fabric.places, known, rails=rails, seed=seed):
        known = Known({**known.results, **fabric.run(groups, luck)}, EXPECTED)
    return known


def slow_rails(known: Known) -> set[tuple[str, int]]:
    return {*rails_of_all(known)[1].slow}


@pytest.mark.parametrize("sizes", [(2,), (3,), (8,), (4, 5), (1, 1, 1)])
def test_every_rail_of_every_node_runs_once_with_a_partner(sizes: tuple[int, ...]) -> None:
    fabric = Fabric.of(*sizes)
    groups = plan_rails(fabric.names, fabric.places, Known({}, EXPECTED), rails=RAILS)
    runs = Counter((group.nodes[0], group.rail) for group in groups)
    assert runs == Counter((node, rail) for node in fabric.names for rail in range(RAILS))


@pytest.mark.parametrize("sizes", [(2,), (3,), (7,), (4, 5), (8, 8)])
def test_no_node_is_in_two_runs_of_a_round(sizes: tuple[int, ...]) -> None:
    known = rails_known(Fabric.of(*sizes), noise("rounds"))
    in_round = Counter((group.round, node) for group in known.results for node in group.nodes)
    assert {*in_round.values()} == {1}


def test_one_node_has_no_run() -> None:
    assert plan_rails(["alone"], {}, Known({}, EXPECTED), rails=RAILS) == ()


def test_where_nothing_is_slow_no_rail_runs_again() -> None:
    fabric = Fabric.of(8)
    assert len(rails_known(fabric).results) == len(fabric.names) * RAILS


@pytest.mark.parametrize("share", [0.9, 0.5, 0.0])
@pytest.mark.parametrize("sizes", [(3,), (4,), (8, 8)])
def test_a_slow_rail_is_named_and_nothing_else(sizes: tuple[int, ...], share: float) -> None:
    fabric = Fabric.of(*sizes)
    fabric.rails["su0-1", 5] = share
    assert slow_rails(rails_known(fabric)) == {("su0-1", 5)}


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_two_rails_of_few_nodes_run_until_they_are_told_apart_from_chance(nodes: int) -> None:
    open_, missed, trials = 0, 0, 20
    for trial in range(trials):
        fabric, luck = Fabric.of(nodes), noise(f"{nodes} {trial}")
        before, again = rails_of_all(rails_known(fabric, luck, trial, rails=2))
        open_ += any(part in again.unclear or part not in again.level for part in before.unclear)
        fabric.rails["su0-0", 1] = 0.9
        missed += ("su0-0", 1) not in slow_rails(rails_known(fabric, luck, trial, rails=2))
    assert (open_ <= 1, missed <= (1 if nodes > 2 else 4)) == (True, True), (open_, missed)


def test_rails_that_two_partners_have_in_common_are_told_apart() -> None:
    fabric = Fabric.of(8)
    fabric.rails |= {("su0-1", 5): 0.9, ("su0-2", 5): 0.9, ("su0-2", 6): 0.8}
    assert slow_rails(rails_known(fabric)) == {*fabric.rails}


def test_of_two_nodes_the_first_one_stands_for_both() -> None:
    fabric = Fabric.of(2)
    fabric.rails["su0-1", 5] = 0.8
    assert slow_rails(rails_known(fabric)) == {("su0-0", 5)}


@pytest.mark.parametrize("size", [8, pytest.param(64, marks=pytest.mark.slow)])
def test_a_rail_that_is_10_percent_slow_is_found_in_90_of_100_clusters(size: int) -> None:
    found = wrong = 0
    trials = TRIALS if size == 8 else 10
    for trial in range(trials):
        fabric, draw = Fabric.of(*[8] * (size // 8)), random.Random(trial)
        slow = draw.choice(fabric.names), draw.randrange(RAILS)
        fabric.rails[slow] = 0.9
        named = slow_rails(rails_known(fabric, noise(f"{size} {trial}"), trial))
        found, wrong = found + (slow in named), wrong + bool(named - {slow})
    assert (found >= 0.9 * trials, wrong <= 0.01 * trials) == (True, True), (found, wrong)
