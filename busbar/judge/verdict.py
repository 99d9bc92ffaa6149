"""A verdict: the conclusion from all checks. Without a check that passed it is not a pass."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Self

from pydantic import ConfigDict, Field

from busbar.judge.checks import Check, JobOutcome, Overall
from busbar.models import StrictModel


class Verdict(StrictModel):
    """The common part of verdicts; that of a gate adds its checks and the measured values."""

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
    """`verdict`, `passed` and `reasons` of a verdict with these checks: those that failed come first."""
    states = {check.status for check in checks}
    # Without any gate nothing is proven.
    overall = next((status for status in ("fail", "unknown", "pass") if status in states), "unknown")
    worst_first = [c for status in ("fail", "unknown") for c in checks if c.status == status]
    reasons = [f"{check.name}: {check.sentence}" for check in worst_first]
    return {"verdict": overall, "passed": overall == "pass", "reasons": reasons}


def read_verdict(stdout: str | None, *, command: str, schema: int) -> dict[str, Any]:
    """The verdict that `busbar COMMAND` printed. Never raises: any other text is a verdict "unknown"."""
    try:
        verdict = json.loads(stdout or "")
        if isinstance(verdict, dict) and isinstance(verdict.get("passed"), bool):
            return verdict
        problem = "it is not a verdict"
    except ValueError as error:
        problem = f"it is not JSON ({error})"
    return {
        "schema": schema,
        "verdict": "unknown",
        "passed": False,
        "reasons": [f"the output of `busbar {command}` cannot be read: {problem}"],
    }
