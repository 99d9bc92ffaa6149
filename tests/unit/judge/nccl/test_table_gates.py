"""The gates on a table: it is complete, has its summary, and every row was compared and is right."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.judge.nccl.checks.codes import Code
from busbar.judge.nccl.checks.completeness import completeness
from busbar.judge.nccl.checks.correctness import correctness
from busbar.judge.nccl.log.records import LogLine, Measurement, Run
from tests.unit.judge.nccl.tables import GOOD, LINE, MIB, gates_of, measurement, row, whole, without


@pytest.mark.parametrize(
    ("runs", "status", "code"),
    [
        ([whole()], "pass", Code.COMPLETENESS_COMPLETE),
        ([], "unknown", Code.COMPLETENESS_NO_TABLE),
        ([whole(template_rows=1)], "fail", Code.COMPLETENESS_PLACEHOLDERS),
        ([whole(cpu_time=True)], "fail", Code.COMPLETENESS_CPU_TIME),
        ([whole(damaged=1)], "unknown", Code.COMPLETENESS_DAMAGED),
        ([whole(orphans=1)], "unknown", Code.COMPLETENESS_DAMAGED),
        ([whole(damaged=1), whole(template_rows=1)], "fail", Code.COMPLETENESS_PLACEHOLDERS),
        ([whole(rows_after_summary=1)], "fail", Code.COMPLETENESS_AFTER_SUMMARY),
        ([whole(summaries=1)], "fail", Code.COMPLETENESS_AFTER_SUMMARY),
        ([whole(rows=[row(512 * MIB, GOOD)] * 2)], "fail", Code.COMPLETENESS_REPEATED_ROWS),
        ([whole(rows=[row(512 * MIB, measurement(busbw="1.0"))])], "fail", Code.COMPLETENESS_WRONG_PRECISION),
        ([whole(), whole(rows=[])], "fail", Code.COMPLETENESS_EMPTY_TABLE),
        ([whole(avg="1000.00")], "fail", Code.COMPLETENESS_AVERAGE),
        ([whole(avg="nan")], "fail", Code.COMPLETENESS_AVERAGE),
        ([whole(avg="96,4945")], "fail", Code.COMPLETENESS_AVERAGE),
        ([whole(other_unit=LogLine("(Gbps)", 3, "units"))], "fail", Code.COMPLETENESS_OTHER_UNIT),
        ([whole(rows=[row(512 * MIB)])], "fail", Code.COMPLETENESS_ARITHMETIC),
        ([whole(avg=None)], "unknown", Code.COMPLETENESS_NO_SUMMARY),
        ([whole(out_of_bounds=None)], "unknown", Code.COMPLETENESS_NO_SUMMARY),
        ([without("banner")], "unknown", Code.COMPLETENESS_NO_BANNER),
        # a failure outweighs a doubt, whichever table it is in; of two doubts the first counts
        ([whole(avg=None), whole(avg="1000.00")], "fail", Code.COMPLETENESS_AVERAGE),
        ([without("banner"), whole(avg=None)], "unknown", Code.COMPLETENESS_NO_BANNER),
        ([whole(avg=None), whole()], "unknown", Code.COMPLETENESS_NO_SUMMARY),
    ],
)
def test_every_table_is_complete_and_has_its_summary(runs: list[Run], status: str, code: Code) -> None:
    check = completeness(gates_of(*runs))
    assert (check.status, check.code) == (status, code), check.reason


def test_an_average_that_is_not_a_number_is_told_from_one_of_other_rows() -> None:
    for printed, why in (("nan", "is not a number"), ("1000.00", "is not that of the rows (1024.0000)")):
        assert f"the printed average {printed} {why}" in completeness(gates_of(whole(avg=printed))).reason


def test_the_summary_of_the_first_table_shows_that_it_is_complete() -> None:
    check = completeness(gates_of(whole(1), whole(20)))
    assert (check.line, check.evidence, check.reason[:9]) == (4, "avg", "1, 1 rows")


def test_a_damaged_table_counts_also_where_another_collective_was_asked_for() -> None:
    found = gates_of(whole(), whole(20, damaged=1))
    found.tables = {"all_reduce": found.log.runs[:1]}
    assert completeness(found).code == Code.COMPLETENESS_DAMAGED


def test_the_first_table_without_a_row_is_named() -> None:
    check = completeness(gates_of(whole(), whole(20, rows=[]), whole(40, rows=[])))
    assert check.reason == "2 tables have no row (line 21)"


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
        (whole(), "pass", Code.CORRECTNESS_VERIFIED),
        (measured("0", "3"), "fail", Code.CORRECTNESS_WRONG_VALUES),
        (whole(out_of_bounds_status="FAILED"), "fail", Code.CORRECTNESS_OUT_OF_BOUNDS),
        (whole(out_of_bounds=1), "fail", Code.CORRECTNESS_OUT_OF_BOUNDS),
        (whole(bitwise_failed=LINE), "fail", Code.CORRECTNESS_BITWISE),
        (whole(avg_status="FAILED"), "fail", Code.CORRECTNESS_MIN_BW),
        (measured("N/A", "N/A"), "unknown", Code.CORRECTNESS_NOT_COMPARED),
        (validated(0), "unknown", Code.CORRECTNESS_NOT_COMPARED),
        (validated(None), "unknown", Code.CORRECTNESS_NOT_STATED),
        (without("banner"), "unknown", Code.CORRECTNESS_NOT_STATED),
        (whole(error_column=None), "unknown", Code.CORRECTNESS_NOT_STATED),
        (whole(out_of_bounds=None), "unknown", Code.CORRECTNESS_NOT_STATED),
        (whole(out_of_bounds_status=None), "unknown", Code.CORRECTNESS_NOT_STATED),
        (measured("N/A", "0"), "unknown", Code.CORRECTNESS_NOT_STATED),
        (measured("0", "N/A"), "unknown", Code.CORRECTNESS_NOT_STATED),
        (measured("nan", "0"), "unknown", Code.CORRECTNESS_NOT_STATED),
        # nccl-tests does not compare the in-place half of these
        (measured("0", "N/A", "sendrecv"), "pass", Code.CORRECTNESS_VERIFIED),
        (measured("N/A", "0", "sendrecv"), "unknown", Code.CORRECTNESS_NOT_STATED),
        *((measured("0", "N/A", name), "unknown", Code.CORRECTNESS_NOT_STATED) for name in COMPARED),
    ],
)
def test_every_row_was_compared_and_is_right(run: Run, status: str, code: Code) -> None:
    for runs in ([run], [whole(), run]):
        check = correctness(gates_of(*runs))
        assert (check.status, check.code) == (status, code), check.reason


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, 3),
        ({"out_of_bounds_status": "FAILED"}, 3),
        ({"out_of_bounds_status": "FAILED", "out_of_bounds_line": None}, 2),
        ({"avg_status": "FAILED"}, 4),
        ({"avg_status": "FAILED", "avg_line": None}, 2),
    ],
)
def test_the_line_of_the_summary_is_shown(changes: dict[str, Any], line: int) -> None:
    assert correctness(gates_of(whole(**changes), whole(20))).line == line


def test_without_a_table_nothing_was_compared() -> None:
    assert correctness(gates_of()).code == Code.CORRECTNESS_NO_TABLE
