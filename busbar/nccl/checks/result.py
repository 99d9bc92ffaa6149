"""The result of a gate (its name, what was found as a code, and why) and of a collective."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from busbar.nccl.checks.codes import Code
from busbar.nccl.log.records import LogLine

Status = Literal["pass", "fail", "unknown", "not-required"]
EVIDENCE_WIDTH = 400


class Model(BaseModel):
    """Base of all results: no unknown fields, not changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Check(Model):
    """The result of one gate. `evidence` is the line of the log that proves it (at most 400 characters)."""

    name: str
    status: Status
    code: Code
    reason: str
    evidence: str | None = None
    line: int | None = None


class PointMeasurement(Model):
    """One measurement of a size: us, GB/s, GB/s; `wrong` is the printed last column (None: not compared)."""

    time_us: float
    algbw_gbps: float
    busbw_gbps: float
    wrong: float | None


class Point(Model):
    """One message size of a curve."""

    size_bytes: int
    count: int
    type: str
    redop: str | None
    out_of_place: PointMeasurement
    in_place: PointMeasurement


class CollectiveResult(Model):
    """One collective: its curve, and its value at the largest message against what was expected (GB/s)."""

    busbw_gbps: float | None
    expected_gbps: float | None
    floor_gbps: float | None
    ceiling_gbps: float | None
    fraction: float | None
    passed: bool
    size_bytes: int | None = None
    plateau_bytes: int = Field(description="the floor applies from here on; 0: to the largest")
    reasoning: list[str] = Field(default_factory=list)
    curve: list[Point] = Field(default_factory=list)


def passed(code: Code, reason: str, line: LogLine | None = None) -> Check:
    """The gate passed; LINE proves it."""
    return result("pass", code, reason, line)


def failed(code: Code, reason: str, line: LogLine | None = None) -> Check:
    """The gate failed; LINE shows it."""
    return result("fail", code, reason, line)


def unknown(code: Code, reason: str, line: LogLine | None = None) -> Check:
    """There is not enough evidence."""
    return result("unknown", code, reason, line)


def not_required(code: Code, reason: str, line: LogLine | None = None) -> Check:
    """The expectation does not ask for this gate."""
    return result("not-required", code, reason, line)


def result(status: Status, code: Code, reason: str, line: LogLine | None = None) -> Check:
    """A Check with the line that proves it, if there is one."""
    return Check(
        name=code.gate,
        status=status,
        code=code,
        reason=reason,
        evidence=line.text[:EVIDENCE_WIDTH] if line else None,
        line=line.line if line else None,
    )
