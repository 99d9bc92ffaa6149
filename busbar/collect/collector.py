"""From a running MPIJob to a verdict: watch the job, follow and judge the log, keep the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Collected:
    """`verdict`: the JSON object of busbar.nccl.verdict. `config_map`: NAMESPACE/NAME, None if not stored."""

    verdict: dict[str, Any]
    config_map: str | None = None


def collect(api: Api, spec: CollectSpec, clock: Clock, progress: ProgressCallback) -> Collected:
    """The verdict on the job, and where in the cluster it is stored.

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

    def run(self) -> Collected:
        try:
            job = self._watch.job()
        except JobNeverStarted as never:
            return Collected(self._keep(self._without_log(JobOutcome(None, never.reasons))))
        store = ResultStore(self._api, self._spec.namespace, job, self._spec.expectation)
        stored = store.read()
        if stored and (verdict := judging.read_verdict(stored)):
            self._progress(f"{self._spec.job}: verdict found in ConfigMap {store.name}")
            return Collected(self._keep(verdict), store.address)
        result = self._keep(self._judge_archived(job) or self._measure(job))
        # A stored verdict is final. One that is unknown, or based on part of the log, is not.
        final = result["verdict"] != "unknown" and self._archive.has_complete_log_of(job["metadata"]["uid"])
        return Collected(result, self._publish(store, result) if final else None)

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
            outcome = JobOutcome(outcome.succeeded, (*recording.errors, *outcome.reasons))
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
        job = f"{self._spec.namespace}/{self._spec.job}"
        judging.write_report(verdict, self._archive.report, self._archive.log, job)
        busbw = "no bandwidth" if verdict.busbw_gbps is None else f"{verdict.busbw_gbps:g} GB/s"
        self._progress(f"{verdict.verdict}: {busbw}; report: {self._archive.report}")
        for reason in verdict.reasons:
            self._progress(f"  {reason}")
        return result

    def _publish(self, store: ResultStore, result: dict[str, Any]) -> str | None:
        """Store a copy in the cluster and return where; None, with a message, if that failed."""
        try:
            store.write(result)
        except (ApiError, ValueError) as error:
            self._progress(f"ConfigMap {store.name} could not be written: {error}")
            return None
        return store.address
