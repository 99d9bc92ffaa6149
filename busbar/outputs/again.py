"""A stored verdict under a new judge: the kept log is judged again, without a measurement.

The state of a stack keeps what the collector printed, and its inputs stay as they are: no resource changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from busbar.judge.archive import Archive
from busbar.judge.nccl.expected import JUDGE
from busbar.judge.record import JobOutcome
from busbar.outputs.pool import read_result, summarize
from busbar.zstd import ZstdError


def judged_again(
    result: dict[str, Any],
    spec: Mapping[str, Any],
    *,
    keep: bool,
    announce: Callable[[str], None],
    is_former: bool = False,
) -> dict[str, Any]:
    """The RESULT of one pool by the judge of this busbar.

    The folder of its log has the expectation and the outcome of the job. Where an earlier release has written
    no expectation there, it is that of SPEC (busbar.collect.spec), unless IS_FORMER: then the measurement is
    older than SPEC. KEEP and ANNOUNCE: as in `current_result`. If the log is missing, incomplete or from
    another measurement, the stored verdict stays.
    """
    archive = Archive(Path(spec["folder"]))
    stored = archive.verdict()
    if stored is None or not _is_of(stored, result):
        return result
    former = stored.get("judge", 1)
    if former != JUDGE:
        try:
            given = None if is_former else spec["expectation"]
            stored = _judge(archive, stored, given, f"{spec['namespace']}/{spec['job']}", keep=keep)
        except (OSError, EOFError, ZstdError) as error:
            announce(f"{archive.log} cannot be judged again, its verdict of judge {former} stays: {error}")
            return result
    if stored is None:
        return result
    known = {key: result.get(key) for key in ("verdict_file", "measured_at")}
    found = read_result(json.dumps(summarize(stored, **known)))
    if _brief(found) == _brief(result) and found.get("reasons") == result.get("reasons"):
        return result
    if former != JUDGE:
        why = f" ({found['reasons'][0]})" if found.get("reasons") else ""
        announce(
            f"pool {archive.folder.name} is judged again, not measured: by judge {former} {_brief(result)}, "
            f"by judge {JUDGE} {_brief(found)}{why}"
        )
    return found


def _is_of(verdict: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    """Whether VERDICT is about the measurement of RESULT, whichever judge wrote it."""
    try:
        found = read_result(json.dumps(summarize(verdict)))
    except (ValueError, AttributeError, KeyError, TypeError):
        return False
    measured = ("curve", "busbw_gbps", "nccl_version")
    return bool(result.get("curve")) and all(found.get(key) == result.get(key) for key in measured)


def _judge(
    archive: Archive, stored: Mapping[str, Any], given: Mapping[str, Any] | None, job: str, *, keep: bool
) -> dict[str, Any] | None:
    """The new verdict on the kept log; None where that is not the whole log of the stored verdict."""
    from busbar.judge.nccl.judgement import judge_archive
    from busbar.judge.nccl.report.html import Origin, write_html

    judged = judge_archive(archive, given, _outcome(stored))
    if judged is None or judged[0].sha256 != stored.get("log_sha256"):
        return None
    verdict = judged[1]
    found = verdict.model_dump(mode="json")
    if keep:
        archive.save_verdict(found)
        write_html(verdict, archive.report, Origin.of(str(archive.log), f" of {job}"))
    return found


def _outcome(stored: Mapping[str, Any]) -> JobOutcome | None:
    """The outcome of the job according to the stored verdict of an earlier release."""
    check = next((c for c in stored.get("checks") or () if c.get("name") == "job"), None)
    if check is None:
        return None
    succeeded = {"pass": True, "fail": False}.get(check.get("status"))
    return JobOutcome(succeeded, () if succeeded else (str(check.get("reason")),))


def _brief(result: Mapping[str, Any]) -> str:
    """Verdict and expectation of a result, such as `pass, 400 GB/s expected`."""
    expected = result.get("expected_gbps")
    return f"{result['verdict']}, {'no value' if expected is None else f'{expected:g} GB/s'} expected"
