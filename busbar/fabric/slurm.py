"""The NCCL measurement by a job of Slurm: submit it, follow its log, judge it.

The caller says how Slurm is reached (`Reach`) and what is measured (`MeasureSpec`).
`measure` gives the verdict, `keep` adds it to the history. `SlurmJob` is the job alone. Its log is read from
its batch host, so no shared home is needed.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from busbar.collect.collector import NcclCollector
from busbar.collect.spec import settings_with
from busbar.fabric.measure.history import append
from busbar.hosts.inventory import Login
from busbar.hosts.remote import Hosts, ScriptError, UnreachableError
from busbar.judge.archive import JOB, Archive, Record
from busbar.judge.checks import JobOutcome
from busbar.judge.collector import JobNeverStarted, LogLost
from busbar.judge.nccl import Expectation, Verdict, judge_log
from busbar.judge.nccl.log.reader import ParsedLog
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.models import StrictModel
from busbar.outputs.contract import summarize

SCRIPT = "slurm-job"
SCRIPT_SECONDS = 60
POLL_SECONDS = 2.0
# Slurm ends a job at the job's own limit, and reports that a little later.
GRACE_SECONDS = 120
# Time in seconds for retries after a host reboots or a connection breaks.
SILENT_SECONDS = 90
# Time in seconds without a new line after which all nodes of the job are queried.
QUIET_SECONDS = 30
DISK_IS_FULL_BYTES = 65536

# States of squeue(1) and sinfo(1).
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
# Final states of a job that say nothing of the fabric.
INTERRUPTED = ("CANCELLED", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED", "DEADLINE")
# KillWait and UnkillableStepTimeout, 90 s by default, and the time of an epilog.
COMPLETING_SECONDS = 120
UNUSABLE = ("down", "drain", "fail", "inval", "unknown", "boot", "power", "maint", "reserved")


@contextmanager
def opened(login: Login) -> Iterator[tuple[asyncio.Runner, Hosts]]:
    """Hosts for synchronous code. Raises ValueError (unusable key) and ScriptError (bastion)."""
    with asyncio.Runner() as runner:
        hosts = Hosts.open(login)
        entered = runner.run(hosts.__aenter__())
        try:
            yield runner, entered
        finally:
            runner.run(hosts.__aexit__(None, None, None))


class Reach(Protocol):
    """Answers the questions of host/slurm-job.sh, one at a time, from synchronous code.

    `log_folder`: an absolute path on every node; the log of a job is a file there, on its batch host.
    """

    log_folder: str

    def ask(
        self, verb: str, payload: Mapping[str, str] | None = None, *, node: str | None = None, **values: str
    ) -> dict[str, Any]:
        """The facts of one question: from a node, or from where Slurm's commands run.

        `values`: those of the script, in lower case. Raises ScriptError, UnreachableError.
        """

    def gone(self, nodes: Sequence[str]) -> dict[str, str]:
        """Node -> reason, for the nodes that cannot run any part of a job."""


@dataclass(frozen=True)
class Status:
    """The state of a job in Slurm. `nodes`: the nodes that start no jobs, and why."""

    known: bool
    state: str = ""
    reason: str = ""
    batch_host: str = ""
    exit_code: str = ""
    restarts: str = "0"
    submitted: str = ""
    nodes: Mapping[str, Mapping[str, str]] | None = None

    @property
    def ended(self) -> bool:
        return not self.known or self.state.split("+")[0] not in (*WAITING, *RUNNING)

    @property
    def was_queued_again(self) -> bool:
        return self.restarts not in ("", "0")


def why_unusable(found: Mapping[str, str] | None) -> str:
    """Slurm's reason why a node starts no jobs; empty if it does."""
    if found is None:
        return "not known to Slurm"
    state = found["state"].lower()
    bad = state.endswith("*") or any(each in state for each in UNUSABLE)
    return f"{found['state']}{': ' if found['reason'] else ''}{found['reason']}" if bad else ""


def overdue(job: str, seconds: float, parameters: Mapping[str, str]) -> str:
    """The reason why a job that ended SECONDS ago has its nodes; empty for as long as its processes may take.

    `parameters`: those of slurm.conf, of which some give processes more time.
    """
    given = {name.lower(): value for name, value in parameters.items()}
    longer = [given.get(name, "") for name in ("killwait", "unkillablesteptimeout")]
    limit = COMPLETING_SECONDS + sum(int(each) for each in longer if each.isdigit())
    took = f"job {job} has been completing for {seconds:.0f} s, expected at most {limit} s"
    return took if seconds > limit else ""


