"""What a group should reach."""

import pytest

from busbar.fabric.localise import Group, Known, Stage, expected_busbw
from busbar.judge.nccl import Expectation


def test_what_is_expected_of_pairs_and_single_rails_comes_from_the_profile() -> None:
    """Nothing is expected of cross pairs, because the uplinks are not known."""
    found = expected_busbw(Expectation(profile="h100-ib-8x400"))
    assert found == {
        "node": pytest.approx(337.5), "in_group": pytest.approx(400.0), "rail_in_group": pytest.approx(50.0)
    }  # fmt: skip


def test_a_pair_inside_a_rack_of_nvlink_tells_nothing_about_single_rails() -> None:
    assert set(expected_busbw(Expectation(profile="gb200-nvl72"))) == {"node", "in_group"}


def test_over_tcp_only_the_node_alone_has_an_expected_value() -> None:
    assert set(expected_busbw(Expectation(profile="a100-noib"))) == {"node"}


def test_a_healthy_pair_at_the_gates_floor_is_good() -> None:
    # NCCL may choose a ring on two H100 nodes, 390 GB/s, where NVLS reaches 481
    system = Expectation(profile="h100-coreweave")
    floor = system.model_copy(update={"nodes": 2}).bounds("all_reduce").floor
    assert floor is not None
    assert 0.9 * expected_busbw(system)["in_group"] == pytest.approx(floor)


def pairs(count: int, stage: Stage = "A") -> list[Group]:
    return [Group(stage, 1, "in_group", (f"a{number}", f"b{number}")) for number in range(count)]


def test_without_an_expected_value_the_upper_quartile_of_the_kind_is_the_reference() -> None:
    groups = pairs(10)
    known = Known(dict(zip(groups, [*range(100, 1000, 100), None], strict=True)))
    assert known.references() == {"in_group": 700.0}
    assert known.shares()[groups[-1]] == 0.0


def test_pairs_that_were_chosen_because_they_are_slow_are_no_reference() -> None:
    known = Known({**dict.fromkeys(pairs(8), 400.0), **dict.fromkeys(pairs(80, "B"), 100.0)})
    assert known.references() == {"in_group": 400.0}
    assert known.shares()[pairs(1, "B")[0]] == 0.25


def test_few_results_are_no_reference() -> None:
    assert Known(dict.fromkeys(pairs(8), 100.0)).references() == {"in_group": 100.0}
    assert Known(dict.fromkeys(pairs(7), 100.0)).shares() == {}


def test_a_group_has_a_name_for_markers_and_knows_the_other_node() -> None:
    group = Group("C", 11, "rail_in_group", ("g1", "g2"), rail=3)
    assert group.name == "C11/rail3/g1/g2"
    assert (group.partner("g1"), group.partner("g2")) == ("g2", "g1")
