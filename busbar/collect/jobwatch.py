"""Watch an MPIJob.

A job that fails validation has no condition at all, only an event (kubeflow/mpi-operator, pkg/controller).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from busbar.collect.busy import PATIENCE_SECONDS, Kept, WhenBusy, holders
from busbar.collect.follower import LogFollower, has_started
from busbar.collect.result import after_quarantine, former_result, joined_since
from busbar.collect.spec import settings_of
from busbar.collect.watch import (
    CONDITION_SECONDS,
    ENDED,
    POLL_SECONDS,
    Unreachable,
    Watch,
    phase,
    true_conditions,
)
from busbar.judge.archive import Record
from busbar.judge.collector import JobNeverStarted
from busbar.kube import pods as kube_pods
from busbar.kube.client import ApiError, JsonObject
from busbar.kube.wait import Deadline, Pending, TimedOut, wait_until
from busbar.manifests.mpijob import CONTAINER, JOB_LABEL, ROLE_LABEL, nodes_of
from busbar.text import listed

# Each look lists the pods of all namespaces.
BUSY_POLL_SECONDS = 10.0
_SHOWN = 4
_OVER = ("Succeeded", "Failed")
_FIX = "Fix: raise validation.run when these pods have ended, or set validation.when_busy: wait"


class _Unschedulable(JobNeverStarted):
    """Pods of the job fit nowhere."""


class JobWatch(Watch):
    """One MPIJob: its log is that of the newest launcher."""

    kind = "MPIJob"
    resource = "kubeflow.org/v2beta1/namespaces/{namespace}/mpijobs"
    label = JOB_LABEL
    container = CONTAINER
    complete = "Succeeded"
    suspended: ClassVar[JsonObject] = {"runPolicy": {"suspend": True}}
    first = "the launcher"
    workers = "workers"
    number = "validation.run"

    def log(self) -> LogFollower:
        """The log of the launcher, once that has started.

        With a policy for GPUs that are held, these are waited for, and the job's own time begins after it.
        Raises Kept where the former verdict stays, and as `first_pod`.
        """
        policy = WhenBusy.read(self.annotations)
        if policy is None:
            try:
                return super().log()
            except _Unschedulable:
                policy = self._after_quarantine()
                if policy is None:
                    raise
        clock, is_last = self.deadline.clock, False
        busy = Deadline(clock, policy.deadline_seconds)
        while True:
            self._await_gpus(policy, busy)
            self._persistent_since = {}
            self.deadline = Deadline(clock, self.deadline.seconds)
            try:
                return super().log()
            except JobNeverStarted:
                # Pods of others may have been faster than the job's.
                if is_last or not self._holders(self._job()):
                    raise
                is_last = busy.passed

    def _after_quarantine(self) -> WhenBusy | None:
        """The policy at the end of a quarantine, while GPUs are held; the program knows of none any more."""
        try:
            job = self._job()
            return after_quarantine(self._api, job) if holders(self._api, job) else None
        except ApiError:
            return None  # the job has failed for a reason that is known

    def record(
        self,
        expectation: dict[str, Any],
        iterations: int | None = None,
        warmup: int | None = None,
        **more: Any,
    ) -> Record | None:
        """The record of the job with MORE fields; None where there is none, or busbar has not rendered it."""
        job = self.found
        if job is None:
            return None
        try:
            return Record(
                job_uid=job["metadata"]["uid"],
                nodes=nodes_of(job),
                measured_at=self.created_at,
                settings=dict(settings_of(job, expectation, iterations, warmup)),
                expectation=expectation,
                **more,
            )
        except (KeyError, ValueError):
            return None

    def resume(self) -> None:
        """Let a suspended job run, and wait until its operator has seen that."""

        def resumed() -> bool | Pending:
            job = self._job()
            if _is_suspended(job):
                self._api.merge(self.path, {"spec": {"runPolicy": {"suspend": False}}})
                return Pending(f"{self.name} is resumed")
            if any(condition.get("type") == "Suspended" for condition in true_conditions(job)):
                return Pending("the MPI Operator has not resumed the job")
            return True

        deadline = Deadline(self.deadline.clock, CONDITION_SECONDS)
        try:
            wait_until(resumed, deadline, poll_seconds=POLL_SECONDS, progress=self._progress)
        except TimedOut as timeout:
            if timeout.error:
                raise Unreachable(str(timeout.error)) from timeout
            raise JobNeverStarted([f"MPIJob {self.name} does not resume: {timeout}"]) from timeout

    def _rejected(self, pods: Sequence[JsonObject]) -> list[JsonObject]:
        return [pod for pod in super()._rejected(pods) if is_worker(pod)]

    def _make_again(self, job: JsonObject) -> None:
        """Delete the rejected workers, which the MPI Operator then makes again; resume a suspended job."""
        for pod in self._rejected(self._pods()):
            metadata = pod["metadata"]
            try:
                self._api.delete(f"{self._base}/pods/{metadata['name']}", uid=metadata["uid"])
            except ApiError as error:
                if error.transient:
                    raise
                self._progress(f"{metadata['name']} could not be deleted: {error}")
        if _is_suspended(job):
            self.resume()

    def _await_gpus(self, policy: WhenBusy, deadline: Deadline) -> None:
        """Return when others hold nothing that the workers need, or the job runs. It is suspended before."""
        held: list[str] = []

        def free() -> bool | Pending:
            nonlocal held
            job = self._job()
            if self._has_begun(job):
                return True
            held = holders(self._api, job)
            if not held:
                return True
            if deadline.elapsed >= PATIENCE_SECONDS and not _is_suspended(job):
                self.suspend()
            return Pending(f"the GPUs are held: {listed(held, 1)}")

        try:
            wait_until(free, deadline, poll_seconds=BUSY_POLL_SECONDS, progress=self._progress)
        except TimedOut as timeout:
            if timeout.error:
                raise Unreachable(str(timeout.error)) from timeout
            raise self._end_of_wait(policy, held) from timeout
        if not self._has_begun(self._job()):
            self.resume()

    def _end_of_wait(self, policy: WhenBusy, held: Sequence[str]) -> Exception:
        why = [f"pods of others held the GPUs for {policy.deadline_seconds:.0f} s", *_first_nodes(held)]
        if not policy.keep:
            return JobNeverStarted([*why, _FIX])
        former = former_result(self._api, self._job())
        if former is None:
            return JobNeverStarted([*why, f"there is no former verdict to keep. {_FIX}"])
        self._progress(f"{'; '.join(why)}: the former verdict stays, of {former.get('measured_at')}")
        found = {**former, "kept": True}
        if measured := former.get("nodes_measured"):
            others = joined_since(self._api, former["record"])
            found["nodes_measured"] = [node for node in measured if node not in others]
        return Kept(found)

    def _has_begun(self, job: JsonObject) -> bool:
        """Return whether the job or its launcher has started. What others hold does not matter then."""
        if any(condition.get("type") in _OVER for condition in true_conditions(job)):
            return True
        first = self._first(self._pods())
        return first is not None and (has_started(first, self.container) or phase(first) in ENDED)

    def _holders(self, job: JsonObject) -> list[str]:
        """Name the pods that hold the GPUs of the job's Nodes, for a message."""
        try:
            return _first_nodes(holders(self._api, job))
        except ApiError as error:
            return [f"which pods hold the GPUs is not known: {error}"]

    def _first(self, pods: Sequence[JsonObject]) -> JsonObject | None:
        launchers = [pod for pod in pods if _role(pod) == "launcher"]
        return max(launchers, key=lambda pod: pod["metadata"].get("creationTimestamp") or "", default=None)

    def _readiness(self, pods: Sequence[JsonObject]) -> str:
        starting = ", launcher starting" if self._first(pods) else ""
        return super()._readiness([pod for pod in pods if is_worker(pod)]) + starting

    def _also(self) -> list[str]:
        return [self.name, f"{self.name}-launcher"]

    def _reasons_of(self, condition: JsonObject) -> list[str]:
        # The Job and the MPIJob each repeat the condition in an event.
        reason = str(condition.get("reason") or "").rstrip("/")
        found, *others = super()._reasons_of(condition)
        return [found, *(line for line in others if not reason or reason not in line)]

    def _check_can_start(self, job: JsonObject, pods: list[JsonObject], seen: list[JsonObject]) -> None:
        try:
            super()._check_can_start(job, pods, seen)
        except JobNeverStarted as never:
            issues = (issue for pod in pods for issue in kube_pods.issues_of(pod))
            if not any(issue.reason == "Unschedulable" for issue in issues):
                raise
            raise _Unschedulable([*never.reasons, *self._holders(job)]) from None
        # A worker that has ended is not created again: the launcher would wait until the deadline.
        if any(is_worker(pod) and phase(pod) in ENDED for pod in pods):
            raise JobNeverStarted(["the job's pods cannot start", *self.findings(pods)])
        if not pods:
            # A job that fails validation gets no pods, no condition and one event.
            refusals = [line for line in self.findings([]) if "ValidationError" in line]
            if refusals:
                raise JobNeverStarted(["the MPI Operator refuses the job", *refusals])


def _role(pod: JsonObject) -> str:
    return str((pod["metadata"].get("labels") or {}).get(ROLE_LABEL, ""))


def is_worker(pod: JsonObject) -> bool:
    """Return whether a pod of an MPIJob is one of its workers."""
    return _role(pod) == "worker"


def _is_suspended(job: JsonObject) -> bool:
    return bool((job["spec"].get("runPolicy") or {}).get("suspend"))


def _first_nodes(held: Sequence[str]) -> list[str]:
    more = len(held) - _SHOWN
    return [*held[:_SHOWN], *([f"and pods on {more} more Nodes"] if more > 0 else [])]