class JobSpec(StrictModel):
    """A job. `job`: its name, a digest of what it measures; `script`: for sbatch.

    `pending_seconds`: how long it may wait for its nodes. `min_nodes_fraction`: fraction of its nodes that
    must be usable.
    """

    partition: str
    job: str
    script: str
    deadline_seconds: int
    pending_seconds: int
    min_nodes_fraction: float


class SlurmJob:
    """The job, and its log on the batch host; implements Job and JobLog of busbar.judge.collector."""

    doubt = "the job did not count the lines that it wrote: lines may be missing"

    def __init__(
        self,
        spec: JobSpec,
        nodes: Sequence[str],
        reach: Reach,
        folder: Path,
        clock: Clock,
        say: ProgressCallback,
    ) -> None:
        self.name = spec.job
        self._spec, self._reach, self._clock, self._say = spec, reach, clock, say
        self._archive = Archive(folder)
        self._path = f"{reach.log_folder}/{self.name}-%j.out"
        # The last one: why lines of the log cannot have been written.
        self.job_id = self._host = self._log_is_lost = ""
        self.nodes = self._wanted = [*nodes]
        self.submitted: str | None = None
        self._ended: JobOutcome | None = None
        self._gone: dict[str, str] = {}

    def uid(self) -> str:
        return self.name

    def log(self) -> SlurmJob:
        self.nodes = self._usable_nodes()
        spec, nodes = self._spec, {"nodes": ",".join(self.nodes), "count": str(len(self.nodes))}
        about = {"job_name": self.name, "partition": spec.partition, "log": self._path, **nodes}
        try:
            self.job_id = self._reach.ask("submit", {"script": spec.script}, **about)["job_id"]
            self._path = self._path.replace("%j", self.job_id)
        except (ScriptError, UnreachableError) as error:
            raise JobNeverStarted([f"it cannot be submitted: {error}"]) from None
        self._say(f"job {self.job_id} on {', '.join(self.nodes)}")
        status = self._started()
        self.submitted, self._host = status.submitted, status.batch_host
        if self._host not in self._wanted:
            raise JobNeverStarted([self._ended_text(status)])
        return self

    def lines(self) -> Iterator[bytes]:
        rest = b""
        for chunk in self._chunks(Deadline(self._clock, self._spec.deadline_seconds + GRACE_SECONDS)):
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (line + b"\n" for line in whole)
        if rest:
            yield rest

    def outcome(self, wait_seconds: float = 60) -> JobOutcome:
        if not self.job_id:
            return self._recorded()
        try:
            status = self._until(lambda found: found.ended, wait_seconds, "is ending")
        except TimedOut as timeout:
            return JobOutcome(None, [f"job {self.job_id}: {timeout.state}. Fix: squeue -j {self.job_id}"])
        self._ended = self._outcome_of(status)
        return self._ended

    def suspend(self) -> None:
        """Cancel the job, so that it releases its nodes."""
        if self.job_id and self._ended is None:
            try:
                self._reach.ask("cancel", job_id=self.job_id)
                self._say(f"job {self.job_id} is cancelled")
            except (ScriptError, UnreachableError) as error:
                fix = f"Fix: scancel {self.job_id}"
                self._say(f"error: job {self.job_id} could not be cancelled: {error}. {fix}")

    def _recorded(self) -> JobOutcome:
        """The outcome of a job whose log is kept; Slurm forgets the job after some minutes."""
        try:
            record = Record.model_validate(self._archive.record())
        except ValueError:
            return JobOutcome(None, ["how the job ended was not recorded"])
        self.nodes, self.submitted = [*record.nodes], record.measured_at
        return record.outcome

    def _usable_nodes(self) -> list[str]:
        """The nodes that can start jobs. Raises JobNeverStarted if they are too few."""
        wanted = self._wanted
        try:
            found = self._reach.ask("nodes")["nodes"]
        except (ScriptError, UnreachableError) as error:
            raise JobNeverStarted([f"the controller is not responding: {error}"]) from None
        bad = {name: why for name in wanted if (why := why_unusable(found.get(name)))}
        if len(bad) > len(wanted) * (1 - self._spec.min_nodes_fraction) or len(bad) == len(wanted):
            reasons = [f"{name} is {why}" for name, why in bad.items()]
            raise JobNeverStarted(
                [*reasons, "too few nodes can be measured. Fix: sinfo -R; repair them and resume them"]
            )
        for name, why in bad.items():
            self._say(f"left out: {name} is {why}")
        return [name for name in wanted if name not in bad]

    def _started(self) -> Status:
        """Wait until the job runs or has ended. Raises JobNeverStarted, with Slurm's reason."""
        seconds = self._spec.pending_seconds
        try:
            status = self._until(lambda found: found.state not in WAITING, seconds, "is pending")
        except TimedOut as timeout:
            self.suspend()
            fix = f"Fix: squeue --start -j {self.job_id}; sinfo -R; or set validation.when_busy: wait"
            raise JobNeverStarted([f"job {self.job_id} {timeout}. {fix}"]) from None
        if not status.known:
            what = f"slurmctld does not know job {self.job_id}. Fix: see its log on the controller"
            raise JobNeverStarted([what])
        return status

    def _status(self) -> Status:
        return Status(**self._reach.ask("status", job_id=self.job_id))

    def _until(self, done: Callable[[Status], bool], seconds: float, doing: str) -> Status:
        """The first status that is DONE or unknown to Slurm. Raises TimedOut."""

        def look() -> Status | Pending:
            try:
                found = self._status()
            except (ScriptError, UnreachableError) as error:
                return Pending(f"the controller is not responding: {error}")
            if not found.known or done(found):
                return found
            reason = f": {found.reason}" if found.reason not in ("", "None") else ""
            return Pending("; ".join([f"{doing}{reason}", *self._bad(found)]))

        return wait_until(look, Deadline(self._clock, seconds), poll_seconds=POLL_SECONDS, progress=self._say)

    def _outcome_of(self, status: Status) -> JobOutcome:
        """The outcome; unknown where a node, Slurm or a person ended the job."""
        if self._log_is_lost:
            return JobOutcome(None, [self._log_is_lost])
        if status.state == "COMPLETED" and not status.was_queued_again:
            return JobOutcome(True)
        is_unknown = not status.known or status.was_queued_again or status.state.split("+")[0] in INTERRUPTED
        if not is_unknown and not self._bad(status):
            self._gone = self._reach.gone(self.nodes)
        is_unknown = is_unknown or bool(self._bad(status) or self._gone)
        return JobOutcome(None if is_unknown else False, [self._ended_text(status)])

    def _bad(self, status: Status) -> list[str]:
        found = (status.nodes or {}).items()
        return [f"{name} is {why_unusable(why)}" for name, why in found if name in self.nodes]

    def _ended_text(self, status: Status) -> str:
        if not status.known:
            return f"slurmctld has forgotten job {self.job_id}. Fix: see its log on the controller"
        again = ", it was queued again" if status.was_queued_again else ""
        nodes = [*self._bad(status), *(f"{name} {why}" for name, why in self._gone.items())]
        why = f", {status.reason}" if status.reason not in ("", "None") else ""
        ended = f"Slurm job {self.job_id} ended as {status.state} (exit code {status.exit_code}{why}){again}"
        fix = f"Fix: scontrol show job {self.job_id}; sinfo -R; then raise validation.run"
        return f"{'; '.join([ended, *nodes])}. {fix}"

    def _chunks(self, deadline: Deadline) -> Iterator[bytes]:
        """The log in chunks, until the job has ended and a last look finds no more. Raises LogLost.

        Ranks wait for a dead node, which Slurm gives up only after SlurmdTimeout, 300 s. So a node ends the
        reading that is gone in two checks without a line between them.
        """
        offset, had_ended, silent_since, next_check = 0, False, deadline.elapsed, 0.0
        gone: Mapping[str, str] = {}
        while True:
            try:
                found = self._reach.ask("read", node=self._host, log=self._path, offset=str(offset))
                silent_since = deadline.elapsed
                chunk = base64.b64decode(found["data"])
                if found["free_bytes"] < DISK_IS_FULL_BYTES:
                    folder = self._reach.log_folder
                    self._log_is_lost = f"the disk of {folder} on {self._host} is full. Fix: df -h {folder}"
                offset += len(chunk)
                if chunk:
                    next_check, gone = deadline.elapsed + QUIET_SECONDS, {}
                    yield chunk
                    continue
                if had_ended:
                    return
                had_ended = self._status().ended
                if not had_ended and deadline.elapsed >= next_check:
                    before, gone = gone, self._reach.gone(self.nodes)
                    if still := [f"{name} {why}" for name, why in gone.items() if name in before]:
                        fix = "Fix: repair or quarantine it, then raise validation.run"
                        raise LogLost(f"{'; '.join(still)}, and job {self.job_id} waits for it. {fix}")
                    next_check = deadline.elapsed + QUIET_SECONDS
            except (ScriptError, UnreachableError) as error:
                if deadline.elapsed - silent_since > SILENT_SECONDS:
                    raise LogLost(f"the log on {self._host} cannot be read: {error}") from None
            if deadline.passed:
                raise LogLost(f"job {self.job_id} has not ended after {deadline.seconds:.0f} s")
            if not had_ended:
                deadline.pause(POLL_SECONDS)


