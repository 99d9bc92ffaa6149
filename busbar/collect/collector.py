"""From a running MPIJob to a verdict: watch the job, follow and judge the log, keep the result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from busbar.collect import judging
from busbar.collect.archive import Archive
from busbar.collect.follower import LogFollower, LogLost
from busbar.collect.jobwatch import JobNeverStarted, JobWatch
from busbar.collect.judging import JobOutcome, LogJudge, Verdict
from busbar.collect.recording import Recording
from busbar.collect.result import ResultStore
from busbar.collect.spec import CollectSpec
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.wait import Clock, Deadline, ProgressCallback
from busbar.manifests.mpijob import CONTAINER


def collect(api: Api, spec: CollectSpec, clock: Clock, progress: ProgressCallback) -> dict[str, Any]:
    """The verdict on the job, as the JSON object of busbar.nccl.verdict.

    A job that cannot start, fails, or does not end in time has a verdict too, and it is not a pass. Raises
    ApiError or Unreachable where nothing is known: the API refuses, or does not answer until the deadline.
    The same command can then be run again, because the log is still in the launcher's pod.
    """
    return _Collector(api, spec, clock, progress).run()


class _Collector:
    """One run of the command."""

    def __init__(self, api: Api, spec: CollectSpec, clock: Clock, progress: ProgressCallback) -> None:
        self._api = api
        self._spec = spec
        self._progress = progress
        self._archive = Archive(Path(spec.folder))
        deadline = Deadline(clock, spec.deadline_seconds)
        self._watch = JobWatch(api, spec.namespace, spec.job, deadline, progress)

    def run(self) -> dict[str, Any]:
        try:
            job = self._watch.job()
        except JobNeverStarted as never:
            return self._keep(self._without_log(JobOutcome(None, never.reasons)))
        store = ResultStore(self._api, self._spec.namespace, job, self._spec.expectation)
        stored = store.read()
        if stored and (verdict := judging.read_verdict(stored)):
            self._progress(f"{self._spec.job}: verdict found in ConfigMap {store.name}")
            return self._keep(verdict)
        result = self._keep(self._judge_archived(job) or self._measure(job))
        if result["verdict"] != "unknown" and self._archive.has_complete_log_of(job["metadata"]["uid"]):
            # A stored verdict is final. One that is unknown, or based on part of the log, is not.
            self._publish(store, result)
        return result

    def _judge_archived(self, job: JsonObject) -> Verdict | None:
        """Judge the archived log of this job, where only the expectation has changed."""
        if not self._archive.has_complete_log_of(job["metadata"]["uid"]):
            return None
        self._progress(f"{self._spec.job}: judging the archived log again")
        return LogJudge(self._archive.log_lines()).verdict(self._spec.expectation, self._watch.outcome())

    def _measure(self, job: JsonObject) -> Verdict:
        """Wait for the launcher, follow its log to the end, and judge it."""
        try:
            launcher = self._watch.launcher()
        except JobNeverStarted as never:
            succeeded = self._outcome_or_suspend(wait_seconds=0).succeeded
            return self._without_log(JobOutcome(succeeded, never.reasons))
        pod = launcher["metadata"]["name"]
        self._progress(f"following the log of {pod}")
        follower = LogFollower(
            self._api, self._spec.namespace, pod, CONTAINER, self._watch.deadline, self._progress
        )
        lost: list[str] = []

        def lines() -> Iterator[bytes]:
            try:
                yield from follower.lines()
            except LogLost as error:
                lost.append(str(error))

        with self._archive.new_log() as sink:
            recording = Recording(sink, self._progress)
            judge = LogJudge(recording.tee(lines()))
        outcome = self._outcome_or_suspend(wait_seconds=0) if lost else self._outcome_or_suspend()
        if not outcome.succeeded:
            outcome = JobOutcome(outcome.succeeded, [*recording.errors, *outcome.reasons])
        missing = [*lost, *recording.missing]
        if follower.gaps and not recording.counted:
            missing.append(
                f"lines may be missing after {follower.gaps} of {follower.reconnections} reconnections"
            )
        if not missing:
            self._archive.mark_complete(job["metadata"]["uid"])
        return judge.verdict(self._spec.expectation, outcome, missing)

    def _outcome_or_suspend(self, **wait: float) -> JobOutcome:
        """The outcome; a job that has none is suspended, so that its workers release their GPUs."""
        outcome = self._watch.outcome(**wait)
        if outcome.succeeded is None:
            self._watch.suspend()
        return outcome

    def _without_log(self, outcome: JobOutcome) -> Verdict:
        return judging.verdict_without_log(self._spec.expectation, outcome)

    def _keep(self, verdict: Verdict) -> dict[str, Any]:
        """Write verdict and report beside the log, and return the verdict as JSON."""
        result = judging.as_json(verdict)
        self._archive.save_verdict(result)
        judging.write_report(verdict, self._archive.report)
        busbw = "no bandwidth" if verdict.busbw_gbps is None else f"{verdict.busbw_gbps:g} GB/s"
        self._progress(f"{verdict.verdict}: {busbw}; report: {self._archive.report}")
        for reason in verdict.reasons:
            self._progress(f"  {reason}")
        return result

    def _publish(self, store: ResultStore, result: dict[str, Any]) -> None:
        """Store the verdict in the cluster. It is a copy: an error is reported and changes nothing."""
        try:
            store.write(result)
        except (ApiError, ValueError) as error:
            self._progress(f"ConfigMap {store.name} could not be written: {error}")
