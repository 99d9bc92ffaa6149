"""What is named, and what is not."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.fabric.localise import Group, Known, plan, score
from tests.unit.fabric.localise.fabric import EXPECTED, RAILS, Fabric, Luck, named

sizes = st.lists(st.integers(2, 9), min_size=1, max_size=6)
seeds = st.integers(0, 1000)


def within(seed: int, most: float) -> Luck:
    draw = random.Random(seed)
    return lambda group: draw.uniform(1 - most, 1 + most)


@given(sizes, seeds, st.booleans())
def test_nothing_is_named_where_nothing_is_slow(groups: list[int], seed: int, known: bool) -> None:
    fabric = Fabric.of(*groups)
    # 0.96 of the slowest upper quartile is above 0.9 of the fastest one
    found = fabric.diagnose(luck=within(seed, 0.04), seed=seed, expected=EXPECTED if known else {})
    assert found.suspects == ()
    assert set(found.healthy) == set(fabric.names) or not known


@given(st.lists(st.integers(4, 9), min_size=2, max_size=6), seeds, st.data())
@settings(max_examples=60)
def test_slow_nodes_are_named_and_only_they(groups: list[int], seed: int, data: st.DataObject) -> None:
    fabric = Fabric.of(*groups)
    slow = data.draw(st.sets(st.sampled_from(fabric.names), max_size=len(fabric.names) // 4))
    fabric.nodes |= dict.fromkeys(sorted(slow), 0.8)
    found = fabric.diagnose(luck=within(seed, 0.05), seed=seed)
    assert {(s.cause, s.nodes) for s in found.suspects} == {("node", (node,)) for node in slow}


@given(sizes, seeds, st.randoms(use_true_random=False))
@settings(max_examples=15)
def test_other_names_change_nothing_else(groups: list[int], seed: int, shuffle: random.Random) -> None:
    fabric = Fabric.of(*groups)
    numbers = shuffle.sample(range(1000), len(fabric.names) + len(groups))
    names = [*fabric.names, *dict.fromkeys(fabric.places.values())]
    new = {old: f"x{number}" for old, number in zip(names, numbers, strict=True)}
    renamed = Fabric({new[node]: new[place] for node, place in fabric.places.items()})
    for node in shuffle.sample(fabric.names, len(fabric.names) // 3):
        fabric.rails[node, 1] = renamed.rails[new[node], 1] = 0.7
    place = shuffle.choice(list(fabric.places.values()))
    fabric.uplinks[place] = renamed.uplinks[new[place]] = 0.7
    found, again = (each.diagnose(luck=within(seed, 0.08), seed=seed) for each in (fabric, renamed))
    told = [(cause, tuple(new[name] for name in names), rails) for cause, names, rails in named(found)]
    assert (told, [new[node] for node in found.healthy]) == (named(again), [*again.healthy])


def test_nodes_that_only_runs_across_slow_uplinks_are_left_for_do_not_run_for_ever() -> None:
    fabric = Fabric.of(4, 9)
    fabric.uplinks["su1"] = 0.7
    for node in ("su0-2", "su0-3", "su1-0", "su1-3"):
        fabric.rails[node, 1] = 0.7
    known = fabric.known_after("B", luck=within(511, 0.08), seed=511)
    ran = Counter(node for group in known.results if group.stage == "B" for node in group.nodes)
    assert max(ran.values()) < 60


LEAF = {"leaves": {("su1", 3): 0.7}}
RAILS_OF_NODES = {"rails": {("su0-0", 1): 0.7, ("su0-1", 1): 0.7, ("su0-2", 6): 0.7}}
MOST_ALONE = {"alone": {f"su{su}-{number}": 0.7 for su in (0, 1) for number in range(5)}}
INSIDE = {kind: busbw for kind, busbw in EXPECTED.items() if "cross" not in kind}


def uplinks(share: float, *groups: int) -> dict[str, Any]:
    return {"uplinks": {f"su{number}": share for number in groups}}


@pytest.mark.parametrize(
    ("sizes", "slow", "how", "found"),
    [
        ((8, 8), {"rails": {("su1-2", 5): 0.7}}, {}, ["rail su1-2 5"]),
        ((1, 8), {"rails": {("su0-0", 5): 0.7}}, {}, ["rail su0-0 5"]),
        ((4, 8), RAILS_OF_NODES, {}, ["rail su0-0 1", "rail su0-1 1", "rail su0-2 6"]),
        ((8, 8, 8), LEAF, {}, ["leaf su1 3"]),
        ((8, 8, 8, 8), LEAF, {"expected": {}}, ["leaf su1 3"]),
        ((8, 8, 8), LEAF | {"nodes": {"su1-4": 0.5}}, {}, ["leaf su1 3", "node su1-4"]),
        ((8, 8, 8), LEAF, {"rails": 0}, ["leaf su1"]),
        ((8, 8, 8, 8), uplinks(0.7, 2), {}, ["uplink su2"]),
        # Two groups that meet only each other cannot be told apart.
        ((8, 8), uplinks(0.7, 0), {}, ["uplink su0 su1"]),
        ((8, 8, 8, 8), uplinks(0.7, 0, 1, 2, 3), {}, ["uplink"]),
        ((8, 8, 8, 8), uplinks(0.5, 0, 1, 2, 3), {"expected": INSIDE}, []),
        ((8, 8), {"alone": {"su0-4": 0.7}}, {}, ["nvlink su0-4"]),
        ((8, 8), {"alone": {"su0-4": 0.7}, "nodes": {"su0-4": 0.7}}, {}, ["nvlink su0-4"]),
        ((8, 8), MOST_ALONE, {}, ["settings"]),
        ((2,), {"nodes": {"su0-1": 0.6}}, {}, ["node su0-0 su0-1"]),
        # The one node is slow by its peers alone; the runs of the other one give nothing.
        ((8,), {"nodes": {"su0-1": 0.8}}, {"expected": {}}, ["node su0-1"]),
        ((6, 6), {}, {"luck": lambda group: None if "su0-0" in group.nodes else 1.0}, ["nvlink su0-0"]),
    ],
)
def test_what_is_slow_is_named_and_nothing_else(
    sizes: tuple[int, ...], slow: dict[str, Any], how: dict[str, Any], found: list[str]
) -> None:
    fabric = Fabric.of(*sizes)
    for what, shares in slow.items():
        getattr(fabric, what).update(shares)
    judged = fabric.diagnose(**how)
    told = [" ".join([cause, *sorted(names), *map(str, rails)]) for cause, names, rails in named(judged)]
    assert sorted(told) == found
    assert not {node for suspect in judged.suspects for node in suspect.nodes} & {*judged.healthy}


def test_pairs_of_a_node_that_is_asked_again_say_nothing_of_uplinks() -> None:
    places = dict.fromkeys("abcd", "su0") | dict.fromkeys("xy", "su1")
    results: dict[Group, float | None] = {
        **{Group("A", n, "in_group", tuple(pair)): 400.0 for n, pair in enumerate(("bc", "cd", "xy"))},
        Group("A", 3, "in_group", ("a", "d")): 200.0,
        Group("B", 0, "in_group", ("a", "b")): 400.0,
        **{Group("B", n, "cross_group", ("a", other)): 200.0 for n, other in enumerate("xy", 1)},
    }
    assert named(score(Known(results, EXPECTED), places)) == [("node", ("a",), ())]


@pytest.mark.parametrize("count", [3, 12, 40])
def test_where_every_pair_is_slow_it_is_the_settings_and_no_node_is_named(count: int) -> None:
    fabric = Fabric.of(count)
    fabric.nodes |= dict.fromkeys(fabric.names, 0.6)
    found = fabric.diagnose()
    assert named(found) == [("settings", (), ())]
    assert found.healthy == ()


def test_without_anything_to_compare_with_nothing_is_named_and_nothing_is_healthy() -> None:
    fabric = Fabric.of(2)
    fabric.nodes["su0-1"] = 0.6
    found = fabric.diagnose(expected={})
    assert found.suspects == ()
    assert set(found.undecided) == set(fabric.names)
    assert found.healthy == ()


def unlucky_in(run: Group, share: float | None) -> Luck:
    return lambda group: share if group == run else 1.0


@pytest.mark.parametrize("share", [0.5, None])
def test_one_run_that_dips_or_gives_nothing_names_nobody(share: float | None) -> None:
    fabric = Fabric.of(6, 6)
    for unlucky in plan("A", fabric.names, fabric.places):
        found = fabric.diagnose(luck=unlucky_in(unlucky, share))
        assert found.suspects == ()
        assert set(found.healthy) == set(fabric.names)


def test_the_median_of_healthy_partners_decides_and_of_two_the_better_one() -> None:
    pairs = [Group("A", 1, "in_group", ("a", "b")), Group("A", 2, "in_group", ("c", "d"))]
    runs = [Group("B", number, "in_group", ("a", partner)) for number, partner in enumerate("cde")]
    known = {pairs[0]: 200.0, pairs[1]: 400.0, Group("A", 3, "in_group", ("d", "e")): 400.0}
    cases: list[tuple[list[float], list[str]]] = [
        ([200, 200, 400], ["a"]), ([200, 400, 400], []), ([200, 400], []), ([200, 200], ["a"]),
    ]  # fmt: skip
    for values, confirmed in cases:
        results = {**known, **dict(zip(runs, values, strict=False))}
        assert list(score(Known(results, EXPECTED), {}).confirmed) == confirmed


def test_a_node_with_good_pairs_is_slow_alone_after_four_runs() -> None:
    good = {Group("A", n, "in_group", pair): 400.0 for n, pair in enumerate((("a", "b"), ("c", "d")))}
    good |= {Group("A", 0, "node", (node,)): 480.0 for node in "bcd"}
    for runs, slow in ((3, []), (4, [("nvlink", ("a",))])):
        alone = {Group("B", number, "node", ("a",)): 240.0 for number in range(runs)}
        found = score(Known({**good, **alone}, EXPECTED), {})
        assert [(each.cause, each.nodes) for each in found.suspects] == slow


def test_after_the_first_stage_those_without_a_good_pair_are_undecided() -> None:
    fabric = Fabric.of(8, 8)
    fabric.nodes["su0-3"] = 0.5
    found = score(fabric.known_after("A"), fabric.places)
    assert found.undecided == ("su0-3",) == found.suspects[0].nodes
    assert found.confirmed == ()


def test_a_node_far_slower_than_its_slow_rail_is_named_itself() -> None:
    """Few CPUs: over all rails a tenth of what is expected, over one of them 0.8."""
    fabric = Fabric.of(4)
    fabric.nodes["su0-1"] = 0.1
    of_rails = {"su0-1": {0: 10.0, 1: 8.0}}

    def luck(group: Group) -> float | None:
        return of_rails.get(group.nodes[0], {}).get(group.rail, 10.0) if group.rail is not None else 1.0

    assert named(fabric.diagnose(luck=luck)) == [("node", ("su0-1",), ())]


@pytest.mark.parametrize("once", [2, RAILS + 2])
def test_a_rail_that_was_slow_once_is_not_named(once: int) -> None:
    fabric = Fabric.of(8, 8)
    fabric.nodes["su0-3"] = 0.85
    found = fabric.diagnose(
        luck=lambda g: 0.5 if g.rail == 2 and g.round == once else (1.2 if g.rail is not None else 1.0)
    )
    assert named(found) == [("node", ("su0-3",), ())]
