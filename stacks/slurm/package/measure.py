"""From a pool's nodes to a verdict: submits one sbatch job, follows it over SSH, and judges its whole log.

No shared home is needed: the log is on the batch host. Every query to a host has its own connection, so a
broken connection only loses one answer.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from busbar.collect.collector import row_text
from busbar.collect.spec import settings_with
from busbar.fabric.measure.records import append
from busbar.hosts.host import Host
from busbar.hosts.login import Login
from busbar.hosts.remote import Hosts, ScriptError, UnreachableError, on_each
from busbar.judge.archive import Archive
from busbar.judge.checks import JobOutcome
from busbar.judge.collector import Collector, JobNeverStarted, LogLost
from busbar.judge.nccl import Expectation, Verdict, judge_log, read_lines
from busbar.judge.nccl.log.reader import ParsedLog
from busbar.judge.nccl.report.html import Origin, write_html
from busbar.judge.record import JOB, Record
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.manifests.names import digest, short
from busbar.models import StrictModel
from busbar.outputs.pool import summarize
from stacks.slurm.package.status import INTERRUPTED, WAITING, Status, why_unusable

SCRIPT = "slurm/job"
SCRIPT_SECONDS = 60
# Folder of logs. It belongs to root, and is made when the host is installed.
LOG_FOLDER = "/var/lib/busbar"
POLL_SECONDS = 2.0
# Slurm ends a job at the job's own limit, and reports that a little later.
GRACE_SECONDS = 120
# Time in seconds for retries after a host reboots or a connection breaks.
SILENT_SECONDS = 90
# Time in seconds without a new line after which all nodes of the job are queried.
QUIET_SECONDS = 30
DISK_IS_FULL_BYTES = 65536


class MeasureSpec(StrictModel):
    """The stdin of `busbar slurm collect`.

    `job`: its name, which changes with everything that it measures. `hosts`: those of the pool, without those
    in quarantine; `hostnames`: their host names. `min_nodes_fraction`: fraction of hosts that must be usable.
    """

    login: Login
    controller: Host
    hosts: tuple[Host, ...]
    hostnames: dict[str, str]
    partition: str
    job: str
    script: str
    folder: str
    deadline_seconds: int
    pending_seconds: int
    min_nodes_fraction: float
    expectation: dict[str, Any]


class Ask:
    """Queries the controller and the compute hosts, one query at a time, from synchronous code."""

    def __init__(self, runner: asyncio.Runner, hosts: Hosts) -> None:
        self._runner, self._hosts = runner, hosts

    def __call__(
        self, host: Host, verb: str, payload: Mapping[str, str] | None = None, **values: str
    ) -> dict[str, Any]:
        """Query one host: returns the facts of host/job.sh. Raises ScriptError, UnreachableError."""
        given = {"NODE_NAME": host.name, "VERB": verb, **{key.upper(): text for key, text in values.items()}}
        return self._runner.run(self._hosts.run(host, SCRIPT, given, payload, seconds=SCRIPT_SECONDS))

    def gone(self, hosts: Sequence[Host]) -> dict[str, str]:
        """Host -> reason, for the hosts that cannot run any part of a job."""

        async def why(host: Host) -> str:
            values = {"NODE_NAME": host.name, "VERB": "daemon"}
            try:
                found = await self._hosts.run(host, SCRIPT, values, seconds=SCRIPT_SECONDS)
            except (ScriptError, UnreachableError):
                return "is not responding"
            return "" if found["active"] else "has no running slurmd"

        answers = self._runner.run(on_each(hosts, why, at_once=32))
        return {host.name: answer for host, answer in zip(hosts, answers, strict=True) if answer}


class SlurmJob:
    """The job in Slurm; implements busbar.judge.collector.Job."""

    def __init__(
        self, spec: MeasureSpec, ask: Ask, archive: Archive, clock: Clock, say: ProgressCallback
    ) -> None:
        self.name = spec.job
        self._spec, self._ask, self._clock, self._say = spec, ask, clock, say
        self._record = archive.folder / "job.json"
        self.job_id = ""
        self.log_is_lost = ""
        """Why lines of the log cannot have been written."""
        self.nodes = [host.name for host in spec.hosts]
        self.submitted: str | None = None
        self._ended: JobOutcome | None = None
        self._gone: Mapping[str, str] = {}

    def uid(self) -> str:
        return self.name

    def log(self) -> JobLines:
        self.nodes = self._usable_nodes()
        log = f"{LOG_FOLDER}/{self.name}.out"
        try:
            self.job_id = self._ask(
                self._spec.controller,
                "submit",
                {"script": self._spec.script},
                job_name=self.name,
                partition=self._spec.partition,
                nodes=",".join(self.nodes),
                count=str(len(self.nodes)),
                log=log,
            )["job_id"]
        except (ScriptError, UnreachableError) as error:
            raise JobNeverStarted([f"it cannot be submitted: {error}"]) from None
        self._say(f"job {self.job_id} on {', '.join(self.nodes)}")
        status = self._started()
        self.submitted = status.submitted
        batch = next((host for host in self._spec.hosts if host.name == status.batch_host), None)
        if batch is None:
            raise JobNeverStarted([self._ended_text(status)])
        return JobLines(
            self, self._ask, batch, log, Deadline(self._clock, self._spec.deadline_seconds + GRACE_SECONDS)
        )

    def status(self) -> Status:
        """The state of the job. Raises ScriptError, UnreachableError."""
        return Status(**self._ask(self._spec.controller, "status", job_id=self.job_id))

    def outcome(self, wait_seconds: float = 60) -> JobOutcome:
        if not self.job_id:
            return self._recorded()
        try:
            status = self._until(lambda found: found.ended, wait_seconds, "is ending")
        except TimedOut as timeout:
            return JobOutcome(None, [f"job {self.job_id}: {timeout.state}. Fix: squeue -j {self.job_id}"])
        self._ended = self._outcome_of(status)
        if self._ended.succeeded is not None:
            known = {"succeeded": self._ended.succeeded, "reasons": [*self._ended.reasons]}
            self._record.write_text(
                json.dumps({**known, "job": self.name, "nodes": self.nodes, "submitted": self.submitted})
            )
        return self._ended

    def suspend(self) -> None:
        """Cancel the job, so that it releases its nodes."""
        if self.job_id and self._ended is None:
            try:
                self._ask(self._spec.controller, "cancel", job_id=self.job_id)
                self._say(f"job {self.job_id} is cancelled")
            except (ScriptError, UnreachableError) as error:
                fix = f"Fix: scancel {self.job_id}"
                self._say(f"error: job {self.job_id} could not be cancelled: {error}. {fix}")

    def _recorded(self) -> JobOutcome:
        """The outcome of a job whose log is kept; Slurm forgets the job after some minutes."""
        try:
            found = json.loads(self._record.read_text())
        except (OSError, ValueError):
            found = {"job": ""}
        if found["job"] == self.name:
            self.nodes, self.submitted = found["nodes"], found["submitted"]
            return JobOutcome(found["succeeded"], found["reasons"])
        return JobOutcome(None, ["how the job ended was not recorded"])

    def _usable_nodes(self) -> list[str]:
        """The nodes that can start jobs. Raises JobNeverStarted if they are too few."""
        wanted = [host.name for host in self._spec.hosts]
        try:
            found = self._ask(self._spec.controller, "nodes")["nodes"]
        except (ScriptError, UnreachableError) as error:
            raise JobNeverStarted([f"the controller is not responding: {error}"]) from None
        bad = {name: why_unusable(found.get(name)) for name in wanted if why_unusable(found.get(name))}
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
        try:
            status = self._until(
                lambda found: found.state not in WAITING, self._spec.pending_seconds, "is pending"
            )
        except TimedOut as timeout:
            self.suspend()
            fix = f"Fix: squeue --start -j {self.job_id}; sinfo -R; or set validation.when_busy: wait"
            raise JobNeverStarted([f"job {self.job_id} {timeout}. {fix}"]) from None
        if not status.known:
            what = f"slurmctld does not know job {self.job_id}. Fix: see its log on the controller"
            raise JobNeverStarted([what])
        return status

    def _until(self, done: Any, seconds: float, doing: str) -> Status:
        """The first status that is DONE or unknown to Slurm. Raises TimedOut."""

        def look() -> Status | Pending:
            try:
                found = self.status()
            except (ScriptError, UnreachableError) as error:
                return Pending(f"the controller is not responding: {error}")
            if not found.known or done(found):
                return found
            reason = f": {found.reason}" if found.reason not in ("", "None") else ""
            return Pending("; ".join([f"{doing}{reason}", *self._bad(found)]))

        return wait_until(look, Deadline(self._clock, seconds), poll_seconds=POLL_SECONDS, progress=self._say)

    def _outcome_of(self, status: Status) -> JobOutcome:
        if self.log_is_lost:
            return JobOutcome(None, [self.log_is_lost])
        if status.state == "COMPLETED" and status.restarts in ("", "0"):
            return JobOutcome(True)
        return JobOutcome(None if self._says_nothing(status) else False, [self._ended_text(status)])

    def _says_nothing(self, status: Status) -> bool:
        """Whether the job was ended from outside: a node, Slurm or a person."""
        if not status.known or status.state.split("+")[0] in INTERRUPTED or status.restarts not in ("", "0"):
            return True
        if not any(name in self.nodes for name in status.nodes or {}):
            self._gone = self.gone()
            return bool(self._gone)
        return True

    def gone(self) -> dict[str, str]:
        """Node -> reason, for the nodes of the job that cannot run any part of it."""
        return self._ask.gone([host for host in self._spec.hosts if host.name in self.nodes])

    def _bad(self, status: Status) -> list[str]:
        found = (status.nodes or {}).items()
        return [f"{name} is {why_unusable(why)}" for name, why in found if name in self.nodes]

    def _ended_text(self, status: Status) -> str:
        if not status.known:
            return f"slurmctld has forgotten job {self.job_id}. Fix: sacct -j {self.job_id}"
        again = ", it was queued again" if status.restarts not in ("", "0") else ""
        nodes = self._bad(status)
        nodes += [f"{name} {why}" for name, why in self._gone.items()]
        why = f", {status.reason}" if status.reason not in ("", "None") else ""
        ended = f"Slurm job {self.job_id} ended as {status.state} (exit code {status.exit_code}{why}){again}"
        fix = f"Fix: sacct -j {self.job_id}; sinfo -R; then raise validation.run"
        return f"{'; '.join([ended, *nodes])}. {fix}"


class JobLines:
    """The log on the batch host; implements busbar.judge.collector.JobLog."""

    doubt = "the job did not count the lines that it wrote: lines may be missing"

    def __init__(self, job: SlurmJob, ask: Ask, host: Host, path: str, deadline: Deadline) -> None:
        self._job, self._ask, self._host, self._path, self._deadline = job, ask, host, path, deadline
        self._next_check = 0.0
        self._gone: Mapping[str, str] = {}

    def lines(self) -> Iterator[bytes]:
        rest = b""
        for chunk in self._chunks():
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (line + b"\n" for line in whole)
        if rest:
            yield rest

    def _chunks(self) -> Iterator[bytes]:
        """The log in chunks, until the job has ended and a last look finds no more."""
        offset, had_ended, silent_since = 0, False, self._deadline.elapsed
        while True:
            try:
                found = self._ask(self._host, "read", log=self._path, offset=str(offset))
                silent_since = self._deadline.elapsed
                chunk = base64.b64decode(found["data"])
                if found["free_bytes"] < DISK_IS_FULL_BYTES:
                    self._job.log_is_lost = (
                        f"the disk of {LOG_FOLDER} on {self._host.name} is full. Fix: df -h {LOG_FOLDER}"
                    )
                offset += len(chunk)
                if chunk:
                    self._next_check, self._gone = self._deadline.elapsed + QUIET_SECONDS, {}
                    yield chunk
                    continue
                if had_ended:
                    return
                had_ended = self._job.status().ended
                if not had_ended and self._deadline.elapsed >= self._next_check:
                    self._check_nodes()
            except (ScriptError, UnreachableError) as error:
                if self._deadline.elapsed - silent_since > SILENT_SECONDS:
                    raise LogLost(f"the log on {self._host.name} cannot be read: {error}") from None
            if self._deadline.passed:
                raise LogLost(f"job {self._job.job_id} has not ended after {self._deadline.seconds:.0f} s")
            if not had_ended:
                self._deadline.pause(POLL_SECONDS)

    def _check_nodes(self) -> None:
        """Check the nodes: ranks wait for a dead node, which Slurm gives up only after SlurmdTimeout, 300 s.

        Raises LogLost for a node that is gone in two checks.
        """
        gone = self._job.gone()
        if still := [f"{name} {why}" for name, why in gone.items() if name in self._gone]:
            fix = "Fix: repair or quarantine it, then raise validation.run"
            raise LogLost(f"{'; '.join(still)}, and job {self._job.job_id} waits for it. {fix}")
        self._next_check, self._gone = self._deadline.elapsed + QUIET_SECONDS, gone


class _Collector(Collector[ParsedLog, Verdict]):
    """One run of the command."""

    read = staticmethod(read_lines)
    progress_text = staticmethod(row_text)
    cause_of_loss = ": the job has written them, and they are not in its log. Fix: df -h on the batch host"

    def __init__(
        self, spec: MeasureSpec, job: SlurmJob, archive: Archive, progress: ProgressCallback
    ) -> None:
        super().__init__(job, archive, progress)
        self._spec, self._slurm = spec, job
        self._outcome = JobOutcome(None)

    def judge(self, log: ParsedLog, outcome: JobOutcome, missing: Sequence[str] = ()) -> Verdict:
        log.truncated = "; ".join(missing) or log.truncated
        self._outcome, nodes = outcome, self._slurm.nodes
        of_nodes = {"nodes": len(nodes), "hosts": [self._spec.hostnames[name] for name in nodes]}
        verdict = judge_log(log, Expectation.model_validate({**self._spec.expectation, **of_nodes}), outcome)
        if outcome.succeeded is not None:
            return verdict
        # A job that was ended from outside says nothing of the fabric, whatever part of its log exists.
        reasons = [
            *(f"job: {reason}" for reason in outcome.reasons),
            *(f"source: {part}" for part in missing),
        ]
        return verdict.model_copy(update={"verdict": "unknown", "passed": False, "reasons": reasons})

    def report(self, verdict: Verdict) -> str:
        origin = Origin.of(str(self.archive.log), f" of Slurm job {self._slurm.job_id or self._spec.job}")
        write_html(verdict, self.archive.report, origin)
        busbw = "no bandwidth" if verdict.busbw_gbps is None else f"{verdict.busbw_gbps:g} GB/s"
        return f"{busbw}; report: {self.archive.report}"

    def record(self) -> Record:
        """The record of this measurement, as one of an update."""
        spec = self._spec
        script = short(digest({"script": spec.script}))
        settings = {JOB: spec.job, "partition": spec.partition, "script": script}
        return Record(
            job_uid=spec.job,
            pool=spec.hosts[0].pool or "",
            kind="update",
            folder=spec.folder,
            nodes=tuple(self._slurm.nodes),
            measured_at=self._slurm.submitted,
            settings=dict(settings_with(spec.expectation, settings)),
            expectation=spec.expectation,
            outcome=self._outcome,
            complete=self.archive.complete_log_of == spec.job,
        )


def keep(found: dict[str, Any], of_pool: Path, progress: ProgressCallback, **about: str) -> dict[str, Any]:
    """Add a measurement to the history in `of_pool`, its pool's folder, and return it without the record.

    `about`: fields of the record. A job that was never submitted is not one.
    """
    if (record := found.get("record")) and record["measured_at"]:
        append(of_pool, {**found, "record": {**record, **about}}, progress)
    return {key: value for key, value in found.items() if key not in ("record", "judge")}


def collect(spec: MeasureSpec, clock: Clock, progress: ProgressCallback) -> dict[str, Any]:
    """The verdict in short (busbar.outputs.pool) with its record; all the rest is kept in the folder.

    Raises ValueError (unusable key) and ScriptError (bastion).
    """
    with asyncio.Runner() as runner:
        opened = Hosts.open(spec.login)
        ask = Ask(runner, runner.run(opened.__aenter__()))
        try:
            return measure(spec, ask, clock, progress)
        finally:
            runner.run(opened.__aexit__(None, None, None))


def measure(spec: MeasureSpec, ask: Ask, clock: Clock, progress: ProgressCallback) -> dict[str, Any]:
    """`collect` with the hosts to query. A job that has not ended when it returns or raises is cancelled."""
    archive = Archive(Path(spec.folder))
    archive.folder.mkdir(parents=True, exist_ok=True)
    job = SlurmJob(spec, ask, archive, clock, progress)
    try:
        collector = _Collector(spec, job, archive, progress)
        verdict = collector.run()
    finally:
        job.suspend()
    short = summarize(verdict.model_dump(mode="json"), record=collector.record())
    return {**short, **({"nodes_measured": job.nodes} if verdict.ranks else {})}
