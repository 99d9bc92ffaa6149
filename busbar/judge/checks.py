"""A check: the result of a gate as a status, a code and a reason.

passed, failed, unknown, not_required = by_status(Check.of)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Concatenate, Literal, ParamSpec, Self, TypeVar

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
