"""The gates on a table: it is complete, has its summary, and every row was compared and is right."""

from __future__ import annotations

import pytest

from busbar.judge.nccl.checks.tables import completeness, correctness
from busbar.judge.nccl.log.records import LogLine, Measurement, Run
from tests.unit.judge.nccl.tables import GOOD, LINE, MIB, gates_of, measurement, row, whole, without


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
