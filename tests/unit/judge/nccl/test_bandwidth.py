"""Bandwidth between floor and ceiling, both halves alike, and the algorithm that the bounds are those of."""

from typing import Any

import pytest

from busbar.judge.nccl import Expectation, judge
from busbar.judge.nccl.checks.bandwidth import assess, busbw, stability
from busbar.judge.nccl.checks.context import Check, CollectiveResult, Context, algorithm_used
from busbar.judge.nccl.expected.system import System
from busbar.judge.nccl.log.records import Run
from tests.unit.judge.nccl.logs import Made
from tests.unit.judge.nccl.tables import MIB, context, measurement, printed, row, said, table

GIB = 1024 * MIB
# two hosts of eight rails of 400 Gb/s: 400 GB/s of line rate
HARDWARE = {"nodes": 2, "gpus_per_node": 8, "gpu": "H100", "rails": 8, "rate_gbps": 400, "algorithm": "ring"}


def of(value: str, size: int = 8 * GIB, line: int = 1) -> Run:
    """A table with one row."""
    run = table([row(size, measurement(busbw=value), line=line)], ranks=16)
    run.line = line
    return run


def assessed(*runs: Run, **want: Any) -> tuple[Check, CollectiveResult]:
    return assess(context(Expectation(**{**HARDWARE, **want}), *runs), "all_reduce")


def finding(*runs: Run, **want: Any) -> Check:
    return assessed(*runs, **want)[0]


def measured(*runs: Run, **want: Any) -> CollectiveResult:
    return assessed(*runs, **want)[1]


@pytest.mark.parametrize(
    ("value", "want", "code"),
    [
        ("360.00", {}, "busbw.in_range"),
        ("359.99", {}, "busbw.below_floor"),
        ("380.00", {"tolerance": 0.05}, "busbw.in_range"),
        ("379.99", {"tolerance": 0.05}, "busbw.below_floor"),
    ],
)
def test_the_floor_itself_is_enough(value: str, want: dict[str, Any], code: str) -> None:
    found, result = assessed(of(value), **{"expected_busbw_gbps": 400.0, **want})
    assert found.code == code
    assert result.passed == (code == "busbw.in_range")
    assert " (configured)" in found.reason


def test_the_ceiling_itself_is_credible_and_the_size_above_it_is_named() -> None:
    ceiling = measured(of("400.00")).ceiling_gbps
    assert ceiling is not None
    assert finding(of(f"{ceiling:.2f}")).code == "busbw.in_range"
    run = of("400.00")
    run.rows.insert(0, row(4 * GIB, measurement(busbw=f"{ceiling + 0.01:.2f}")))
    found = finding(run)
    assert found.code == "busbw.above_ceiling"
    assert " at 4 GiB is above the ceiling" in found.reason


def test_messages_that_reach_the_plateau_just_so_are_large_enough() -> None:
    assert finding(of("390.00", GIB)).code == "busbw.in_range"
    found, result = assessed(of("390.00", 512 * MIB))
    assert (found.status, found.code) == ("unknown", "busbw.small_messages")
    assert not result.passed
    assert "largest message 512 MiB, at least 1 GiB is needed" in found.reason


@pytest.mark.parametrize(
    ("value", "code"),
    [("292.00", "busbw.low"), ("280.00", "busbw.below_floor"), ("350.00", "busbw.in_range")],
)
def test_between_the_floor_and_what_an_untuned_system_reached_there_is_no_verdict(
    value: str, code: str
) -> None:
    """12 hosts with H100: 385.56 GB/s are published, and 320.54 of 10 hosts that nobody tuned."""
    found = finding(of(value), profile="h100-coreweave", nodes=12)
    assert found.code == code
    assert ("75.7 % of the expected" in found.reason) == (value == "292.00")


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("", ("213.00", "187.00", "87.00")),
        ("half", ("211.00", "200.00", "189.00")),
        ("a quarter", ("111.00", "100.00")),
    ],
)
def test_about_half_or_a_quarter_of_line_rate_is_named(words: str, values: tuple[str, ...]) -> None:
    for value in values:
        found = finding(of(value))
        assert found.code == ("busbw.part_of_line_rate" if words else "busbw.below_floor")
        assert f": about {words} of line rate" in found.reason or not words


