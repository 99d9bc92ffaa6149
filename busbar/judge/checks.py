"""The result of a gate as a check, and the conclusion from all checks as a verdict.

passed, failed, unknown, not_required = by_status(Check.of)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar

from pydantic import ConfigDict, Field

from busbar.judge.archive import JobOutcome as JobOutcome
from busbar.models import StrictModel

Status = Literal["pass", "fail", "unknown", "not-required"]
Overall = Literal["pass", "fail", "unknown"]
STATUSES: tuple[Status, ...] = ("pass", "fail", "unknown", "not-required")

P = ParamSpec("P")
Made = TypeVar("Made")
Given = TypeVar("Given")


class Check(StrictModel):
    """The result of one gate: its finding, and the fix if there is one.

    `code` is `<gate>.<finding>`. The reason is text for users and may change; the code does not.
    `evidence` is the line of the log that proves it (at most 400 characters).
    """

    name: str
    status: Status
    code: str
    reason: str
    evidence: str | None = None
    fix: str = ""

    @classmethod
    def of(cls, status: Status, code: str, reason: str, evidence: str | None = None, fix: str = "") -> Self:
        """The result of the gate that CODE belongs to."""
        name = code.partition(".")[0]
        return cls(name=name, status=status, code=code, reason=reason, evidence=evidence, fix=fix)

    @property
    def sentence(self) -> str:
        """The reason, and the fix if there is one."""
        return f"{self.reason}{f'. Fix: {self.fix}' if self.fix else ''}"


def by_status(make: Callable[Concatenate[Status, P], Made]) -> tuple[Callable[P, Made], ...]:
    """MAKE for a gate that passed, that failed, that lacks its evidence, and that is not required."""
    return tuple(partial(make, status) for status in STATUSES)


def run_all(gates: Iterable[Callable[[Given], Made | None]], context: Given) -> list[Made]:
    """Run every gate in order, whatever the others find. A gate that returns None does not apply."""
    return [found for gate in gates if (found := gate(context)) is not None]


def job_check(make: Callable[[Status, str, str], Made], outcome: JobOutcome | None) -> Made | None:
    """The gate `job`: the job that printed the log succeeded. None where only a log was given."""
    if outcome is None:
        return None
    if outcome.succeeded:
        return make("pass", "job.succeeded", "the job succeeded")
    reason = "; ".join(outcome.reasons)
    if outcome.succeeded is None:
        return make("unknown", "job.unknown", reason or "how the job ended is not known")
    return make("fail", "job.failed", reason or "the job failed")


class Verdict(StrictModel):
    """The common part of verdicts; that of a gate adds its checks and the measured values.

    Without a check that passed it is not a pass.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, serialize_by_alias=True)

    schema_: int = Field(alias="schema")
    verdict: Overall
    passed: bool
    reasons: list[str]

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 2 no verdict."""
        return {"pass": 0, "fail": 1, "unknown": 2}[self.verdict]

    def without_log(self, outcome: JobOutcome) -> Self:
        """The verdict for a job that wrote nothing: its reasons are those of the job, not of every check."""
        return self.model_copy(update={"reasons": [f"job: {reason}" for reason in outcome.reasons]})


def conclusion(checks: Sequence[Check]) -> dict[str, Any]:
    """The fields `verdict`, `passed` and `reasons` that follow from these checks, the failed ones first."""
    states = {check.status for check in checks}
    # Without any gate nothing is proven.
    overall = next((status for status in ("fail", "unknown", "pass") if status in states), "unknown")
    worst_first = [c for status in ("fail", "unknown") for c in checks if c.status == status]
    reasons = [f"{check.name}: {check.sentence}" for check in worst_first]
    return {"verdict": overall, "passed": overall == "pass", "reasons": reasons}
