"""Which groups a stage runs."""

import random
from collections import Counter
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.fabric.localise import Group, Known, plan, score
from busbar.fabric.localise.groups import FEW_NODES
from busbar.fabric.localise.rounds import ROUNDS_ACROSS
from tests.unit.fabric.localise.fabric import EXPECTED, RAILS, Fabric, Luck

sizes = st.lists(st.integers(1, 9), min_size=1, max_size=7)
seeds = st.integers(0, 1000)


def twice_at_the_same_time(groups: Iterable[Group]) -> list[tuple[tuple[int, str], int]]:
    uses = Counter((group.round, node) for group in groups for node in group.nodes)
    return [(place, count) for place, count in uses.items() if count > 1]


def of_kind(groups: Iterable[Group], *kinds: str) -> list[Group]:
    return [group for group in groups if group.kind in kinds]


def by_chance(seed: int, bad: float) -> Luck:
    draw = random.Random(seed)
    return lambda group: draw.choice((None, 0.3, 0.8)) if draw.random() < bad else 1.0


@given(sizes, seeds)
def test_stage_a_runs_every_node_alone_and_in_pairs(groups: list[int], seed: int) -> None:
    fabric = Fabric.of(*groups)
    planned = plan("A", fabric.names, fabric.places, seed=seed)
    assert [group.nodes for group in of_kind(planned, "node")] == [(node,) for node in fabric.names]
    inside = {node for group in of_kind(planned, "in_group") for node in group.nodes}
    assert inside == {node for node, place in fabric.places.items() if groups[int(place[2:])] > 1}
    across = {node for group in of_kind(planned, "cross_group") for node in group.nodes}
    most = max(groups)
    if len(groups) > 1 and most <= ROUNDS_ACROSS * (sum(groups) - most):
        assert across == set(fabric.names)


@given(sizes, seeds, st.floats(0, 0.6))
@settings(max_examples=60)
def test_no_group_of_a_round_shares_a_node_with_another(groups: list[int], seed: int, bad: float) -> None:
    fabric = Fabric.of(*groups)
    known = Known({}, EXPECTED)
    luck = by_chance(seed, bad)
    for stage in ("A", "B", "C"):
        planned = plan(stage, fabric.names, fabric.places, known, rails=RAILS, seed=seed)
        assert twice_at_the_same_time(planned) == []
        assert len({group.name for group in planned}) == len(planned)
        known = Known({**known.results, **fabric.run(planned, luck)}, EXPECTED)


def test_partners_across_are_drawn_over_all_groups() -> None:
    fabric = Fabric.of(*[32] * 14)
    across = of_kind(plan("A", fabric.names, fabric.places), "cross_group")
    met: dict[str, set[str]] = {}
    for group in across:
        one, other = (fabric.places[node] for node in group.nodes)
        met.setdefault(one, set()).add(other)
        met.setdefault(other, set()).add(one)
    assert min(len(others) for others in met.values()) >= 8
    assert len({group.round for group in across}) == 1


def test_a_group_with_nearly_all_nodes_does_not_keep_the_others_busy_for_long() -> None:
    fabric = Fabric.of(100, 1)
    across = of_kind(plan("A", fabric.names, fabric.places), "cross_group")
    assert len({group.round for group in across}) == ROUNDS_ACROSS


def test_the_same_arguments_give_the_same_plan_and_another_seed_another_one() -> None:
    fabric = Fabric.of(8, 8, 8)
    first, again, other = (plan("A", fabric.names, fabric.places, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_when_all_pairs_of_many_nodes_were_good_the_later_stages_are_empty() -> None:
    fabric = Fabric.of(10, 9)
    known = fabric.known_after("A")
    assert [plan(stage, fabric.names, fabric.places, known, rails=RAILS) for stage in ("B", "C")] == [(), ()]


def test_a_node_without_a_good_pair_meets_three_healthy_ones_of_its_own_group() -> None:
    fabric = Fabric.of(8, 8)
    fabric.nodes["su0-3"] = 0.5
    known = fabric.known_after("A")
    asked = [g for g in plan("B", fabric.names, fabric.places, known) if "su0-3" in g.nodes]
    assert [group.kind for group in asked] == ["in_group"] * 3
    partners = {group.partner("su0-3") for group in asked}
    assert len(partners) == 3 and partners <= {*score(known, fabric.places).healthy}


def test_where_the_own_group_has_no_healthy_node_partners_come_from_others() -> None:
    fabric = Fabric.of(4, 16)
    fabric.leaves["su0", 1] = 0.5
    pairs = plan("B", fabric.names, fabric.places, fabric.known_after("A"))
    asked = [group for group in pairs if fabric.places[group.nodes[0]] == "su0"]
    assert {group.kind for group in asked} == {"cross_group"}
    assert Counter(group.nodes[0] for group in asked) == dict.fromkeys(fabric.names[:4], 3)


def test_few_nodes_without_any_good_pair_meet_those_that_they_have_not_met() -> None:
    fabric = Fabric.of(4)
    tried = [("su0-0", "su0-2"), ("su0-1", "su0-3")]
    known = Known({Group("A", 1, "in_group", pair): 200.0 for pair in tried}, EXPECTED)
    met = {frozenset(group.nodes) for group in plan("B", fabric.names, fabric.places, known)}
    assert len(met) == 4
    assert frozenset(("su0-2", "su0-3")) in met


def test_two_nodes_or_many_whose_pairs_are_all_slow_do_not_meet_again() -> None:
    for count in (2, FEW_NODES + 1):
        fabric = Fabric.of(count)
        fabric.nodes |= dict.fromkeys(fabric.names, 0.5)
        assert plan("B", fabric.names, fabric.places, fabric.known_after("A")) == ()


def test_stage_c_tries_one_rail_at_a_time_twice_with_two_partners() -> None:
    fabric = Fabric.of(8, 8)
    fabric.rails["su1-2", 5] = 0.5
    groups = plan("C", fabric.names, fabric.places, fabric.known_after("B"), rails=RAILS)
    assert [(group.round, group.rail) for group in groups] == [(n, n % RAILS) for n in range(2 * RAILS)]
    assert {group.nodes[0] for group in groups} == {"su1-2"}
    assert len({group.nodes[1] for group in groups}) == 2
    assert {group.kind for group in groups} == {"rail_in_group"}


def test_stage_c_is_left_out_where_slow_nodes_outnumber_their_partners() -> None:
    fabric = Fabric.of(8)
    fabric.nodes |= dict.fromkeys(fabric.names[:5], 0.5)
    known = fabric.known_after("B")
    assert len(score(known, fabric.places).confirmed) == 5
    assert plan("C", fabric.names, fabric.places, known, rails=RAILS) == ()


def test_a_node_that_was_left_out_of_a_stage_is_in_no_group_of_it() -> None:
    fabric = Fabric.of(8, 8)
    fabric.nodes["su0-3"] = 0.5
    known = fabric.known_after("A")
    without = [node for node in fabric.names if node not in ("su0-0", "su0-3")]
    assert all(not {"su0-0", "su0-3"} & set(g.nodes) for g in plan("B", without, fabric.places, known))
