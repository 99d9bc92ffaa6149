"""A job of Slurm: submitted, followed and cancelled from outside; its log is read from its batch host.

No shared home is needed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from busbar.fabric.slurm.reach import Reach
from busbar.fabric.slurm.status import INTERRUPTED, WAITING, Status, why_unusable
from busbar.hosts.remote import ScriptError, UnreachableError
from busbar.judge.checks import JobOutcome
from busbar.judge.collector import JobNeverStarted, LogLost
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.models import StrictModel

POLL_SECONDS = 2.0
# Slurm ends a job at the job's own limit, and reports that a little later.
GRACE_SECONDS = 120
# Time in seconds for retries after a host reboots or a connection breaks.
SILENT_SECONDS = 90
# Time in seconds without a new line after which all nodes of the job are queried.
QUIET_SECONDS = 30
DISK_IS_FULL_BYTES = 65536


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
    """The job in Slurm; implements busbar.judge.collector.Job."""

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
        self._record = folder / "job.json"
        self.job_id = ""
        self.log_is_lost = ""
        """Why lines of the log cannot have been written."""
        self.nodes = self._wanted = [*nodes]
        self.submitted: str | None = None
        self._ended: JobOutcome | None = None
        self._gone: Mapping[str, str] = {}

    def uid(self) -> str:
        return self.name

    def log(self) -> JobLines:
        self.nodes = self._usable_nodes()
        log = f"{self._reach.log_folder}/{self.name}.out"
        try:
            self.job_id = self._reach.ask(
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
        if status.batch_host not in self._wanted:
            raise JobNeverStarted([self._ended_text(status)])
        deadline = Deadline(self._clock, self._spec.deadline_seconds + GRACE_SECONDS)
        return JobLines(self, self._reach, status.batch_host, log, deadline)

    def status(self) -> Status:
        """The state of the job. Raises ScriptError, UnreachableError."""
        return Status(**self._reach.ask("status", job_id=self.job_id))

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
                self._reach.ask("cancel", job_id=self.job_id)
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
        wanted = self._wanted
        try:
            found = self._reach.ask("nodes")["nodes"]
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
        """True where a node, Slurm or a person ended the job."""
        if not status.known or status.state.split("+")[0] in INTERRUPTED or status.restarts not in ("", "0"):
            return True
        if not any(name in self.nodes for name in status.nodes or {}):
            self._gone = self.gone()
            return bool(self._gone)
        return True

    def gone(self) -> dict[str, str]:
        """Node -> reason, for the nodes of the job that cannot run any part of it."""
        return self._reach.gone([name for name in self._wanted if name in self.nodes])

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

    def __init__(self, job: SlurmJob, reach: Reach, host: str, path: str, deadline: Deadline) -> None:
        self._job, self._reach, self._host, self._path, self._deadline = job, reach, host, path, deadline
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
                found = self._reach.ask("read", node=self._host, log=self._path, offset=str(offset))
                silent_since = self._deadline.elapsed
                chunk = base64.b64decode(found["data"])
                if found["free_bytes"] < DISK_IS_FULL_BYTES:
                    folder = self._reach.log_folder
                    self._job.log_is_lost = (
                        f"the disk of {folder} on {self._host} is full. Fix: df -h {folder}"
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
                    raise LogLost(f"the log on {self._host} cannot be read: {error}") from None
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
