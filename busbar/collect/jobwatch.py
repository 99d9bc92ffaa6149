"""Watch an MPIJob from its creation to its end, and say in words why it does not get there.

No condition of an MPIJob tells that its pods cannot start, and a job that fails validation has no condition
at all, only an event (kubeflow/mpi-operator, pkg/controller): so pods and events are read too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from busbar.collect.follow import has_started
from busbar.kube import events
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.clock import Deadline
from busbar.manifests.mpijob import CONTAINER, JOB_LABEL, ROLE_LABEL

POLL_SECONDS = 1.0
# A list of hundreds of pods is megabytes: the more there are, the less often they are asked for.
PODS_A_SECOND = 100
HEARTBEAT_SECONDS = 30.0
# An image that cannot be pulled, or a pod that fits nowhere, may heal by itself for so long.
LASTING_SECONDS = 180.0
# The operator writes the end into the MPIJob a moment after the launcher has ended.
CONDITION_SECONDS = 60.0


class NoEvidence(Exception):
    """The job will not give a log: `reasons` say why, one finding each."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class Unreachable(Exception):
    """The deadline passed and the API did not answer last: nothing is known about the job."""


@dataclass(frozen=True)
class Ending:
    """How the job ended. `succeeded` is None where that could not be found out."""

    succeeded: bool | None
    reasons: list[str]


