"""The result of one check: what was found as a code, and why."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from stacks.training.package.checks.codes import Code

Status = Literal["pass", "fail", "unknown", "not-required"]


class Check(BaseModel):
    """`evidence`: the line of the log that proves it, where one line does (at most 400 characters)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    status: Status
    code: Code
    reason: str
    evidence: str | None = None


def passed(code: Code, reason: str, evidence: str | None = None) -> Check:
    """The check passed."""
    return Check(name=code.check, status="pass", code=code, reason=reason, evidence=evidence)


def failed(code: Code, reason: str, evidence: str | None = None) -> Check:
    """The check failed."""
    return Check(name=code.check, status="fail", code=code, reason=reason, evidence=evidence)


def unknown(code: Code, reason: str, evidence: str | None = None) -> Check:
    """There is not enough evidence."""
    return Check(name=code.check, status="unknown", code=code, reason=reason, evidence=evidence)


def not_required(code: Code, reason: str) -> Check:
    """The expectation does not ask for this check."""
    return Check(name=code.check, status="not-required", code=code, reason=reason)
