"""The verdict as JSON: the measured and the expected values, and every gate with its evidence."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from busbar.judge import verdict
from busbar.judge.checks import Overall, Status
from busbar.judge.nccl.checks.context import Check, CollectiveResult, Point
from busbar.judge.nccl.checks.transport import ProvenTransport
from busbar.judge.nccl.diagnose import Diagnosis, Remark

__all__ = ["Check", "CollectiveResult", "Diagnosis", "Overall", "Point", "Status", "Verdict"]

SCHEMA: Literal[3] = 3
"""Version of the verdict and of the record beside it. Those before 3 are of a busbar before 1.0."""


class Verdict(verdict.Verdict):
    """The whole judgement of one log."""

    schema_: Literal[3] = Field(default=SCHEMA, alias="schema")
    busbw_gbps: float | None
    expected_gbps: float | None
    floor_gbps: float | None
    ceiling_gbps: float | None
    fraction: float | None
    collectives: dict[str, CollectiveResult]
    ranks: int | None
    nodes: int | None
    transport: ProvenTransport
    channels: dict[str, int]
    rails_per_host: dict[str, int]
    hosts_per_rail: dict[str, int] = Field(default_factory=dict, description="device -> hosts that used it")
    hosts: list[str] = Field(default_factory=list, description="hosts of the device list")
    nccl_version: str | None
    plugin: str | None
    plugin_path: str | None
    topology_file: str | None
    hcas: list[str]
    checks: list[Check]
    diagnoses: list[Diagnosis] = Field(default=[])
    remarks: list[Remark] = Field(default_factory=list, description="what is unusual and decides nothing")
    more_remarks: int = Field(default=0, description="unusual lines that are not among the remarks")
    environment: dict[str, str] = Field(default={})
    open_files: dict[str, list[str]] = Field(
        default={}, description="limits of a rank, such as `soft 1024, hard 524288` -> its hosts"
    )
    tests_version: str | None = None
    gpu: str | None = None
    expectation: dict[str, Any]
    log_sha256: str
    log_bytes: int
    log_lines: int = 0
    log_date: str | None = Field(default=None, description="the first date in the log, as printed")
    judge: int = Field(default=1, description="version of the gates and expectations that judged")
    busbar_version: str | None = Field(default=None, description="of the busbar that judged")
    simulated: str | None = Field(default=None, description="what the log says was simulated; None: nothing")

    def check(self, name: str) -> Check:
        """The gate NAME. Raises KeyError."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)

    @property
    def differences(self) -> list[str]:
        """The facts that the hosts print differently."""
        return [remark.text for remark in self.remarks if remark.kind == "differs"]

    @property
    def configured(self) -> bool:
        """Whether the expected value of the headline collective was configured, not computed."""
        return "expected_busbw_gbps" in self.expectation