class JobWatch:
    """One MPIJob. `say` gets one line at every change."""

    def __init__(
        self, api: Api, namespace: str, name: str, deadline: Deadline, say: Callable[[str], None]
    ) -> None:
        self._api = api
        self._base = f"/api/v1/namespaces/{namespace}"
        self._namespace = namespace
        self.name = name
        self.path = f"/apis/kubeflow.org/v2beta1/namespaces/{namespace}/mpijobs/{name}"
        self.deadline = deadline
        self._clock = deadline.clock
        self._say = say
        self._trouble_since: dict[str, float] = {}

    def launcher(self) -> JsonObject:
        """Wait for the launcher's container to start, and return its pod.

        Raises NoEvidence when it never will, or has not at the deadline; Unreachable when the API does not
        answer; ApiError when it refuses.
        """
        said, said_at = "", 0.0
        while True:
            try:
                job = self._api.get(self.path)
                pods = self._pods()
                launcher = _newest(pods, "launcher")
                if launcher and (has_started(launcher, CONTAINER) or _phase(launcher) in _OVER):
                    return launcher
                self._give_up_on(job, pods)
                state = self._progress(pods)
                failure = None
            except ApiError as error:
                if error.not_found:
                    raise NoEvidence([f"MPIJob {self._namespace}/{self.name} does not exist"]) from None
                if not error.transient:
                    raise
                failure, state, pods = error, f"waiting for the API: {error}", []
            elapsed = self.deadline.elapsed
            if state != said or elapsed - said_at >= HEARTBEAT_SECONDS:
                self._say(f"{state} [{elapsed:.0f} s of {self.deadline.seconds:.0f} s]")
                said, said_at = state, elapsed
            if self.deadline.passed:
                if failure:
                    raise Unreachable(str(failure))
                raise NoEvidence(
                    [
                        f"the launcher has not started after {self.deadline.seconds:.0f} s: {state}",
                        *self.findings(pods),
                    ]
                )
            self.deadline.pause(POLL_SECONDS + len(pods) / PODS_A_SECOND)

    def ending(self, patience_seconds: float = CONDITION_SECONDS) -> Ending:
        """How the job ended, once the launcher has. Raises ApiError only when the API refuses for good.

        Waits `patience_seconds`, also beyond the deadline, for the operator to write it down.
        """
        limit = self.deadline.elapsed + patience_seconds
        while True:
            try:
                job = self._api.get(self.path)
                for condition in _conditions(job):
                    if condition.get("type") == "Succeeded":
                        return Ending(True, [])
                    if condition.get("type") == "Failed":
                        return Ending(False, self._reasons_of(condition))
                problem = "the MPIJob has neither succeeded nor failed"
            except ApiError as error:
                if not (error.transient or error.not_found):
                    raise
                problem = str(error)
            if self.deadline.elapsed >= limit:
                return Ending(None, [problem, *self._findings_if_any()])
            self._clock.pause(POLL_SECONDS)

    def stop(self) -> None:
        """End a job that is past its deadline, so that its workers give their GPUs back.

        Suspended, not deleted: the object stays for whoever looks, and the engine still finds what it made.
        """
        try:
            self._api.merge(self.path, {"spec": {"runPolicy": {"suspend": True}}})
            self._say(f"{self.name} was suspended: its workers give their GPUs back")
        except ApiError as error:
            self._say(f"{self.name} could not be suspended, its workers keep their GPUs: {error}")

    def findings(self, pods: list[JsonObject]) -> list[str]:
        """What the pods and the events of this job say is wrong."""
        try:
            found = self._api.list(f"{self._base}/events")
        except ApiError as error:
            return [*events.report(pods, []), f"the events cannot be listed: {error}"]
        return events.report(pods, found, also=[self.name, f"{self.name}-launcher"])

    def _reasons_of(self, condition: JsonObject) -> list[str]:
        # The Job and the MPIJob each repeat the condition in an event.
        reason = str(condition.get("reason") or "").rstrip("/")
        others = [line for line in self.findings(self._pods()) if not reason or reason not in line]
        return [_of_condition(condition), *others]

    def _findings_if_any(self) -> list[str]:
        try:
            return self.findings(self._pods())
        except ApiError as error:
            return [f"the pods cannot be listed: {error}"]

    def _pods(self) -> list[JsonObject]:
        return self._api.list(f"{self._base}/pods", labelSelector=f"{JOB_LABEL}={self.name}")

    def _give_up_on(self, job: JsonObject, pods: list[JsonObject]) -> None:
        """Raise NoEvidence where waiting for the launcher is in vain."""
        for condition in _conditions(job):
            if condition.get("type") == "Failed":
                raise NoEvidence([_of_condition(condition), *self.findings(pods)])
            if condition.get("type") == "Suspended":
                raise NoEvidence(
                    [f"{self.name} is suspended, as after a deadline: to measure again, raise validation.run"]
                )
        troubles = [trouble for pod in pods for trouble in events.troubles_of(pod)]
        hopeless = any(trouble.hopeless for trouble in troubles) or any(map(_worker_is_gone, pods))
        now = self.deadline.elapsed
        lasting = {trouble.pod for trouble in troubles if trouble.lasting}
        self._trouble_since = {pod: self._trouble_since.get(pod, now) for pod in lasting}
        if hopeless or any(now - since >= LASTING_SECONDS for since in self._trouble_since.values()):
            raise NoEvidence(["the job's pods cannot start", *self.findings(pods)])
        if not pods:
            # A job that fails validation gets no pods, no condition and one event.
            refusals = [line for line in self.findings([]) if "ValidationError" in line]
            if refusals:
                raise NoEvidence(["the MPI Operator refuses the job", *refusals])

    def _progress(self, pods: list[JsonObject]) -> str:
        ready, total = events.readiness(pod for pod in pods if _role(pod) == "worker")
        launcher = _newest(pods, "launcher")
        state = f"{ready} of {total} workers ready" if total else "no workers yet"
        state += ", launcher starting" if launcher else ""
        trouble = next((trouble for pod in pods for trouble in events.troubles_of(pod)), None)
        # In short: the reasons swing between pulling and backing off, and the whole story comes at the end.
        return state + (f"; {trouble.pod}: {_PULLING.get(trouble.reason, trouble.reason)}" if trouble else "")


_OVER = ("Succeeded", "Failed")
_PULLING = dict.fromkeys(("ErrImagePull", "ImagePullBackOff"), "its image cannot be pulled")


def _conditions(job: JsonObject) -> Iterator[JsonObject]:
    """The conditions that hold."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition.get("status") == "True":
            yield condition


def _of_condition(condition: JsonObject) -> str:
    # The operator joins reason and message of Job and pod, either of which may be empty.
    reason = str(condition.get("reason") or "no reason").rstrip("/")
    message = str(condition.get("message") or "").rstrip(": ")
    return f"the MPIJob failed: {reason}" + (f": {message}" if message else "")


def _newest(pods: list[JsonObject], role: str) -> JsonObject | None:
    of_role = [pod for pod in pods if _role(pod) == role]
    return max(of_role, key=lambda pod: pod["metadata"].get("creationTimestamp") or "", default=None)


def _role(pod: JsonObject) -> str:
    return str((pod["metadata"].get("labels") or {}).get(ROLE_LABEL, ""))


def _phase(pod: JsonObject) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _worker_is_gone(pod: JsonObject) -> bool:
    """A worker that has ended is not made again: the launcher would wait for it for ever."""
    return _role(pod) == "worker" and _phase(pod) in _OVER
