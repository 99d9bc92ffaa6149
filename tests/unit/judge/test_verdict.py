"""What follows from checks."""

import pytest

from busbar.judge.checks import Check, Status, Verdict, conclusion, job_check
from busbar.judge.checks import JobOutcome as Outcome


def checks(*statuses: Status) -> list[Check]:
    return [Check.of(status, "queue.found", f"number {i}") for i, status in enumerate(statuses)]


@pytest.mark.parametrize(
    ("statuses", "overall", "exit_code"),
    [
        (("pass", "not-required"), "pass", 0),
        (("pass", "unknown"), "unknown", 2),
        (("unknown", "fail", "pass"), "fail", 1),
        (("not-required",), "unknown", 2),
        ((), "unknown", 2),
    ],
)
def test_a_verdict_is_its_worst_check_and_nothing_is_no_pass(
    statuses: tuple[Status, ...], overall: str, exit_code: int
) -> None:
    verdict = Verdict(schema=1, **conclusion(checks(*statuses)))
    assert (verdict.verdict, verdict.passed, verdict.exit_code) == (overall, overall == "pass", exit_code)


def test_reasons_name_what_failed_before_what_is_unknown() -> None:
    found = conclusion(checks("unknown", "pass", "fail", "not-required"))
    assert found["reasons"] == ["queue: number 2", "queue: number 0"]


def test_a_job_that_wrote_nothing_gives_its_own_reasons() -> None:
    verdict = Verdict(schema=1, **conclusion(checks("unknown")))
    verdict = verdict.without_log(Outcome(None, ["no nodes", "b"]))
    assert (verdict.verdict, verdict.reasons) == ("unknown", ["job: no nodes", "job: b"])


@pytest.mark.parametrize(
    ("outcome", "status", "reason"),
    [
        (Outcome(True), "pass", "the job succeeded"),
        (Outcome(False), "fail", "the job failed"),
        (Outcome(False, ("a", "b")), "fail", "a; b"),
        (Outcome(None), "unknown", "how the job ended is not known"),
        (Outcome(None, ("a",)), "unknown", "a"),
    ],
)
def test_how_the_job_ended_is_a_check(outcome: Outcome, status: Status, reason: str) -> None:
    check = job_check(Check.of, outcome)
    assert check is not None
    assert (check.name, check.status, check.reason) == ("job", status, reason)


def test_a_log_without_its_job_has_no_such_check() -> None:
    assert job_check(Check.of, None) is None
