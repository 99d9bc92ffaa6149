"""The numbers of a row agree within their rounding; the sizes are those that were asked for."""

from __future__ import annotations

import pytest

from busbar.judge.nccl import Expectation
from busbar.judge.nccl.checks.tables import arithmetic, size_sweep
from busbar.judge.nccl.log.records import Banner
from tests.unit.judge.nccl.tables import AT, MIB, context, measurement, row, table

# 1 MiB in 2.1 us as printed: the program measured 2.05 to 2.15 us, which is 487.7 to 511.5 GB/s
ROUNDED = [("487.71", False), ("511.50", False), ("487.60", True), ("511.60", True), ("-499.32", True)]


@pytest.mark.parametrize(("algbw", "expected"), ROUNDED)
def test_algbw_is_size_by_time_within_what_the_time_was_rounded_by(algbw: str, expected: bool) -> None:
    good = measurement("2.1", "499.32")
    found = arithmetic(table([row(MIB, good, measurement("2.1", algbw))]))
    assert (found is not None) == expected


@pytest.mark.parametrize(("algbw", "expected"), [("0.00", False), ("0.01", False), ("0.02", True)])
def test_a_small_bandwidth_may_be_off_by_half_of_its_last_digit(algbw: str, expected: bool) -> None:
    """512 B in 101 us are 0.00507 GB/s; in 105 us 0.00488."""
    time = "105.00" if algbw == "0.00" else "101.00"
    found = arithmetic(table([row(512, measurement(time, algbw, "0.00"))]))
    assert (found is not None) == expected


@pytest.mark.parametrize(
    "damaged",
    [
        measurement(time="nan"),
        measurement(algbw="N/A"),
        measurement(busbw="inf"),
        measurement(time="0.00", algbw="99999999.00"),
        measurement(time="-100.0", algbw="-1.00"),
        measurement(busbw="-0.01"),
    ],
)
def test_values_that_no_program_measures_are_damage(damaged: object) -> None:
    good = row(100_000, measurement())
    assert arithmetic(table([good])) is None
    found = arithmetic(table([good, row(100_000, measurement(), damaged)]))  # type: ignore[arg-type]
    assert found is not None and found.code == "completeness.arithmetic"


def test_a_time_below_a_microsecond_is_a_time() -> None:
    assert arithmetic(table([row(400, measurement("0.40", "1.00", "0.00"))])) is None


@pytest.mark.parametrize(
    ("name", "ranks", "count", "damaged"),
    [
        ("all_reduce", 16, 25_000, False),
        ("all_reduce", 16, 25_001, True),
        ("all_gather", 16, 25_000, True),
        ("all_gather", 8, 3_125, False),
        # without a device list, or for a program that is not known, the count cannot be compared
        ("all_reduce", 0, 25_001, False),
        ("all_gather", 0, 3_125, False),
        ("my_own", 16, 25_001, False),
    ],
)
def test_count_and_ranks_give_the_size(name: str, ranks: int, count: int, damaged: bool) -> None:
    found = arithmetic(table([row(100_000, count=count)], ranks, name))
    assert (found.code if found else None) == ("completeness.count" if damaged else None)


def swept(
    low: int,
    high: int,
    step: int,
    sizes: list[int],
    by: str = "factor",
    ranks: int | None = None,
    reduced: int | None = None,
    **want: int,
) -> str | None:
    """Why the sizes are refused, None where they are not."""
    run = table([row(size) for size in sizes], banner=Banner(low, high, step, by, AT))
    run.preamble.reduced_max = reduced
    found = size_sweep(run, context(Expectation(**want), ranks=ranks))  # type: ignore[arg-type]
    assert found is None or (found.status, found.code) == ("fail", "completeness.other_sizes")
    return found.reason if found else None


def test_without_the_arguments_the_sizes_that_were_asked_for_are_not_known() -> None:
    found = size_sweep(table([row(MIB)]), context(Expectation()))
    assert found is not None and (found.status, found.code) == ("unknown", "completeness.no_banner")


