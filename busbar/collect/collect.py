"""From a running MPIJob to a verdict: wait, follow the log, judge it while it comes, keep everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from busbar.collect.archive import Archive
from busbar.collect.follow import LogFollower, LogLost
from busbar.collect.jobwatch import Ending, JobWatch, NoEvidence, Unreachable
from busbar.collect.recording import Recording
from busbar.collect.result import ResultStore
from busbar.collect.spec import CollectSpec
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.clock import Clock, Deadline
from busbar.manifests.mpijob import CONTAINER
from busbar.nccl import Expectation, JobOutcome, Verdict, judge_log, read_lines
from busbar.nccl.log.reader import ParsedLog
from busbar.nccl.report.html import write_html

Say = Callable[[str], None]
RETRY_SECONDS = 2.0


def collect(api: Api, spec: CollectSpec, clock: Clock, say: Say) -> dict[str, Any]:
    """The verdict on the job, as the JSON object of busbar.nccl.verdict.

    A job that cannot start, fails, or does not end in time has a verdict too: no evidence is never a pass.
    Raises ApiError or Unreachable only where nothing can be known: the API refuses, or does not answer until
    the deadline; then the same command can be run again, the log is still in the launcher's pod.
    """
    deadline = Deadline(clock, spec.deadline_seconds)
    watch = JobWatch(api, spec.namespace, spec.job, deadline, say)
    archive = Archive(Path(spec.folder))
    try:
        job = _find(api, watch.path, deadline)
    except NoEvidence as nothing:
        return _keep(archive, _without_log(spec, Ending(None, nothing.reasons)), say)
    store = ResultStore(api, spec.namespace, job, spec.expectation)
    if stored := _stored(store):
        say(f"{spec.job} has been judged before: ConfigMap {store.name}")
        return _keep(archive, stored, say)
    verdict = _judge_again(archive, job, spec, watch, say) or _measure(archive, job, spec, watch, api, say)
    result = _keep(archive, verdict, say)
    if result["verdict"] != "unknown":
        # What is not known may be known tomorrow: only what was measured is kept.
        _publish(store, result, say)
    return result


def _stored(store: ResultStore) -> Verdict | None:
    """The verdict in the cluster; one that another version of busbar wrote in another form is no verdict."""
    try:
        found = store.read()
        return Verdict.model_validate(found) if found else None
    except ValidationError:
        return None


def _find(api: Api, path: str, deadline: Deadline) -> JsonObject:
    """The MPIJob. Raises NoEvidence where it does not exist, Unreachable at the deadline."""
    while True:
        try:
            return api.get(path)
        except ApiError as error:
            if error.not_found:
                raise NoEvidence([f"there is no MPIJob at {path}"]) from None
            if not error.transient:
                raise
            if deadline.passed:
                raise Unreachable(str(error)) from error
        deadline.pause(RETRY_SECONDS)


def _judge_again(
    archive: Archive, job: JsonObject, spec: CollectSpec, watch: JobWatch, say: Say
) -> Verdict | None:
    """Judge the log that is here already, where only the expectation has changed."""
    lines = archive.log_of(job["metadata"]["uid"])
    if lines is None:
        return None
    say(f"the log of {spec.job} is here already: judged again")
    return _judge(read_lines(lines), spec, watch.ending())


def _measure(
    archive: Archive, job: JsonObject, spec: CollectSpec, watch: JobWatch, api: Api, say: Say
) -> Verdict:
    """Wait for the launcher, follow its log to the end, and judge it."""
    try:
        launcher = watch.launcher()
    except NoEvidence as nothing:
        ending = watch.ending(patience_seconds=0)
        if ending.succeeded is None:
            watch.stop()
        return _without_log(spec, Ending(ending.succeeded, nothing.reasons))
    pod = launcher["metadata"]["name"]
    say(f"following the log of {pod}")
    follower = LogFollower(api, spec.namespace, pod, CONTAINER, watch.deadline, say)
    lost: list[str] = []

    def lines() -> Iterator[bytes]:
        try:
            yield from follower.lines()
        except LogLost as loss:
            lost.append(str(loss))

    with archive.new_log() as sink:
        recording = Recording(sink, say)
        log = read_lines(recording.through(lines()))
    ending = watch.ending(patience_seconds=0) if lost else watch.ending()
    if ending.succeeded is None:
        watch.stop()
    if not ending.succeeded:
        ending = Ending(ending.succeeded, [*recording.complaints, *ending.reasons])
    missing = [*lost, *recording.missing]
    if follower.gaps:
        missing.append(
            f"lines may be missing after {follower.gaps} of {follower.reconnections} reconnections"
        )
    if missing:
        log.truncated = "; ".join(missing)
    else:
        archive.log_is_whole(job["metadata"]["uid"])
    return _judge(log, spec, ending)


def _without_log(spec: CollectSpec, ending: Ending) -> Verdict:
    """The verdict on a job that wrote nothing: the reasons are the job's, not those of every check."""
    verdict = _judge(read_lines([]), spec, ending)
    return verdict.model_copy(update={"reasons": [f"job: {reason}" for reason in ending.reasons]})


def _judge(log: ParsedLog, spec: CollectSpec, ending: Ending) -> Verdict:
    """The log's judgement; a job that did not succeed has no pass."""
    expectation = Expectation.model_validate(spec.expectation)
    return judge_log(log, expectation, JobOutcome(ending.succeeded, tuple(ending.reasons)))


def _keep(archive: Archive, verdict: Verdict, say: Say) -> dict[str, Any]:
    """Store verdict and report beside the log, and return the verdict as JSON."""
    result: dict[str, Any] = verdict.model_dump(mode="json", by_alias=True)
    archive.keep(result)
    write_html(verdict, archive.report)
    busbw = "no bandwidth" if verdict.busbw_gbps is None else f"{verdict.busbw_gbps:g} GB/s"
    say(f"{verdict.verdict}: {busbw}; report: {archive.report}")
    for reason in verdict.reasons:
        say(f"  {reason}")
    return result


def _publish(store: ResultStore, result: dict[str, Any], say: Say) -> None:
    """Store the verdict in the cluster. It is a copy: that it cannot be stored is said and is no failure."""
    try:
        store.write(result)
    except (ApiError, ValueError) as error:
        say(f"the verdict could not be stored in the cluster: {error}")
