"""From a running training job to a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from busbar.judge.archive import Archive
from busbar.judge.checks import JobOutcome
from busbar.judge.collector import Collector
from busbar.kube.client import Api
from busbar.kube.wait import Clock, Deadline, ProgressCallback
from stacks.training.package.collect.spec import CollectSpec
from stacks.training.package.collect.watch import JobWatch
from stacks.training.package.expectation import Expectation
from stacks.training.package.log import TrainingLog, progress_text, read_lines
from stacks.training.package.verdict import Verdict, judge


def collect(api: Api, spec: CollectSpec, clock: Clock, progress: ProgressCallback) -> Verdict:
    """Collect and return the verdict on the job. Log and verdict are kept in `spec.folder`.

    A job that cannot start, fails, or does not end in time has a verdict too, and it is not a pass. Raises
    ApiError or Unreachable if nothing is known: the API refuses, or does not respond until the deadline.
    The same command can then be run again, because the log is still in the job's first pod.
    """
    return _Collector(api, spec, clock, progress).run()


def judge_folder(folder: Path) -> Verdict | None:
    """Judge the log that `collect` has kept in a folder, from this alone; None without the whole log."""
    archive = Archive(folder)
    kept = archive.record()
    if archive.complete_log_of is None or not kept.keys() >= {"expectation", "outcome"}:
        return None
    expectation = Expectation.model_validate(kept["expectation"])
    return judge(read_lines(archive.log_lines()), expectation, JobOutcome(**kept["outcome"]))


class _Collector(Collector[TrainingLog, Verdict]):
    """One run of the command."""

    read = staticmethod(read_lines)
    progress_text = staticmethod(progress_text)

    def __init__(self, api: Api, spec: CollectSpec, clock: Clock, progress: ProgressCallback) -> None:
        self._watch = JobWatch(
            api, spec.namespace, spec.job, Deadline(clock, spec.deadline_seconds), progress
        )
        super().__init__(self._watch, Archive(Path(spec.folder)), progress)
        self._expectation = spec.expectation
        self._outcome = JobOutcome(None)

    def judge(self, log: TrainingLog, outcome: JobOutcome, missing: Sequence[str] = ()) -> Verdict:
        self._outcome = outcome
        return judge(log, self._expectation, outcome, tuple(missing))

    def store(self, uid: str, verdict: Verdict) -> None:
        """Keep beside a complete log what it is judged by."""
        if self.archive.complete_log_of == uid:
            about = {"expectation": verdict.expectation, "outcome": asdict(self._outcome)}
            self.archive.mark_complete(uid, {**about, "measured_at": self._watch.created_at})

    def report(self, verdict: Verdict) -> str:
        return str(self.archive.folder)
