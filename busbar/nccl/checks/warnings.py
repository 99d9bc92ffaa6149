"""Gate on the lines that were recognized as failures, and on warnings of an unknown kind."""

from __future__ import annotations

from busbar.nccl.checks.codes import Code
from busbar.nccl.checks.context import Context
from busbar.nccl.checks.result import Check, failed, passed


def warnings(context: Context) -> Check:
    """No line of the log is a known failure; warnings of unknown kind are reported."""
    log = context.log
    fatal = [known for known in log.known_lines if known.severity == "fatal"]
    if fatal:
        reason = "; ".join(f"{known.name}: {known.meaning}" for known in fatal[:4])
        return failed(Code.WARNINGS_KNOWN_FAILURE, reason, fatal[0].first)
    if log.evidence.test_failures:
        line = next(iter(log.evidence.test_failures.values()))
        return failed(Code.WARNINGS_TEST_FAILURE, "nccl-tests reports a failure", line)
    known_texts = {known.first.text for known in log.known_lines}
    strange = [s for s in log.evidence.warnings.values() if s.text not in known_texts]
    if strange:
        return passed(Code.WARNINGS_UNKNOWN_KIND, f"{len(strange)} WARN of an unknown kind", strange[0])
    found = "only WARN lines that are known to be harmless" if log.evidence.warnings else "no WARN line"
    return passed(Code.WARNINGS_NONE, found)
