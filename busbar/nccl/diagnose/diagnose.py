"""From the lines that were recognized and the codes that the gates gave to diagnoses, most severe first."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from busbar.nccl.checks.context import Context
from busbar.nccl.checks.result import Check
from busbar.nccl.diagnose.rules import SEVERITY_ORDER, Observation, Rule, Severity, rule, rules
from busbar.nccl.log.reader import KnownLine
from busbar.nccl.log.records import LogLine


class Diagnosis(BaseModel):
    """A known failure that was seen: what it means and what to run next. `count`: lines that show it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    severity: Severity
    meaning: str
    cause: str
    next: str
    line: int
    evidence: str
    count: int = 1


def diagnose(context: Context, checks: list[Check]) -> list[Diagnosis]:
    """Every known failure that the log shows, most severe first."""
    found = [_of_line(known) for known in context.log.known_lines]
    by_code = {check.code: check for check in checks}
    observed = _observations(context)
    for each in rules():
        code = next((c for c in each.codes if c in by_code), None)
        if code is not None and not any(c in by_code for c in each.unless):
            check = by_code[code]
            found.append(_diagnosis(each, check.line or 0, check.evidence or check.reason))
        elif each.observed is not None and each.observed in observed:
            line = observed[each.observed]
            found.append(_diagnosis(each, line.line, line.text))
    return sorted(found, key=lambda d: SEVERITY_ORDER.index(d.severity))


def _observations(context: Context) -> dict[Observation, LogLine]:
    """What the log shows beside the gates: GPUs of one host that exchange data through its memory."""
    if not context.expectation.nvlink_gbps:
        return {}
    shared = (e.first for e in context.evidence.edges.values() if e.transport.kind == "SHM")
    first = min(shared, key=lambda line: line.line, default=None)
    return {} if first is None else {"shared-memory-edge": first}


def _of_line(known: KnownLine) -> Diagnosis:
    return _diagnosis(rule(known.name), known.first.line, known.first.text, known.count)


def _diagnosis(found: Rule, line: int, evidence: str, count: int = 1) -> Diagnosis:
    return Diagnosis(
        name=found.name,
        severity=found.severity,
        meaning=found.meaning,
        cause=found.cause,
        next=found.next,
        line=line,
        evidence=evidence,
        count=count,
    )
