"""The gates on the log and its tables: both ends, collectives, whole tables, rows, numbers and sizes."""

from dataclasses import replace

import pytest

from busbar.judge.nccl import Expectation
from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.checks.tables import (
    arithmetic,
    collective,
    completeness,
    correctness,
    size_sweep,
    source,
)
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.known import Failure, KnownLine, Severity
from busbar.judge.nccl.log.records import Banner, LogLine, Measurement, Preamble, Rank, Run
from tests.unit.judge.nccl.tables import (
    AT,
    GOOD,
    LINE,
    MIB,
    context,
    gates_of,
    measurement,
    named,
    row,
    said,
    table,
    whole,
    without,
)

TWICE = Preamble(repeats=1)
RANK = Rank(0, 0, 1, "worker-0", 0, "NVIDIA H100", LogLine("", 5, "the first rank"))
LAST = Rank(1, 0, 2, "worker-0", 1, "NVIDIA H100", LogLine("", 6, "the last rank"))


def known(name: str, severity: Severity, line: int = 9) -> KnownLine:
    rule = Failure(name=name, severity=severity, meaning=name.upper(), cause="", next="", codes=("a.b",))
    return KnownLine(rule, LogLine("", line, name))


@pytest.mark.parametrize(
    ("found", "status", "code"),
    [
        (gates_of(whole()), "pass", "source.whole"),
        (gates_of(bytes=0), "unknown", "source.empty"),
        (gates_of(bytes=1), "unknown", "source.no_table"),
        (gates_of(whole(), truncated="its end is missing"), "fail", "source.truncated"),
        (gates_of(whole(), Run(TWICE, 20)), "fail", "source.several_programs"),
        (gates_of(whole(), Run(Preamble(), 20)), "pass", "source.whole"),
        (gates_of(whole(), dangling=Preamble()), "pass", "source.whole"),
        (gates_of(whole(), dangling=Preamble(ranks=[RANK])), "fail", "source.program_without_table"),
        (
            gates_of(whole(), dangling=Preamble(banner=whole().preamble.banner)),
            "fail",
            "source.program_without_table",
        ),
        (gates_of(whole(), without("banner")), "unknown", "source.beginning_missing"),
        (gates_of(whole(), long_lines=2), "unknown", "source.long_lines"),
        (gates_of(), "unknown", "source.no_table"),
        (gates_of(dangling=Preamble()), "unknown", "source.no_table"),
        (gates_of(dangling=Preamble(ranks=[RANK])), "fail", "source.ends_after_device_list"),
        # the head of a table is printed before its first size is measured
        (gates_of(Run(Preamble(ranks=[RANK]), 20)), "fail", "source.ends_after_device_list"),
        (gates_of(Run(Preamble(ranks=[RANK]), 20, damaged=1)), "unknown", "source.no_table"),
    ],
)
def test_the_log_is_there_from_its_first_line_to_its_last(found: Context, status: str, code: str) -> None:
    check = source(found)
    assert (check.status, check.code) == (status, code), check.reason


def listed(*pids: int, host: str = "worker-0") -> list[Rank]:
    return [replace(RANK, rank=i, pid=pid, host=host) for i, pid in enumerate(pids)]


@pytest.mark.parametrize(
    ("ranks", "code"),
    [
        # two programs one after the other, each of several processes that MPI joined
        ([*listed(1, 2), *listed(3, 4)], "source.ends_after_device_list"),
        # each process alone, with one rank or with all GPUs of its host
        ([*listed(1), *listed(2)], "source.several_programs"),
        ([*listed(1, 1), *listed(2, 2)], "source.several_programs"),
        ([*listed(1, 1), *listed(1, 1, host="worker-1")], "source.several_programs"),
        # two lists among each other
        ([RANK, replace(RANK, pid=3), LAST, replace(LAST, pid=4)], "source.several_programs"),
        ([LAST, *listed(1, 2), *listed(3, 4)], "source.several_programs"),
        # each line twice, as of a log that two collectors wrote
        ([RANK, RANK, LAST, LAST], "source.lines_twice"),
    ],
)
def test_whole_lists_of_several_processes_show_that_mpi_was_effective(ranks: list[Rank], code: str) -> None:
    assert source(gates_of(dangling=Preamble(ranks=ranks, repeats=1))).code == code