@pytest.mark.parametrize(
    ("low", "high", "step", "by", "sizes"),
    [
        (MIB, 8 * MIB, 2, "factor", [MIB, 2 * MIB, 4 * MIB, 8 * MIB]),
        (MIB, 9 * MIB, 3, "factor", [MIB, 3 * MIB, 9 * MIB]),
        (MIB, 7 * MIB, 2, "factor", [MIB, 2 * MIB, 4 * MIB]),
        (MIB, 3 * MIB, MIB, "bytes", [MIB, 2 * MIB, 3 * MIB]),
        (MIB, MIB, 1, "factor", [MIB]),
        (MIB, MIB, 0, "bytes", [MIB]),
        (0, 8 * MIB, 2, "factor", [0]),
    ],
)
def test_the_sizes_go_from_the_smallest_by_steps_to_the_largest(
    low: int, high: int, step: int, by: str, sizes: list[int]
) -> None:
    assert swept(low, high, step, sizes, by) is None
    assert "rows, the arguments ask for" in str(swept(low, high, step, [*sizes, sizes[-1]], by))


@pytest.mark.parametrize(
    ("low", "high", "step", "by"),
    [(MIB, 2 * MIB, 1, "factor"), (MIB, 2 * MIB, 0, "bytes"), (2, 1, 2, "factor")],
)
def test_arguments_that_lead_nowhere_are_no_size_sweep(low: int, high: int, step: int, by: str) -> None:
    assert "give no size sweep" in str(swept(low, high, step, [low], by))


@pytest.mark.parametrize(
    ("ranks", "missing", "fits"),
    [(16, 0, True), (16, 255, True), (16, 256, False), (16, -1, False), (None, 15, True), (None, 16, False)],
)
def test_a_size_may_miss_less_than_16_bytes_per_rank(ranks: int | None, missing: int, fits: bool) -> None:
    reason = swept(MIB, 2 * MIB, 2, [MIB, 2 * MIB - missing], ranks=ranks)
    assert (reason is None) == fits
    assert fits or "stands where 2 MiB was asked for" in str(reason)


def test_each_data_type_has_a_size_sweep_of_its_own() -> None:
    rows = [row(size, type=kind) for kind in ("float", "half") for size in (MIB, 2 * MIB)]
    banner = Banner(MIB, 2 * MIB, 2, "factor", AT)
    assert size_sweep(table(rows, banner=banner), context(Expectation())) is None
    found = size_sweep(table(rows[:-1], banner=banner), context(Expectation()))
    assert found is not None and "1 rows, the arguments ask for 2 sizes" in found.reason


def test_other_arguments_than_expected_are_another_runs_log() -> None:
    both = [MIB, 2 * MIB]
    assert swept(MIB, 2 * MIB, 2, both, min_bytes=MIB, max_bytes=2 * MIB, step_factor=2) is None
    assert "smallest message 1 MiB, expected 2 MiB" in str(swept(MIB, 2 * MIB, 2, both, min_bytes=2 * MIB))
    assert "largest message 2 MiB, expected 1 MiB" in str(swept(MIB, 2 * MIB, 2, both, max_bytes=MIB))
    assert "expected 4 (factor)" in str(swept(MIB, 2 * MIB, 2, both, step_factor=4))
    assert "step 1048576 (bytes)" in str(swept(MIB, 2 * MIB, MIB, both, "bytes", step_factor=2))


def test_a_maximum_that_the_gpus_memory_lowers_is_refused_below_the_expected_one_only() -> None:
    assert swept(MIB, 4 * MIB, 2, [MIB, 2 * MIB], reduced=2 * MIB) is None
    assert swept(MIB, 4 * MIB, 2, [MIB, 2 * MIB, 4 * MIB], reduced=4 * MIB, max_bytes=4 * MIB) is None
    assert swept(MIB, 4 * MIB, 2, [MIB, 2 * MIB, 4 * MIB], reduced=8 * MIB) is None
    for most in (2, 3):
        reason = swept(MIB, 4 * MIB, 2, [MIB, 2 * MIB], reduced=most * MIB, max_bytes=4 * MIB)
        assert f"GPU memory limited messages to {most} MiB, expected 4 MiB" in str(reason)
