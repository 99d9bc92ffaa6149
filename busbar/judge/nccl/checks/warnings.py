"""Gate on lines that were recognized as failures, and on unknown ones that look like a failure."""

from __future__ import annotations

from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.checks.result import Check, failed, passed, unknown
from busbar.judge.nccl.log.matcher import NOTED, SHOWN

ACCEPT = "find out what it means; --accept-warn TEXT (validation.accept_warnings) accepts it by name"


def warnings(context: Context) -> Check:
    """Check that no line of the log is a failure, known or unknown."""
    log = context.log
    fatal = [known for known in log.known_lines if known.severity == "fatal"]
    if fatal:
        reason = "; ".join(f"{known.name}: {known.meaning}" for known in fatal[:4])
        return failed("warnings.known_failure", reason, fatal[0].first)
    if log.evidence.test_failures:
        line = next(iter(log.evidence.test_failures.values()))
        return failed("warnings.test_failure", "nccl-tests reports a failure", line)
    wanted = context.expectation.accept_warnings
    judged = [s for s in log.unknown_lines if s.value not in SHOWN]
    strange = [s for s in judged if not any(text in s.text for text in wanted)]
    if strange:
        more = f" (and {len(strange) - 1} more)" if strange[1:] else ""
        first = strange[0]
        kind = (
            first.value if first.value != first.text else "a line that looks like a failure and is not known"
        )
        reason = f"{kind}: {first.text[:200]}{more}"
        return unknown("warnings.unknown_kind", reason, strange[0], ACCEPT)
    if log.unknown_lines:
        shown = judged or sorted(log.unknown_lines, key=lambda s: s.value == NOTED)
        how = "accepted by name" if judged else shown[0].value
        reason = f"{how}: {'; '.join(s.text[:200] for s in shown[:4])}"
        return passed("warnings.accepted", reason, shown[0])
    found = "only WARN lines that are known to be harmless" if log.evidence.warnings else "no WARN line"
    checked = next(
        (known.first for known in log.known_lines if known.name == "nccl-diagnostics-passed"), None
    )
    if checked is not None:
        return passed("warnings.none", f"{found}; NCCL's own diagnostics passed", checked)
    return passed("warnings.none", found)