def test_evidence_has_at_most_400_characters() -> None:
    long = replace(LAST, at=LogLine("", 6, "y" * 350))
    check = source(gates_of(dangling=Preamble(ranks=[long]), last_line="x" * 300))
    assert check.evidence is not None and len(check.evidence) == 400


@pytest.mark.parametrize(
    ("lines", "failures", "line"),
    [
        ([known("a", "fatal")], {}, 9),
        ([known("a", "degraded")], {}, None),
        ([], said("Test NCCL failure", 8), 8),
        ([known("a", "fatal")], said("Test NCCL failure", 8), 9),
    ],
)
def test_a_run_that_ended_with_an_error_did_not_hang(
    lines: list[KnownLine], failures: dict[str, LogLine], line: int | None
) -> None:
    check = source(
        gates_of(
            dangling=Preamble(ranks=[LAST]), known_lines=lines, evidence=Evidence(test_failures=failures)
        )
    )
    assert check.code == ("source.ended_with_error" if line else "source.ends_after_device_list")
    assert check.line == (line or 6)


def test_each_wanted_collective_has_a_table() -> None:
    found = gates_of(named("all_reduce_perf_mpi"), named("all_reduce_perf"))
    check = collective(found)
    assert (check.code, check.reason) == ("collective.certain", "all_reduce: printed: all_reduce_perf_mpi")
    for others, code, reason in (
        ([], "collective.no_table", "no table of broadcast, nor of another collective"),
        ([Run(Preamble(), 20)], "collective.no_table", "no table of broadcast, nor of another collective"),
        ([named("all_reduce_perf")], "collective.missing", "no table of broadcast; the log has: all_reduce"),
        ([named("my_own")], "collective.missing", "no table of broadcast; the log has: an unknown one"),
    ):
        found = gates_of(*others)
        found.tables = {"broadcast": []}
        check = collective(found)
        assert (check.code, check.reason) == (code, reason)
    found.tables = {}
    assert collective(found).code == "collective.no_table"


@pytest.mark.parametrize(
    ("run", "code"),
    [
        (named(None), "collective.uncertain"),
        (named("all_reduce_perf", concluded="all_reduce_perf"), "collective.certain"),
        (named("all_reduce_perf", concluded="all_gather_perf"), "collective.mixed"),
        (named("all_reduce_perf", concluded="my_own"), "collective.certain"),
    ],
)
def test_a_table_is_of_one_collective_beyond_doubt(run: Run, code: str) -> None:
    assert collective(gates_of(run)).code == code


@pytest.mark.parametrize(
    ("runs", "status", "code"),
    [
        ([whole()], "pass", "completeness.complete"),
        ([], "unknown", "completeness.no_table"),
        ([whole(template_rows=1)], "fail", "completeness.placeholders"),
        ([whole(cpu_time=True)], "fail", "completeness.cpu_time"),
        ([whole(damaged=1)], "unknown", "completeness.damaged"),
        ([whole(orphans=1)], "unknown", "completeness.damaged"),
        ([whole(damaged=1), whole(template_rows=1)], "fail", "completeness.placeholders"),
        ([whole(rows_after_summary=1)], "fail", "completeness.after_summary"),
        ([whole(summaries=1)], "fail", "completeness.after_summary"),
        ([whole(rows=[row(n * MIB, GOOD) for n in (512, 1024, 512)])], "fail", "completeness.repeated_rows"),
        ([whole(rows=[row(512 * MIB, measurement(busbw="1.0"))])], "fail", "completeness.wrong_precision"),
        ([whole(), whole(rows=[])], "fail", "completeness.empty_table"),
        ([whole(avg="1000.00")], "fail", "completeness.average"),
        ([whole(avg="nan")], "fail", "completeness.average"),
        ([whole(avg="96,4945")], "fail", "completeness.average"),
        ([whole(other_unit=LogLine("(Gbps)", 3, "units"))], "fail", "completeness.other_unit"),
        ([whole(rows=[row(512 * MIB)])], "fail", "completeness.arithmetic"),
        ([whole(avg=None)], "unknown", "completeness.no_summary"),
        ([whole(out_of_bounds=None)], "unknown", "completeness.no_summary"),
        ([without("banner")], "unknown", "completeness.no_banner"),
        # a failure outweighs a doubt, whichever table it is in; of two doubts the first counts
        ([whole(avg=None), whole(avg="1000.00")], "fail", "completeness.average"),
        ([without("banner"), whole(avg=None)], "unknown", "completeness.no_banner"),
        ([whole(avg=None), whole()], "unknown", "completeness.no_summary"),
    ],
)
def test_every_table_is_complete_and_has_its_summary(runs: list[Run], status: str, code: str) -> None:
    check = completeness(gates_of(*runs))
    assert (check.status, check.code) == (status, code), check.reason