@pytest.mark.parametrize(
    ("want", "named"),
    [
        ({"rails": 1, "rate_gbps": 8.0}, True),
        # without a line rate there is no half of it
        ({"rails": None}, False),
        ({"nodes": None, "rails": 1, "rate_gbps": 8.0}, False),
        ({"transport": "socket", "rails": 1, "rate_gbps": 8.0}, False),
    ],
)
def test_a_part_of_line_rate_is_named_where_there_is_one(want: dict[str, Any], named: bool) -> None:
    found = finding(of("0.50"), expected_busbw_gbps=0.9, **want)
    assert found.status == "fail"
    assert (found.code == "busbw.part_of_line_rate") == named


def test_what_is_missing_for_an_expected_value_is_the_reason() -> None:
    found = finding(of("390.00"), rails=None)
    assert (found.status, found.code) == ("unknown", "busbw.no_expectation")
    assert "rails or rate are not given" in found.reason
    gather = context(Expectation.model_validate(HARDWARE))
    gather.tables = {"gather": [of("390.00")]}
    # behind the line rate, which is known
    assert assess(gather, "gather")[0].reason.endswith("gather: no formula for its bound is known")
    assert finding().code == "busbw.no_value"
    check = busbw(context(Expectation()))
    assert (check.status, check.code) == ("unknown", "busbw.no_value")


def test_tcp_without_a_configured_value_is_not_judged() -> None:
    found, result = assessed(of("2.00"), transport="socket")
    assert (found.status, found.code, result.passed) == ("not-required", "busbw.not_required", True)


def test_of_several_tables_the_worst_counts_and_of_equals_the_slowest_of_the_largest_messages() -> None:
    found, result = assessed(of("390.00", line=1), of("370.00", line=20), of("365.00", 4 * GIB, line=30))
    assert (result.busbw_gbps, result.size_bytes) == (370.0, 8 * GIB)
    assert found.reason.endswith("(the worst of 3 tables, line 20)")
    found, result = assessed(of("390.00", line=1), of("300.00", 4 * GIB, line=20))
    assert (found.code, result.busbw_gbps) == ("busbw.below_floor", 300.0)
    assert found.reason.endswith("(the worst of 2 tables, line 20)")
    assert "worst of" not in finding(of("390.00")).reason
    assert measured(of("0.50"), of("0.00")).busbw_gbps == 0.0


def test_tables_of_small_messages_are_left_out_where_there_are_others() -> None:
    small, plateau = of("3.00", 32 * MIB, line=1), of("390.00", line=20)
    assert measured(small, plateau).busbw_gbps == 390.0
    assert measured(small).busbw_gbps == 3.0
    # 64 MiB are large: such a table may be the one that is too slow
    assert finding(of("3.00", 64 * MIB), plateau, expected_busbw_gbps=400.0).code == "busbw.below_floor"


def test_a_value_that_is_not_a_number_is_no_value() -> None:
    assert finding(of("nan")).code == "busbw.no_value"
    assert measured(of("nan"), of("390.00")).busbw_gbps == 390.0


def both(first: str, second: str, **want: Any) -> tuple[Context, Check]:
    """The gate on two collectives with a configured value of 400 GB/s each."""
    expectation = Expectation(
        **{**HARDWARE, "expected_by_collective": {"all_reduce": 400.0, "all_gather": 400.0}, **want}
    )
    found = context(expectation)
    found.tables = {"all_reduce": [of(first, line=10)], "all_gather": [of(second, line=20)]}
    for name in found.tables:
        found.bandwidths[name], found.results[name] = assess(found, name)
    return found, busbw(found)


@pytest.mark.parametrize(
    ("first", "second", "code", "line"),
    [
        ("390.00", "390.00", "busbw.in_range", 10),
        ("390.00", "300.00", "busbw.below_floor", 20),
        ("300.00", "310.00", "busbw.below_floor", 10),
        ("300.00", "200.00", "busbw.part_of_line_rate", 10),
        ("nan", "300.00", "busbw.below_floor", 20),
        ("nan", "390.00", "busbw.no_value", None),
    ],
)
def test_the_worst_collective_decides_and_its_row_is_shown(
    first: str, second: str, code: str, line: int | None
) -> None:
    found, check = both(first, second)
    assert (check.code, check.line) == (code, line)
    said = [f.reason for f in found.bandwidths.values() if f.status == check.status]
    assert check.reason == "; ".join(said)


