"""The only module here that judges (busbar.nccl): log and outcome of a job in, a verdict out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from busbar.nccl import Expectation, JobOutcome, judge_log, read_lines
from busbar.nccl import Verdict as Verdict
from busbar.nccl.log.clean import clean
from busbar.nccl.log.patterns import ROW, VALUE
from busbar.nccl.report.html import Origin, write_html
from busbar.nccl.units import size

__all__ = [
    "JobOutcome", "LogJudge", "Verdict", "as_json", "read_verdict", "row_text", "verdict_without_log",
    "write_report",
]  # fmt: skip


class LogJudge:
    """Reads the lines of one log, then judges them."""

    def __init__(self, lines: Iterable[bytes] = ()) -> None:
        """Read `lines` to their end."""
        self._log = read_lines(lines)

    def verdict(
        self, expectation: Mapping[str, Any], outcome: JobOutcome, missing: Sequence[str] = ()
    ) -> Verdict:
        """The log's verdict with the job's check first. It is never a pass unless the job succeeded.

        `expectation`: see busbar.nccl.Expectation. `missing`: which parts of the log
        could not be read, one sentence each.
        """
        self._log.truncated = "; ".join(missing) or self._log.truncated
        return judge_log(self._log, Expectation.model_validate(dict(expectation)), outcome)


def verdict_without_log(expectation: Mapping[str, Any], outcome: JobOutcome) -> Verdict:
    """The verdict on a job that wrote nothing: the reasons are the job's, not those of every check."""
    verdict = LogJudge().verdict(expectation, outcome)
    return verdict.model_copy(update={"reasons": [f"job: {reason}" for reason in outcome.reasons]})


def read_verdict(stored: Mapping[str, Any]) -> Verdict | None:
    """A stored verdict; None where another version of busbar wrote it in another format."""
    try:
        return Verdict.model_validate(stored)
    except ValidationError:
        return None


def as_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict as a JSON object (busbar.nccl.verdict)."""
    found: dict[str, Any] = verdict.model_dump(mode="json", by_alias=True)
    return found


def write_report(verdict: Verdict, path: Path, log: Path, job: str) -> None:
    """Write the report for a browser; it names LOG and JOB (NAMESPACE/NAME)."""
    write_html(verdict, path, Origin.of(str(log), f" of MPIJob {job}"))


def row_text(line: bytes) -> str | None:
    """`8 GiB: 390.3 GB/s out of place, 390.2 GB/s in place` for a complete row of a table, else None."""
    found = ROW.search(clean(line.decode("utf-8", "replace")))
    if not found:
        return None
    values = found[4].split()[-8:]
    if len(values) < 8 or not all(VALUE.match(value) for value in values):
        return None
    return f"{size(int(found[1]))}: {values[2]} GB/s out of place, {values[6]} GB/s in place"
