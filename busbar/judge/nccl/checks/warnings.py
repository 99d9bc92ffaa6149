"""Gate on lines: no known failure, no end of the program but a good one, and nothing among its rows."""

from __future__ import annotations

from busbar.judge.nccl.checks.context import Check, Context, failed, passed, unknown
from busbar.judge.nccl.log.records import KnownLine, LogLine

ACCEPT = "find out what it means; --accept-warn TEXT (validation.accept_warnings) accepts it by name"

# what an unusual line says of the run -> code, reason
MEANS = {
    "disturbed": ("warnings.disturbed", "among the rows, and not known"),
    "ended badly": ("warnings.ended_badly", "the program or its launcher did not end well"),
    "fault": ("warnings.fault", "a tool or a check says that hardware is not well"),
}


def warnings(context: Context) -> Check:
    """Check that no line of the log is a failure, ends the run or disturbs its rows."""
    log = context.log
    fatal = [known for known in log.known_lines if known.severity == "fatal"]
    if fatal:
        reason = "; ".join(f"{known.name}: {known.meaning}" for known in fatal[:4])
        return failed("warnings.known_failure", reason, fatal[0].first)
    if log.evidence.test_failures:
        line = next(iter(log.evidence.test_failures.values()))
        return failed("warnings.test_failure", "nccl-tests reports a failure", line)
    doubts = _doubts(context)
    wanted = context.expectation.accept_warnings
    open_ = [doubt for doubt in doubts if not any(text in doubt[2].text for text in wanted)]
    if open_:
        code, why, line = open_[0]
        more = f" (and {len(open_) - 1} more)" if open_[1:] else ""
        return unknown(code, f"{why}: {line.text[:200]}{more}", line, ACCEPT)
    if doubts:
        reason = "; ".join(line.text[:200] for _, _, line in doubts[:4])
        return passed("warnings.accepted", f"accepted by name: {reason}", doubts[0][2])
    checked = next((k.first for k in log.known_lines if k.name == "nccl-diagnostics-passed"), None)
    if checked is not None:
        return passed("warnings.none", "no line disturbs the rows; NCCL's own diagnostics passed", checked)
    return passed("warnings.none", "no line disturbs the rows or ends the run")


def _doubts(context: Context) -> list[tuple[str, str, LogLine]]:
    """Code, reason and line of each doubt about the run, in the order of the log."""
    found = []
    for known in context.log.known_lines:
        if known.no_verdict:
            found.append(("warnings.no_verdict", known.meaning, known.first))
        elif known.among_rows is not None and not _is_proven(context, known):
            found.append(("warnings.disturbed", f"among the rows, {known.meaning}", known.among_rows))
    for unusual in context.log.unusual:
        if unusual.decides:
            found.append((*MEANS[unusual.decides], unusual.first))
    return sorted(found, key=lambda doubt: doubt[2].line)


def _is_proven(context: Context, known: KnownLine) -> bool:
    """True if the gates that a rule names have proven that its line did no harm."""
    return bool(known.proven_by) and context.passed.issuperset(known.proven_by)
