"""A gate of another scheduler needs its checks, its verdict and its job; nothing is copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from busbar.judge import COUNT_LINE, FIRST_LINE, LAST_LINE, checks
from busbar.judge.archive import Archive
from busbar.judge.checks import Check, JobOutcome, by_status, job_check, run_all
from busbar.judge.collector import Collector, JobNeverStarted, LogLost

START, END = f"{FIRST_LINE}\n".encode(), f"{LAST_LINE} 0\n".encode()
ROW = b"row 42\n"


class Verdict(checks.Verdict):
    checks: list[Check]


passed, failed, unknown, not_required = by_status(Check.of)


def log(context: dict[str, Any]) -> Check:
    missing = context["missing"]
    return unknown("log.damaged", "; ".join(missing)) if missing else passed("log.whole", "whole")


def rows(context: dict[str, Any]) -> Check:
    return passed("rows.there", "rows") if context["rows"] else failed("rows.missing", "no row")


def job(context: dict[str, Any]) -> Check | None:
    return job_check(Check.of, context["outcome"])


class Sbatch:
    """A job of another scheduler: its log is a list, `lost` the text with which that breaks off."""

    name = "slurm-7"

    def __init__(self, lines: Sequence[bytes] = (START, ROW, END), **how: Any) -> None:
        self._lines = lines
        self._how = how
        self.doubt: str | None = how.get("doubt")
        self.suspended = False
        self.reads = 0

    def uid(self) -> str:
        if never := self._how.get("unknown_job"):
            raise JobNeverStarted([never])
        return "7"

    def log(self) -> Sbatch:
        if never := self._how.get("never_started"):
            raise JobNeverStarted([never])
        return self

    def lines(self) -> Iterator[bytes]:
        self.reads += 1
        yield from self._lines
        if lost := self._how.get("lost"):
            raise LogLost(lost)

    def outcome(self, wait_seconds: float = 60) -> JobOutcome:
        assert (wait_seconds == 0) == bool(self._how.get("lost"))
        succeeded: bool | None = self._how.get("succeeded", True)
        return JobOutcome(succeeded, () if succeeded else ["PENDING"])

    def suspend(self) -> None:
        self.suspended = True


class Gate(Collector[list[bytes], Verdict]):
    cause_of_loss = ": the disk of the node is full"

    def read(self, lines: Iterable[bytes]) -> list[bytes]:
        return [line for line in lines if line.startswith(b"row")]

    def judge(self, log: list[bytes], outcome: JobOutcome, missing: Sequence[str] = ()) -> Verdict:
        found = run_all(GATES, {"rows": log, "outcome": outcome, "missing": missing})
        return Verdict(schema=1, checks=found, **checks.conclusion(found))

    def progress_text(self, line: bytes) -> str | None:
        return line.decode().strip() if line.startswith(b"row") else None

    def report(self, verdict: Verdict) -> str:
        return str(self.archive.folder.name)


GATES: tuple[Callable[[dict[str, Any]], Check | None], ...] = (job, log, rows)


def run(of: Sbatch, folder: Path, said: list[str] | None = None) -> Verdict:
    return Gate(of, Archive(folder / "pool"), (said if said is not None else []).append).run()


def test_a_whole_log_of_a_job_that_succeeded_passes_and_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    assert run(Sbatch(), tmp_path, said).passed
    assert said == ["row 42", "pass: pool"]


def test_a_whole_log_is_judged_again_without_the_job_s_log(tmp_path: Path) -> None:
    run(Sbatch(), tmp_path)
    again, said = Sbatch(), list[str]()
    assert run(again, tmp_path, said).passed
    assert (again.reads, said[0]) == (0, "slurm-7: judging the archived log again")


def test_a_log_that_breaks_off_is_no_pass_and_is_read_again(tmp_path: Path) -> None:
    found = run(Sbatch([START, ROW], lost="the node is down"), tmp_path)
    damage = "log: the node is down; the end of the launcher's log is missing"
    assert (found.verdict, found.reasons) == ("unknown", [damage])
    again = Sbatch()
    run(again, tmp_path)
    assert again.reads == 1


def test_lines_that_are_missing_are_named_with_their_cause(tmp_path: Path) -> None:
    count = f"{COUNT_LINE} 3 lines, 60 bytes\n".encode()
    [reason] = run(Sbatch([START, ROW, count, END]), tmp_path).reasons
    assert reason.endswith("were read: the disk of the node is full")


def test_a_doubt_about_lines_counts_only_where_the_job_did_not_count_them(tmp_path: Path) -> None:
    assert run(Sbatch(doubt="lines may be missing"), tmp_path / "a").reasons == ["log: lines may be missing"]
    size = len(START) + len(ROW)
    count = f"{COUNT_LINE} 2 lines, {size} bytes\n".encode()
    assert run(Sbatch([START, ROW, count, END], doubt="lines may be missing"), tmp_path / "b").passed


def test_errors_that_the_job_printed_come_before_the_scheduler_s(tmp_path: Path) -> None:
    printed = b"# busbar: all_reduce timed out: the limit is 900 s\n"
    found = run(Sbatch([START, ROW, printed, END], succeeded=False), tmp_path)
    assert found.reasons == ["job: all_reduce timed out: the limit is 900 s; PENDING"]


def test_a_job_without_an_end_is_suspended(tmp_path: Path) -> None:
    endless = Sbatch(succeeded=None)
    assert run(endless, tmp_path).verdict == "unknown"
    assert endless.suspended


def test_a_job_that_is_not_there_or_never_started_gives_its_reasons_and_no_pass(tmp_path: Path) -> None:
    absent: list[dict[str, Any]] = [{"unknown_job": "no job 7"}, {"never_started": "no job 7"}]
    for how in absent:
        found = run(Sbatch(**how), tmp_path)
        assert (found.passed, found.reasons) == (False, ["job: no job 7"])
