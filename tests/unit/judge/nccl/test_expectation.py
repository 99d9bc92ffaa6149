"""The computed floor and ceiling hold every healthy public figure, and refuse the failures that are known."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from busbar.judge.nccl import Expectation
from busbar.judge.nccl.expected import profiles
from busbar.judge.nccl.expected.bounds import (
    NO_SYSTEM,
    Bounds,
    PublishedResult,
    bounds,
    comparable,
    published_results,
    size_class,
    tree_of_two,
)
from busbar.judge.nccl.expected.system import NVLINK, NVLS, System
from busbar.judge.nccl.log.tables import COLLECTIVES

ALGORITHMS = ("ring", "tree", "nvls", "sharp", "auto")
# every N up to two racks, the borders of racks behind them, powers of two, and the last
SIZES = sorted(
    {*range(1, 38), *(18 * k + d for k in (3, 8, 57, 200) for d in (-1, 0, 1)), 64, 256, 1024, 4096}
)
# These results were published of systems that were not as they should be: busbw between two hosts of 8 GPUs.
FAILURES = [
    (System("H100", 2, 8, 8, 400, NVLINK["H100"]), "ring", 196.51),  # half of line rate: kube-nccl-test
    (System("A100", 2, 8, 8, 200, NVLINK["A100"]), "ring", 3.09),  # TCP in place of 8 rails, on Azure AKS
    (System("H200", 2, 8, 8, 400, NVLINK["H200"]), "auto", 88.9),  # reported as degraded
    # healthy with NCCL 2.9.9 in 2021; the same machines reached 78.33 three years later
    (System("A100", 2, 8, 4, 100, NVLINK["A100"]), "auto", 43.8),
]


def test_no_healthy_public_figure_fails_and_every_tuned_one_passes() -> None:
    for reference in published_results():
        found = bounds(reference.system(), reference.collective, reference.algorithm)
        if found.floor is None or found.low is None:
            assert reference.collective == "sendrecv", reference
            continue
        least = found.floor if reference.tuned else found.low
        assert least <= reference.busbw <= (found.ceiling or 0), (reference, found.reasoning)


@pytest.mark.parametrize(("system", "algorithm", "busbw"), FAILURES)
def test_every_known_failure_lies_below_the_floor(system: System, algorithm: str, busbw: float) -> None:
    low = bounds(system, "all_reduce", algorithm).low
    assert low is not None and busbw < low


def sane(found: Bounds) -> bool:
    """Whether the bounds can be met, or nothing is expected at all."""
    if found.expected is None or found.floor is None:
        return (found.expected, found.floor) == (None, None)
    return 0 < (found.low or 0) <= found.floor < found.expected <= (found.ceiling or found.expected)


@pytest.mark.parametrize("profile", profiles.names())
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_a_profile_expects_can_be_met_and_more_nvlink_domains_never_expect_more(
    profile: str, algorithm: str
) -> None:
    for collective in COLLECTIVES:
        systems = (Expectation(profile=profile, nodes=nodes).system for nodes in SIZES)
        found = [(system, bounds(system, collective, algorithm)) for system in systems if system is not None]
        assert len(found) == len(SIZES) and all(sane(each) for _, each in found), (collective, found)
        values = [(b.expected, s.domains) for s, b in found if s.domains > 1 and b.expected is not None]
        assert values == sorted(values, key=lambda value: (-value[0], value[1])), (collective, values)


def test_a_ring_is_never_expected_to_exceed_line_rate_between_hosts() -> None:
    for gpus, rails, rate in product((4, 8), (4, 8), (200.0, 400.0)):
        for gpu, nodes in product(NVLINK, (2, 3, 16)):
            system = System(gpu, nodes, gpus, rails, rate, NVLINK[gpu])
            assert (bounds(system, "all_reduce", "ring").expected or 0) <= system.line_rate, system


@settings(max_examples=100)
@given(
    st.builds(
        System,
        gpu=st.sampled_from([*NVLINK, "MI300X", "A40", ""]),
        nodes=st.integers(1, 4096),
        gpus_per_node=st.integers(1, 16),
        rails=st.integers(0, 64),
        rate_gbps=st.sampled_from([0.0, 1.0, 25.0, 100.0, 200.0, 400.0, 800.0]),
        nvlink_gbps=st.sampled_from([0.0, 50.0, 150.0, 300.0, 450.0, 900.0, 1800.0]),
        nodes_per_domain=st.sampled_from([1, 2, 4, 16, 18, 36]),
    ),
    st.sampled_from([*COLLECTIVES]),
    st.sampled_from(ALGORITHMS),
)
def test_what_is_expected_of_any_system_can_be_met(system: System, collective: str, algorithm: str) -> None:
    found = bounds(system, collective, algorithm)
    assert sane(found), found


@pytest.mark.parametrize("gpu", NVLS)
def test_nvls_raises_all_reduce_only(gpu: str) -> None:
    one = System(gpu, 1, 8, 8, 400, NVLINK[gpu])
    for collective in [*COLLECTIVES][1:]:
        assert bounds(one, collective, "nvls").expected == bounds(one, collective, "ring").expected


@pytest.mark.parametrize("hosts", [1, 2])
def test_gpus_without_nvls_are_held_against_a_ring(hosts: int) -> None:
    a100 = System("A100", hosts, 8, 8, 200, NVLINK["A100"])
    assert bounds(a100, "all_reduce", "nvls").floor == bounds(a100, "all_reduce", "ring").floor


def off(r: PublishedResult) -> bool:
    """Whether R is more than 10 % away from what is expected of its system."""
    expected = bounds(r.system(), r.collective, r.algorithm).expected
    return expected is None or abs(r.busbw - expected) > 0.1 * expected


def test_a_public_figure_is_within_10_percent_of_what_is_expected_or_says_why_not() -> None:
    odd = [r for r in published_results() if off(r)]
    assert [r for r in odd if not r.reason] == []
    assert {r.reason for r in published_results()} - {""} == {r.reason for r in odd}


@settings(max_examples=60)
@given(st.sampled_from(published_results()), st.integers(1, 64))
def test_half_of_what_a_healthy_system_reaches_fails_at_every_size_of_its_class(
    reference: PublishedResult, domains: int
) -> None:
    measured = reference.system()
    if size_class(domains) != size_class(reference.nodes) or reference.collective == "sendrecv":
        domains = reference.nodes
    system = replace(measured, nodes=domains * measured.nodes_per_domain)
    low = bounds(system, reference.collective, reference.algorithm).low
    assert reference.collective == "sendrecv" or (low is not None and reference.busbw / 2 < low)


@pytest.mark.parametrize("racks", [3, 8])
def test_what_a_larger_system_reached_is_expected_of_a_smaller_one(racks: int) -> None:
    found = Expectation(profile="gb200-multirack", nodes=18 * racks).bounds("all_reduce")
    assert (found.expected, found.evidence) == (404.77, "same system")
    assert any(line.startswith("expected from 404.77 GB/s on 20 racks") for line in found.reasoning)


def test_a_result_of_other_rails_with_the_same_line_rate_fails_nothing_that_it_does_not_have_to() -> None:
    """Two hosts of H100 over RoCE with 8 x 400 Gb/s reached 430 GB/s (NVIDIA/nccl#1221)."""
    found = bounds(System("H100", 2, 8, 8, 400, 450), "all_reduce", "nvls")
    assert found.evidence == "same class" and found.low is not None and found.low < 430


def test_a_system_of_which_nothing_is_published_is_computed_and_said_to_be() -> None:
    found = bounds(System("V100", 4, 8, 4, 100, 150), "all_reduce", "ring")
    assert (found.evidence, found.expected) == ("none", pytest.approx(50 / 1.2))
    assert any(NO_SYSTEM in line for line in found.reasoning)


@pytest.mark.parametrize(
    ("gpu", "nodes", "per_node", "expected"),
    [
        ("H100", 1, 8, 481.0),
        ("H100", 1, 4, 337.5),
        ("H200", 2, 8, 481.0),
        ("B200", 2, 8, 719.7),
        ("A100", 1, 8, 225.0),
    ],
)
def test_nccls_own_choice_is_nvls_where_an_nvswitch_reduces(
    gpu: str, nodes: int, per_node: int, expected: float
) -> None:
    system = System(gpu, nodes, per_node, 8, 400, NVLINK[gpu])
    assert bounds(system, "all_reduce", "auto").expected == expected


@pytest.mark.parametrize("nodes", [19, 32, 36])
def test_two_racks_are_judged_by_what_racks_were_seen_to_reach(nodes: int) -> None:
    found = Expectation(profile="gb200-multirack", nodes=nodes).bounds("all_reduce")
    assert found.expected == 810.41 and found.ceiling is not None and found.ceiling > 900
    assert Expectation(profile="gb200-multirack", nodes=nodes).bounds("all_gather").floor is None


def test_racks_of_few_hosts_are_not_expected_to_exceed_what_their_rails_carry() -> None:
    racks = System("GB200", 4, 4, 4, 400, 900, nodes_per_domain=2)
    assert racks.line_rate == 400
    assert bounds(racks, "all_reduce", "auto").expected == tree_of_two(racks) < 810


H100 = System("H100", 2, 8, 8, 400, 450)


def test_gpus_without_nvlink_have_no_reduction_in_an_nvswitch() -> None:
    assert H100.nvls == 481.0
    assert replace(H100, nvlink_gbps=0).nvls is None


@pytest.mark.parametrize(
    ("nodes", "collective", "algorithm", "floor", "ceiling"),
    [
        (2, "all_reduce", "ring", 360.0, 540.0),
        (4, "all_reduce", "ring", 349.4, 408.0),
        (8, "all_reduce", "auto", 347.0, 408.0),
        (2, "all_reduce", "nvls", 432.9, 540.0),
        (4, "all_reduce", "tree", 172.8, 408.0),
        (8, "all_reduce", "sharp", 347.0, 540.0),
        (1, "all_reduce", "nvls", 432.9, 540.0),
        (1, "all_reduce", "ring", 303.75, 540.0),
        # At best B(n-1)/n x N/(N-1); below, a large ring's share of B.
        # More than NVLink and a rail carry into a GPU is not credible.
        (4, "all_gather", "auto", 300, 500),
        (8, "reduce_scatter", "auto", 300, 400 * 63 / 64 * 8 / 7),
        (2, "all_gather", "auto", 300, 500),
        # At most B.
        (2, "broadcast", "auto", 360, 408),
        (8, "reduce", "auto", 300, 408),
        # The rail of a GPU, for what leaves its node.
        (2, "alltoall", "auto", 0.9 * 50 / 1.2 * 15 / 8, 1.02 * 50 * 15 / 8),
        (8, "alltoall", "auto", 0.9 * 50 / 1.2 * 63 / 56, 1.02 * 50 * 63 / 56),
        (1, "alltoall", "auto", 0.9 * 337.5, 450),
    ],
)
def test_bounds_of_eight_h100_with_eight_rails(
    nodes: int, collective: str, algorithm: str, floor: float, ceiling: float
) -> None:
    found = bounds(replace(H100, nodes=nodes), collective, algorithm)
    assert (found.floor, found.ceiling) == (pytest.approx(floor, abs=0.1), pytest.approx(ceiling, abs=0.1))


@pytest.mark.parametrize(
    ("name", "least", "refused"),
    [
        ("nodes", 1, 0),
        ("rails", 0, -1),
        ("step_factor", 2, 1),
        ("expected_busbw_gbps", 0.001, 0),
        ("tolerance", 0, -0.1),
        ("tolerance", 0.999, 1),
    ],
)
def test_an_expectation_that_nothing_can_meet_is_refused(name: str, least: float, refused: float) -> None:
    assert getattr(Expectation.model_validate({name: least}), name) == least
    with pytest.raises(ValidationError, match=name):
        Expectation.model_validate({name: refused})


def test_a_configured_value_is_that_of_the_first_collective_and_others_have_their_own() -> None:
    both: dict[str, Any] = {"collectives": ["all_reduce", "all_gather"], "expected_busbw_gbps": 450}
    want = Expectation(profile="h100-ib-8x400", nodes=2, **both)
    found = want.bounds("all_reduce")
    assert (found.expected, found.floor) == (450, 405)
    assert found.reasoning[-1] == "expected 450 GB/s, configured; floor 0.9 x = 405 GB/s"
    assert want.bounds("all_gather") == Expectation(profile="h100-ib-8x400", nodes=2).bounds("all_gather")
    own = Expectation(profile="h100-ib-8x400", nodes=2, expected_by_collective={"all_gather": 200}, **both)
    assert [own.bounds(name).expected for name in ("all_reduce", "all_gather")] == [450, 200]
    whichever = Expectation(profile="h100-ib-8x400", nodes=2, expected_busbw_gbps=450)
    assert whichever.bounds("all_gather").expected == 450
    # nor is a computed ceiling kept that lies below it
    four = Expectation(profile="h100-ib-8x400", nodes=4)
    assert four.bounds("all_reduce").ceiling == pytest.approx(408)
    assert four.model_copy(update={"expected_busbw_gbps": 450.0}).bounds("all_reduce").ceiling is None


@pytest.mark.parametrize(("nodes", "hosts"), [(18, 18), (19, 9), (35, 17), (36, 18), (53, 17), (54, 18)])
def test_of_racks_that_are_not_filled_evenly_the_smallest_gives_the_line_rate(nodes: int, hosts: int) -> None:
    system = System("GB200", nodes, 4, 4, 400, 900, nodes_per_domain=18)
    assert (system.hosts_per_domain, system.gpus_per_domain) == (hosts, 4 * hosts)
    assert system.domains == -(-nodes // 18)
    assert system.line_rate == 200 * hosts


RACKS = System("GB200", 36, 4, 4, 400, 900, nodes_per_domain=18)


@pytest.mark.parametrize(
    ("system", "algorithm", "changes"),
    [
        *((H100, "ring", {"rate_gbps": rate}) for rate in (399, 401)),
        (H100, "ring", {"rails": 4}),
        (RACKS, "auto", {"rails": 2}),
    ],
)
def test_a_public_figure_of_another_line_rate_is_not_comparable(
    system: System, algorithm: str, changes: dict[str, Any]
) -> None:
    assert comparable(system, "all_reduce", algorithm)[0]
    assert comparable(replace(system, **changes), "all_reduce", algorithm)[0] == []


@pytest.mark.parametrize(
    ("system", "collective", "ceiling"),
    [
        # GPUs that share a rail share its rate
        (System("A100", 2, 8, 4, 100, 300), "alltoall", 1.02 * 6.25 * 15 / 8),
        (System("A100", 64, 8, 8, 200, 300), "all_gather", 1.02 * 200),
        (System("H100", 2, 8, 0, 0, 450), "all_reduce", None),
    ],
)
def test_nothing_exceeds_what_the_rails_carry(system: System, collective: str, ceiling: float | None) -> None:
    found = bounds(system, collective, "ring")
    assert found.ceiling == (ceiling and pytest.approx(ceiling))
    assert ceiling or "not known" in found.reasoning[-1]


def test_two_ranks_are_enough_for_an_expectation_and_one_is_not() -> None:
    two, one = (bounds(System("H100", 1, gpus, 8, 400, 450), "all_reduce", "ring") for gpus in (2, 1))
    assert two.expected is not None
    assert (one.expected, one.ceiling, one.reasoning) == (None, None, ("one rank: nothing is exchanged",))


def test_every_profile_says_where_it_is_from_and_asks_for_evidence() -> None:
    for each in profiles.names():
        profile = profiles.load(each)
        assert profile.name == each
        assert len(profile.source) > 20
        assert profile.env["NCCL_DEBUG"] == "INFO", each
        assert {"INIT", "NET", "ENV"} <= set(profile.env["NCCL_DEBUG_SUBSYS"].split(",")), each
        assert (profile.rails == 0) <= (profile.transport == "socket"), each


def test_an_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(profiles.UnknownProfileError, match="h100-ib-8x400"):
        Expectation(profile="h1000")


def test_a_copy_is_about_its_own_nodes_whatever_was_asked_of_the_first() -> None:
    first = Expectation(rails=8, rate_gbps=400)
    assert first.system is None
    system = first.with_nodes(2, 8, "H100").system
    assert system and (system.nodes, system.gpu) == (2, "H100")
