"""The verdict: what was measured, what was expected, every gate with its evidence, as JSON."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Status = Literal["pass", "fail", "unknown", "not-required"]
Overall = Literal["pass", "fail", "unknown"]
Found = Literal[
    "gpudirect-rdma", "rdma", "socket", "tcp-device-memory", "mnnvl", "single-node", "mixed", "unknown"
]


class Model(BaseModel):
    """Base of all parts: no unknown fields, not changed after the fact."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Check(Model):
    """One gate. `evidence` is the line of the log that proves it (at most 400 characters)."""

    name: str
    status: Status
    reason: str
    evidence: str | None = None
    line: int | None = None


class HalfPoint(Model):
    """One half of a row: us, GB/s, GB/s; `wrong` is the printed last column (None: not compared)."""

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
    out_of_place: HalfPoint
    in_place: HalfPoint


class CollectiveResult(Model):
    """One collective: its curve, and its value at the largest message against what was expected (GB/s)."""

    busbw_gbps: float | None
    expected_gbps: float | None
    floor_gbps: float | None
    ceiling_gbps: float | None
    fraction: float | None
    passed: bool
    size_bytes: int | None = None
    reasoning: list[str] = Field(default_factory=list)
    curve: list[Point] = Field(default_factory=list)


class Diagnosis(Model):
    """A known failure shape that was seen: what it means and what to run next."""

    name: str
    severity: Literal["fatal", "degraded", "note"]
    meaning: str
    cause: str
    next: str
    line: int
    evidence: str
    count: int = 1


class Verdict(Model):
    """The whole judgement of one log."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    verdict: Overall
    passed: bool
    reasons: list[str]
    busbw_gbps: float | None
    expected_gbps: float | None
    floor_gbps: float | None
    ceiling_gbps: float | None
    fraction: float | None
    collectives: dict[str, CollectiveResult]
    ranks: int | None
    nodes: int | None
    transport: Found
    channels: dict[str, int]
    rails_per_host: dict[str, int]
    nccl_version: str | None
    plugin: str | None
    plugin_path: str | None
    topology_file: str | None
    hcas: list[str]
    checks: list[Check]
    diagnoses: list[Diagnosis] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    environment: dict[str, str] = Field(default_factory=dict)
    tests_version: str | None = None
    gpu: str | None = None
    expectation: dict[str, Any]
    log_sha256: str
    log_bytes: int
    log_lines: int = 0
    stand_ins: list[str]

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, serialize_by_alias=True)

    def check(self, name: str) -> Check:
        """The gate NAME. Raises KeyError."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)

    @property
    def by_hand(self) -> bool:
        """True where a person said what to expect of the headline collective, and it was not computed."""
        return "expected_busbw_gbps" in self.expectation

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 2 no verdict."""
        return {"pass": 0, "fail": 1, "unknown": 2}[self.verdict]
