"""The computed floor and ceiling hold every healthy public figure, and refuse the failures that are known."""

from __future__ import annotations

import pytest

from busbar.nccl import Expectation
from busbar.nccl.expected import profiles
from busbar.nccl.expected.bounds import bounds
from busbar.nccl.expected.published import PublishedResult, published_results
from busbar.nccl.expected.system import System

HEALTHY = [r for r in published_results() if r.healthy]
FAILURES = [r for r in published_results() if not r.healthy]


def name(r: PublishedResult) -> str:
    return f"{r.gpu} {r.rails}x{r.rate_gbps:g} N={r.nodes} {r.algorithm} {r.collective} {r.busbw:g}"


@pytest.mark.parametrize("reference", HEALTHY, ids=name)
def test_a_public_figure_lies_between_floor_and_ceiling(reference: PublishedResult) -> None:
    found = bounds(reference.system(), reference.collective, reference.algorithm)
    assert found.floor is not None and found.ceiling is not None, found.reasoning
    assert found.floor <= reference.busbw <= found.ceiling, found.reasoning


@pytest.mark.parametrize("reference", FAILURES, ids=name)
def test_a_known_failure_lies_below_the_floor(reference: PublishedResult) -> None:
    found = bounds(reference.system(), reference.collective, reference.algorithm)
    assert found.floor is not None and reference.busbw < found.floor


H100 = System("H100", 2, 8, 8, 400, 450)


@pytest.mark.parametrize(
    ("nodes", "algorithm", "floor", "ceiling"),
    [
        (2, "ring", 360.0, 529.1),
        (4, "ring", 300.0, 408.0),
        (8, "auto", 300.0, 408.0),
        (2, "nvls", 432.9, 529.1),
        (4, "tree", 172.8, 408.0),
        (8, "sharp", 432.9, 529.1),
        (1, "nvls", 432.9, 529.1),
        (1, "ring", 303.75, 529.1),
    ],
)
def test_bounds_of_eight_h100_with_eight_rails(
    nodes: int, algorithm: str, floor: float, ceiling: float
) -> None:
    found = bounds(System("H100", nodes, 8, 8, 400, 450), "all_reduce", algorithm)
    assert (found.floor, found.ceiling) == (pytest.approx(floor, abs=0.1), pytest.approx(ceiling, abs=0.1))


def test_two_nodes_may_exceed_line_rate_and_more_may_not() -> None:
    two, four = (
        bounds(H100, "all_reduce", "auto"),
        bounds(System("H100", 4, 8, 8, 400, 450), "all_reduce", "auto"),
    )
    assert two.ceiling is not None and two.ceiling > H100.line_rate
    assert four.ceiling is not None and four.ceiling < 1.05 * H100.line_rate


def test_without_rails_nothing_is_expected() -> None:
    found = bounds(System("H100", 2, 8, 0, 0, 450), "all_reduce", "ring")
    assert found.floor is None and "not known" in found.reasoning[-1]


def test_a_rack_is_one_domain() -> None:
    rack = System("GB200", 18, 4, 4, 400, 900, nodes_per_domain=18)
    assert (rack.domains, rack.gpus_per_domain) == (1, 72)
    assert System("GB200", 36, 4, 4, 400, 900, nodes_per_domain=18).domains == 2


def test_every_profile_says_where_it_is_from_and_asks_for_evidence() -> None:
    for each in profiles.names():
        profile = profiles.load(each)
        assert profile.name == each
        assert len(profile.source) > 20
        assert profile.env["NCCL_DEBUG"] == "INFO", each
        assert {"INIT", "NET", "ENV"} <= set(profile.env["NCCL_DEBUG_SUBSYS"].split(",")), each
        assert (profile.rails == 0) <= (profile.transport == "socket"), each


def test_every_system_of_the_sources_has_a_profile() -> None:
    assert set(profiles.names()) >= {
        "a40", "a100-ib-8x200", "a100-ib-8x200-gdrcopy", "a100-noib", "a100-sharp", "h100-ib-8x400",
        "h100-sharp",
        "gb200-nvl72", "roce", "efa",
    }  # fmt: skip


def test_an_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(profiles.UnknownProfileError, match="h100-ib-8x400"):
        Expectation(profile="h1000")