def halves(one: str, two: str, line: int = 1) -> Run:
    return table([row(8 * GIB, measurement(busbw=one), measurement(busbw=two), line=line)], ranks=16)


@pytest.mark.parametrize(("one", "two"), [("400.00", "359.00"), ("359.00", "400.00")])
def test_the_slower_half_of_the_largest_message_counts(one: str, two: str) -> None:
    found, result = assessed(halves(one, two), expected_busbw_gbps=400.0)
    assert (result.busbw_gbps, found.code) == (359.0, "busbw.below_floor")
    [point] = result.curve
    assert (point.out_of_place.busbw_gbps, point.in_place.busbw_gbps) == (float(one), float(two))


@pytest.mark.parametrize(
    ("one", "two", "code"),
    [
        ("100.00", "90.00", "stability.steady"),
        ("100.00", "89.98", "stability.differs"),
        ("89.98", "100.00", "stability.differs"),
        # printed coarsely, both may be nearer to each other than they read
        ("100", "89", "stability.steady"),
        ("100.0", "89.9", "stability.steady"),
        ("0.50", "0.50", "stability.steady"),
        ("0.00", "0.00", "stability.no_value"),
    ],
)
def test_both_halves_of_the_largest_message_agree_within_10_percent(one: str, two: str, code: str) -> None:
    assert stability(context(Expectation(), halves(one, two))).code == code


def test_an_in_place_half_that_is_not_compared_is_another_operation_and_need_not_agree() -> None:
    one, two = measurement(busbw="38.84"), measurement(busbw="43.72", wrong="N/A")
    check = stability(context(Expectation(), table([row(16 * GIB, one, two)], 2, "alltoall")))
    assert check.code == "stability.steady"
    assert check.reason.startswith("38.84 and 43.72 GB/s are of two operations")
    unchecked = measurement(busbw="38.84", wrong="N/A")  # -c 0: neither half is compared
    run = table([row(16 * GIB, unchecked, two)], 2)
    assert stability(context(Expectation(), run)).code == "stability.differs"


def test_every_table_must_be_steady_and_a_steady_one_is_shown_by_its_first() -> None:
    good, bad = halves("100.00", "100.00", line=10), halves("100.00", "50.00", line=20)
    check = stability(context(Expectation(), good, halves("99.00", "99.00", line=30)))
    assert (check.code, check.line) == ("stability.steady", 10)
    assert check.reason.startswith("100.00 and 100.00 GB/s agree")
    check = stability(context(Expectation(), good, bad))
    assert (check.code, check.line) == ("stability.differs", 20)
    assert check.reason.endswith("differ by over 10%")
    assert stability(context(Expectation(transport="socket"), bad)).status == "not-required"
    assert stability(context(Expectation())).code == "stability.no_table"


def test_a_curve_that_fails_outweighs_one_that_still_rises() -> None:
    def curve(*values: str) -> Run:
        return table([row(64 * MIB << i, measurement(busbw=value)) for i, value in enumerate(values)], 16)

    rising, falling = curve("80.00", "100.00"), curve("100.00", "80.00")
    assert stability(context(Expectation(), rising)).code == "stability.rising"
    assert stability(context(Expectation(), rising, falling)).code == "stability.last_sizes"


# ---- which algorithm a log proves, and what that changes about the expected bandwidth
ENV = said("NCCL_DEBUG=INFO")


def hosts(number: int) -> System:
    return System("A100", number, 8, 8, 200.0, 300.0)


def environment(*values: str) -> dict[str, Any]:
    return {"environment": {key: line for value in values for key, line in said(value).items()}}


@pytest.mark.parametrize(
    ("asked", "used"),
    [
        ("RING", "ring"),
        ("Tree", "tree"),
        ("NVLSTree", "nvls"),
        ("nvls,nvlstree", "nvls"),
        ("Ring,Tree", "ring"),
        ("^NVLS,NVLSTree", "ring"),
        ("^Ring", None),
        ("allreduce:ring;allgather:nvls", "ring"),
        ("allgather:ring", None),
        ("Ring,NVLS", None),
    ],
)
def test_nccl_algo_names_the_algorithm(asked: str, used: str | None) -> None:
    assert algorithm_used(printed(**environment(f"NCCL_ALGO={asked}")), [], hosts(2)) == used


