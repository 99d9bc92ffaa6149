"""From a running training job to a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from busbar.collect.archive import Archive
from busbar.collect.follower import LogFollower, LogLost
from busbar.collect.jobwatch import JobNeverStarted
from busbar.collect.recording import Recording
from busbar.kube.client import Api, JsonObject
from busbar.kube.wait import Clock, Deadline, ProgressCallback
from busbar.nccl import JobOutcome
from stacks.training.package import log as training_log
from stacks.training.package.collect.spec import CollectSpec
from stacks.training.package.collect.watch import JobWatch
from stacks.training.package.proof import CONTAINER
from stacks.training.package.verdict import Verdict, judge


def collect(api: Api, spec: CollectSpec, clock: Clock, progress: ProgressCallback) -> Verdict:
    """The verdict on the job. Log and verdict are kept in `spec.folder`.

    A job that cannot start, fails, or does not end in time has a verdict too, and it is not a pass. Raises
    ApiError or Unreachable where nothing is known: the API refuses, or does not answer until the deadline.
    The same command can then be run again, because the log is still in the job's first pod.
    """
    archive = Archive(Path(spec.folder))
    watch = JobWatch(api, spec.namespace, spec.job, Deadline(clock, spec.deadline_seconds), progress)
    verdict = _verdict(api, spec, watch, archive, progress)
    archive.save_verdict(verdict.model_dump(mode="json"))
    progress(f"{verdict.verdict}: {archive.folder}")
    for reason in verdict.reasons:
        progress(f"  {reason}")
    return verdict


def _verdict(
    api: Api, spec: CollectSpec, watch: JobWatch, archive: Archive, progress: ProgressCallback
) -> Verdict:
    nothing = training_log.read_lines(())
    try:
        job = watch.job()
        if archive.has_complete_log_of(job["metadata"]["uid"]):
            progress(f"{spec.job}: judging the archived log again")
            read = training_log.read_lines(archive.log_lines())
            return judge(read, spec.expectation, watch.outcome())
        pod = watch.first_pod()
    except JobNeverStarted as never:
        verdict = judge(nothing, spec.expectation, JobOutcome(None, never.reasons))
        # The reasons are the job's, not those of every check that lacks its evidence.
        return verdict.model_copy(update={"reasons": [f"job: {reason}" for reason in never.reasons]})
    return _follow(api, spec, watch, archive, progress, job, pod)


def _follow(
    api: Api,
    spec: CollectSpec,
    watch: JobWatch,
    archive: Archive,
    progress: ProgressCallback,
    job: JsonObject,
    pod: JsonObject,
) -> Verdict:
    """Follow the log of the first pod to its end, and judge it."""
    name = pod["metadata"]["name"]
    progress(f"following the log of {name}")
    follower = LogFollower(api, spec.namespace, name, CONTAINER, watch.deadline, progress)
    lost: list[str] = []

    def lines() -> Iterator[bytes]:
        try:
            yield from follower.lines()
        except LogLost as error:
            lost.append(str(error))

    with archive.new_log() as sink:
        recording = Recording(sink, progress)
        read = training_log.read_lines(_reported(recording.tee(lines()), progress))
    outcome = watch.outcome(wait_seconds=0) if lost else watch.outcome()
    if outcome.succeeded is None:
        watch.suspend()
    missing = [*lost, *recording.missing]
    if follower.gaps:
        missing.append(
            f"lines may be missing after {follower.gaps} of {follower.reconnections} reconnections"
        )
    if not missing:
        archive.mark_complete(job["metadata"]["uid"])
    return judge(read, spec.expectation, outcome, tuple(missing))


def _reported(lines: Iterable[bytes], progress: ProgressCallback) -> Iterator[bytes]:
    """The same lines; what a person wants to see of them is reported."""
    for line in lines:
        if text := training_log.progress_text(line):
            progress(text)
        yield line
