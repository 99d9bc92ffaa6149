"""Which nodes and rails are slower than their peers: what is found by chance, and what is left open."""

import pytest

from busbar.fabric.localise import Group, Known, plan, score
from busbar.fabric.localise.peers import MOST_RUNS
from busbar.fabric.localise.score import Scores
from tests.unit.fabric.localise.fabric import EXPECTED, RAILS, Fabric, Luck, named, noise

# Of one seed in 200 the outcome is another one, which no change of a rule decides.
SEEDS = range(8)


@pytest.mark.parametrize("sizes", [(3,), (4,), (4, 4), (16, 16)])
@pytest.mark.parametrize("spread", [0.03, 0.05])
def test_no_healthy_node_is_named(sizes: tuple[int, ...], spread: float) -> None:
    for seed in SEEDS:
        assert named(Fabric.of(*sizes).diagnose(luck=noise(seed, spread), seed=seed)) == []


@pytest.mark.parametrize(("sizes", "rails"), [((3,), 0), ((4,), 0), ((4, 4), 0), ((16, 16), 0), ((4, 4), 8)])
def test_a_node_10_percent_slow_is_named_if_all_its_rails_are(sizes: tuple[int, ...], rails: int) -> None:
    fabric = Fabric.of(*sizes)
    fabric.nodes["su0-1"] = 0.9
    found = [fabric.diagnose(luck=noise(seed, 0.03), seed=seed, rails=rails) for seed in SEEDS]
    assert sum(named(each) == [("node", ("su0-1",), ())] for each in found) >= len(SEEDS) - 1


@pytest.mark.parametrize("rails", [2, 4, 8])
def test_a_rail_10_percent_slow_is_named(rails: int) -> None:
    fabric = Fabric.of(4, 4)
    fabric.rails["su0-1", 1] = 0.9
    found = [fabric.diagnose(luck=noise(seed, 0.03), seed=seed, rails=rails) for seed in SEEDS]
    assert sum(named(each) == [("rail", ("su0-1",), (1,))] for each in found) >= len(SEEDS) - 1


# With these, most runs of a node of the group went across, and the whole group was named.
@pytest.mark.parametrize("seed", [12, 17, 41])
def test_runs_across_slow_uplinks_do_not_count_for_the_nodes_behind_them(seed: int) -> None:
    fabric = Fabric.of(16, 16, 16, 16)
    fabric.uplinks["su0"] = 0.8
    assert named(fabric.diagnose(luck=noise(seed, 0.03), seed=seed)) == [("uplink", ("su0",), ())]


def test_two_slow_nodes_of_eight_do_not_hide_each_other() -> None:
    fabric = Fabric.of(8)
    fabric.nodes |= {"su0-1": 0.9, "su0-4": 0.9}
    for seed in SEEDS:
        found = fabric.diagnose(luck=noise(seed, 0.03), seed=seed, rails=0)
        assert {node for suspect in found.suspects for node in suspect.nodes} == {"su0-1", "su0-4"}


def test_slow_ones_are_found_where_everything_is_slower_than_expected() -> None:
    fabric = Fabric.of(8)
    fabric.nodes |= {node: 0.9 * 0.92 if node == "su0-1" else 0.92 for node in fabric.names}
    found = fabric.diagnose(luck=noise(1, 0.01), rails=0)
    assert named(found) == [("node", ("su0-1",), ())]


def runs_of(fabric: Fabric, luck: Luck) -> dict[str, int]:
    known = fabric.known_after("B", luck=luck)
    pairs = [group for group in known.results if group.stage == "B" and len(group.nodes) == 2]
    return {node: sum(node in group.nodes for group in pairs) for node in fabric.names}


def test_a_wider_spread_has_more_runs() -> None:
    fabric = Fabric.of(8)
    fabric.nodes["su0-1"] = 0.93
    few, many = (runs_of(fabric, noise(3, spread)) for spread in (0.01, 0.06))
    assert set(few.values()) == {7}
    assert max(many.values()) > 7


def unclear_after(fabric: Fabric, luck: Luck) -> Scores:
    """With pairs that are all far above what is expected."""
    known = fabric.known_after("B", luck=luck, expected={kind: busbw / 4 for kind, busbw in EXPECTED.items()})
    assert plan("B", fabric.names, fabric.places, known) == ()
    return score(known, fabric.places)


def test_a_spread_that_is_too_wide_leaves_it_open() -> None:
    fabric = Fabric.of(8)
    fabric.nodes["su0-1"] = 0.97
    found = unclear_after(fabric, noise(1, 0.2))
    assert found.unclear
    assert set(found.unclear.values()) == {0}
    assert found.spread > 0.1
    assert max(runs_of(fabric, noise(1, 0.2)).values()) <= MOST_RUNS


def test_two_nodes_have_no_peers() -> None:
    assert unclear_after(Fabric.of(2), noise(1, 0.01)).unclear == {"su0-0": 0, "su0-1": 0}


def test_where_no_second_run_gives_a_number_it_is_left_open() -> None:
    pairs = (("a", "b"), ("a", "c"))
    first = {Group("A", number, "in_group", pair): 390.0 for number, pair in enumerate(pairs)}
    again = dict.fromkeys([Group("B", number, "in_group", pair) for number, pair in enumerate(pairs)])
    assert score(Known({**first, **again}, EXPECTED), {}).unclear == dict.fromkeys("abc", 0)


def test_results_below_1_gbps_are_too_coarse() -> None:
    """They are printed as 0.05, 0.06: in steps of a fifth."""
    fabric = Fabric.of(4)
    small = {kind: busbw / 8000 for kind, busbw in EXPECTED.items()}
    groups = plan("A", fabric.names, fabric.places)
    results = {group: round((busbw or 0.0) / 8000, 2) for group, busbw in fabric.run(groups).items()}
    known = Known(results, small)
    assert plan("B", fabric.names, fabric.places, known, rails=RAILS) == ()
    assert set(score(known, fabric.places).unclear.values()) == {0}


def test_a_node_that_met_only_slow_ones_is_not_named() -> None:
    places = dict.fromkeys("abcdefgh", "su0")
    slow = [Group("B", n, "in_group", ("a", each)) for n in range(4) for each in "bc"]
    good = [
        Group("B", n, "in_group", pair) for n in range(7) for pair in (("d", "e"), ("f", "g"), ("h", "d"))
    ]
    seen = [Group("B", n, "in_group", (each, other)) for n in range(2) for each in "bc" for other in "dfh"]
    first = {Group("A", 1, "in_group", pair): 400.0 for pair in (("a", "d"), ("e", "f"), ("g", "h"))}
    results = {**first, **dict.fromkeys(good, 400.0), **dict.fromkeys([*slow, *seen], 365.0)}
    suspects = score(Known(results, EXPECTED), places).suspects
    assert {node for suspect in suspects for node in suspect.nodes} == {"b", "c"}
