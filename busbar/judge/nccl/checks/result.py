"""The result of a gate on a log, and of a collective."""

from __future__ import annotations

from pydantic import Field

from busbar.judge import checks
from busbar.judge.checks import Status, by_status
from busbar.judge.nccl.log.records import LogLine, Measurement, Run, amount, number
from busbar.models import StrictModel

EVIDENCE_WIDTH = 400


class Check(checks.Check):
    """The result of a gate on a log. `line`: number of the line with the `evidence`."""

    line: int | None = None


class PointMeasurement(StrictModel):
    """One measurement of a size: us, GB/s, GB/s. `wrong`: the printed last column (None: not compared)."""

    time_us: float
    algbw_gbps: float
    busbw_gbps: float
    wrong: float | None


class Point(StrictModel):
    """One message size of a curve."""

    size_bytes: int
    count: int
    type: str
    redop: str | None
    out_of_place: PointMeasurement
    in_place: PointMeasurement


class CollectiveResult(StrictModel):
    """One collective: its curve, and its value at the largest message beside the expected one (GB/s)."""

    busbw_gbps: float | None
    expected_gbps: float | None
    floor_gbps: float | None
    ceiling_gbps: float | None
    fraction: float | None
    passed: bool
    basis: str = Field(default="", description="what little the expected value rests on")
    size_bytes: int | None = None
    plateau_bytes: int = Field(description="the floor applies from here on; 0: to the largest")
    reasoning: list[str] = Field(default_factory=list)
    curve: list[Point] = Field(default_factory=list)


class Table(StrictModel):
    """One table of a log as it is printed; nothing of it is judged."""

    collective: str | None
    line: int
    rows: list[Point]
    average: str | None
    out_of_bounds: int | None


def points(run: Run) -> list[Point]:
    """The rows of a table."""
    return [
        Point(
            size_bytes=row.size, count=row.count, type=row.type, redop=row.redop,
            out_of_place=_point(row.out_of_place), in_place=_point(row.in_place),
        )
        for row in run.rows
    ]  # fmt: skip


def _point(measurement: Measurement) -> PointMeasurement:
    return PointMeasurement(
        time_us=amount(measurement.time),
        algbw_gbps=amount(measurement.algbw),
        busbw_gbps=amount(measurement.busbw),
        wrong=number(measurement.errors),
    )


def result(status: Status, code: str, reason: str, line: LogLine | None = None, fix: str = "") -> Check:
    """A Check with the line that proves it, if there is one."""
    check = Check.of(status, code, reason, line.text[:EVIDENCE_WIDTH] if line else None, fix)
    return check.model_copy(update={"line": line.line}) if line else check


passed, failed, unknown, not_required = by_status(result)