class MeasureSpec(JobSpec):
    """A measurement. `hostnames`: node -> what its ranks call their host. `folder`: of log and verdict."""

    hostnames: dict[str, str]
    folder: str
    expectation: dict[str, Any]


class _Collector(NcclCollector):
    """One run of the command. `record`: of the job, once its log is judged."""

    cause_of_loss = ": the job has written them, and they are not in its log. Fix: df -h on the batch host"
    record: Record

    def __init__(self, spec: MeasureSpec, pool: str, job: SlurmJob, progress: ProgressCallback) -> None:
        super().__init__(job, Archive(Path(spec.folder)), progress)
        self._spec, self._pool, self._slurm = spec, pool, job

    @property
    def origin(self) -> str:
        return f"Slurm job {self._slurm.job_id or self._spec.job}"

    def judge(self, log: ParsedLog, outcome: JobOutcome, missing: Sequence[str] = ()) -> Verdict:
        log.truncated = "; ".join(missing) or log.truncated
        spec, nodes = self._spec, self._slurm.nodes
        of_nodes = {"nodes": len(nodes), "hosts": [spec.hostnames[name] for name in nodes]}
        expectation = {**spec.expectation, **of_nodes}
        verdict = judge_log(log, Expectation.model_validate(expectation), outcome)
        self.record = Record(
            job_uid=f"{spec.job}@{self._slurm.submitted}",
            pool=self._pool,
            kind="update",
            folder=spec.folder,
            nodes=tuple(nodes),
            measured_at=self._slurm.submitted,
            settings=dict(settings_with(spec.expectation, {JOB: spec.job, "partition": spec.partition})),
            expectation=expectation,
            outcome=outcome,
            complete=self.archive.complete_log_of == spec.job,
        )
        if outcome.succeeded is not None:
            return verdict
        # A job that was ended from outside says nothing of the fabric, whatever part of its log exists.
        reasons = [f"job: {reason}" for reason in outcome.reasons] + [f"source: {part}" for part in missing]
        return verdict.model_copy(update={"verdict": "unknown", "passed": False, "reasons": reasons})

    def store(self, uid: str, verdict: Verdict) -> None:
        if self.record.complete:
            self.archive.mark_complete(uid, self.record.model_dump(mode="json"))


def measure(
    spec: MeasureSpec,
    pool: str,
    nodes: Sequence[str],
    reach: Reach,
    clock: Clock,
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Measure these nodes of a pool. A job that has not ended when it returns or raises is cancelled.

    Returns the verdict in short (outputs.contract) with its record; all the rest is kept in the folder.
    """
    job = SlurmJob(spec, nodes, reach, Path(spec.folder), clock, progress)
    collector = _Collector(spec, pool, job, progress)
    try:
        verdict = collector.run()
    finally:
        job.suspend()
    short = summarize(verdict.model_dump(mode="json"), record=collector.record)
    return {**short, **({"nodes_measured": job.nodes} if verdict.ranks else {})}


def keep(found: dict[str, Any], of_pool: Path, progress: ProgressCallback, **about: str) -> dict[str, Any]:
    """Add a measurement to the history in `of_pool`, its pool's folder, and return it without the record.

    `about`: fields of the record. A job that was never submitted is not one.
    """
    if (record := found.get("record")) and record["measured_at"]:
        append(of_pool, {**found, "record": {**record, **about}}, progress)
    return {key: value for key, value in found.items() if key != "record"}