def test_a_damaged_table_counts_also_where_another_collective_was_asked_for() -> None:
    found = gates_of(whole(), whole(20, damaged=1))
    found.tables = {"all_reduce": found.log.runs[:1]}
    assert completeness(found).code == "completeness.damaged"


def measured(one: str, two: str, name: str = "all_reduce") -> Run:
    good = {"time": "100.0", "algbw": "1.00", "busbw": "1.00"}
    run = whole(rows=[row(100_000, Measurement(errors=one, **good), Measurement(errors=two, **good))])
    run.preamble.name = f"{name}_perf"
    return run


COMPARED = ("all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "hypercube")


def validated(value: int | None) -> Run:
    run = whole()
    assert run.preamble.banner is not None
    run.preamble.banner.validation = value
    return run


@pytest.mark.parametrize(
    ("run", "status", "code"),
    [
        (whole(), "pass", "correctness.verified"),
        (measured("0", "3"), "fail", "correctness.wrong_values"),
        (whole(out_of_bounds_status="FAILED"), "fail", "correctness.out_of_bounds"),
        (whole(out_of_bounds=1), "fail", "correctness.out_of_bounds"),
        (whole(bitwise_failed=LINE), "fail", "correctness.bitwise"),
        (whole(avg_status="FAILED"), "fail", "correctness.min_bw"),
        (measured("N/A", "N/A"), "unknown", "correctness.not_compared"),
        (validated(0), "unknown", "correctness.not_compared"),
        (validated(None), "unknown", "correctness.not_stated"),
        (without("banner"), "unknown", "correctness.not_stated"),
        (whole(error_column=None), "unknown", "correctness.not_stated"),
        (whole(out_of_bounds=None), "unknown", "correctness.not_stated"),
        (whole(out_of_bounds_status=None), "unknown", "correctness.not_stated"),
        (measured("N/A", "0"), "unknown", "correctness.not_stated"),
        (measured("0", "N/A"), "unknown", "correctness.not_stated"),
        (measured("nan", "0"), "unknown", "correctness.not_stated"),
        # nccl-tests does not compare the in-place half of these
        (measured("0", "N/A", "sendrecv"), "pass", "correctness.verified"),
        (measured("N/A", "0", "sendrecv"), "unknown", "correctness.not_stated"),
        *((measured("0", "N/A", name), "unknown", "correctness.not_stated") for name in COMPARED),
    ],
)
def test_every_row_was_compared_and_is_right(run: Run, status: str, code: str) -> None:
    for runs in ([run], [whole(), run]):
        check = correctness(gates_of(*runs))
        assert (check.status, check.code) == (status, code), check.reason


def test_without_a_table_nothing_was_compared() -> None:
    assert correctness(gates_of()).code == "correctness.no_table"


# ---- the numbers of a row agree within their rounding; the sizes are those that were asked for
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
    codes = ("completeness.other_sizes", "completeness.ends_between_rows")
    assert found is None or (found.status == "fail" and found.code in codes)
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
