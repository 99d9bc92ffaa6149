"""The gates on the log and its tables: both ends, collectives, whole tables, rows that were compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.checks.tables import collective, completeness, correctness, job, source
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.known import Failure, KnownLine, Severity
from busbar.judge.nccl.log.records import LogLine, Measurement, Preamble, Rank, Run
from tests.unit.judge.nccl.tables import (
    GOOD,
    LINE,
    MIB,
    gates_of,
    measurement,
    named,
    row,
    said,
    whole,
    without,
)


def test_a_log_alone_is_not_judged_by_how_its_job_ended() -> None:
    assert job(gates_of(whole())) is None


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
