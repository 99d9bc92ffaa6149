"""From a running MPIJob to a verdict: wait, follow the log, judge it while it comes, keep everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from busbar.nccl.expected.expectation import Expectation
from busbar.nccl.judge import judge_log
from busbar.nccl.log.parse import ParsedLog, parse_lines
from busbar.nccl.report.html import write_html
from busbar.nccl.verdict import Check, Status, Verdict

Say = Callable[[str], None]
RETRY_SECONDS = 2.0


@dataclass(frozen=True)
class Collected:
    """`verdict`: the JSON object of busbar.nccl.verdict. `config_map`: NAMESPACE/NAME, None if not stored."""

    verdict: dict[str, Any]
    config_map: str | None = None


def collect(api: Api, spec: CollectSpec, clock: Clock, say: Say) -> Collected:
    """The verdict on the job, and where in the cluster it was stored.

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
        return Collected(_keep(archive, _without_log(spec, Ending(None, nothing.reasons)), say))
    store = ResultStore(api, spec.namespace, job, spec.expectation)
    if stored := _stored(store):
        say(f"{spec.job} has been judged before: ConfigMap {store.name}")
        return Collected(_keep(archive, stored, say), store.address)
    verdict = _judge_again(archive, job, spec, watch, say) or _measure(archive, job, spec, watch, api, say)
    result = _keep(archive, verdict, say)
    # What is not known may be known tomorrow: only what was measured is kept.
    stored_at = _publish(store, result, say) if result["verdict"] != "unknown" else None
    return Collected(result, stored_at)


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
    return _judge(parse_lines(lines), spec, watch.ending())


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
        log = parse_lines(recording.through(lines()))
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
    verdict = _judge(parse_lines([]), spec, ending)
    return verdict.model_copy(update={"reasons": [f"job: {reason}" for reason in ending.reasons]})


def _judge(log: ParsedLog, spec: CollectSpec, ending: Ending) -> Verdict:
    """The log's judgement, with the job's in front: the numbers of a job that failed are no numbers."""
    expectation = Expectation.model_validate({**spec.expectation, "job_succeeded": ending.succeeded})
    verdict = judge_log(log, expectation)
    if ending.succeeded:
        return with_check(verdict, Check(name="job", status="pass", reason="the MPIJob succeeded"))
    status: Status = "unknown" if ending.succeeded is None else "fail"
    return with_check(verdict, Check(name="job", status=status, reason="; ".join(ending.reasons)))


def with_check(verdict: Verdict, check: Check) -> Verdict:
    """The verdict with one more check in front of all others; it can only become worse."""
    outcome = verdict.verdict
    if check.status == "fail":
        outcome = "fail"
    elif check.status == "unknown" and outcome == "pass":
        outcome = "unknown"
    complaint = [f"{check.name}: {check.reason}"] if check.status in ("fail", "unknown") else []
    return verdict.model_copy(
        update={
            "verdict": outcome,
            "passed": outcome == "pass",
            "reasons": [*complaint, *verdict.reasons],
            "checks": [check, *verdict.checks],
        }
    )


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


def _publish(store: ResultStore, result: dict[str, Any], say: Say) -> str | None:
    """Store a copy of the verdict in the cluster and return where; None, with a message, if that failed."""
    try:
        store.write(result)
    except (ApiError, ValueError) as error:
        say(f"the verdict could not be stored in the cluster: {error}")
        return None
    return store.address