def test_processes_that_were_asked_for_different_algorithms_prove_none() -> None:
    evidence = printed(**environment("NCCL_ALGO=RING", "NCCL_ALGO=TREE"))
    assert algorithm_used(evidence, [], hosts(2)) is None


def test_what_nccl_chose_for_the_largest_message_outweighs_what_was_asked_for() -> None:
    evidence = printed(**environment("NCCL_ALGO=RING"))
    evidence.algorithms = said("AllReduce TREE") | said("AllReduce NVLS_TREE")
    evidence.algorithm_sizes = {"AllReduce TREE": 8, "AllReduce NVLS_TREE": 2**30}
    assert algorithm_used(evidence, [], hosts(2)) == "nvls"


@pytest.mark.parametrize(
    ("facts", "domains", "used"),
    [
        # these GPUs cannot reduce in their NVSwitch
        ({"environment": ENV, "nvls_channels": said("16")}, 2, None),
        # NCCL_ALGO may be set, and not printed
        ({"nvls_channels": said("16")}, 2, None),
        ({"environment": ENV}, 2, None),
        ({"nvls_channels": said("0")}, 2, "ring"),
        (environment("NCCL_NVLS_ENABLE=0"), 1, "ring"),
        ({"versions": said("2.16.2+cuda12.0")}, 1, "ring"),
        ({"versions": said("2.17.1+cuda12.1")}, 1, None),
        ({"versions": said("2.17.1+cuda12.1")}, 2, "ring"),
        ({"versions": said("2.18.1+cuda12.1")}, 2, None),
    ],
)
def test_what_nccl_prints_of_nvls_tells_whether_it_is_the_default(
    facts: dict[str, Any], domains: int, used: str | None
) -> None:
    assert algorithm_used(printed(**facts), [], hosts(domains)) == used


def test_channels_of_nvls_and_no_other_setting_prove_nvls_on_whole_boards() -> None:
    evidence = printed(environment=ENV, nvls_channels=said("16"))
    assert algorithm_used(evidence, [], System("H100", 2, 8, 8, 400.0, 450.0)) == "nvls"


@pytest.mark.parametrize(("kind", "redop"), [("int8", "sum"), ("f8e4m3", "sum"), ("float", "prod")])
def test_what_nvls_does_not_reduce_goes_round_a_ring(kind: str, redop: str) -> None:
    run = table([row(1024 * MIB, type=kind, redop=redop)], 16)
    evidence = printed(environment=ENV, nvls_channels=said("16"))
    assert algorithm_used(evidence, [run], hosts(2)) == "ring"


WANT = Expectation(gpu="B200", nodes=2, gpus_per_node=8, rails=8, rate_gbps=400)


def code_of(value: str, **want: object) -> str:
    run = table([row(8192 * MIB, measurement(busbw=value))], ranks=16)
    return assess(context(WANT.model_copy(update=want), run), "all_reduce")[0].code


def test_a_ring_on_two_hosts_with_nvswitch_passes_only_where_a_ring_is_known() -> None:
    assert code_of("344.70") == "busbw.algorithm_unknown"
    assert code_of("344.70", algorithm="ring") == "busbw.low"
    assert code_of("360.00", algorithm="ring") == "busbw.in_range"
    assert code_of("344.70", algorithm="nvls") == "busbw.below_floor"
    assert code_of("717.00") == "busbw.in_range"
    assert code_of("300.00") == "busbw.below_floor"
    assert code_of("344.70", expected_busbw_gbps=700.0) == "busbw.below_floor"


def test_a_log_that_says_ring_is_held_against_a_ring() -> None:
    lines = list(Made().lines())
    want = Expectation(profile="h100-coreweave", nodes=2)
    assert judge(lines, want).check("busbw").status == "unknown"
    ring = "worker-0:40:90 [0] NCCL INFO NCCL_ALGO set by environment to RING"
    verdict = judge([ring, *lines], want)
    assert verdict.check("busbw").status == "pass" and verdict.expectation["algorithm"] == "ring"
