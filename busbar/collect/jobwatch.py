"""Watch an MPIJob from its creation to its end, and report why it does not get there.

The conditions of an MPIJob do not tell that its pods cannot start, and a job that fails validation has no
condition at all, only an event (kubeflow/mpi-operator, pkg/controller): pods and events are read too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from busbar.collect.follower import has_started
from busbar.collect.judging import JobOutcome
from busbar.kube import pods as kube_pods
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.wait import Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.manifests.mpijob import CONTAINER, JOB_LABEL, ROLE_LABEL

POLL_SECONDS = 1.0
# A list of hundreds of pods is megabytes: the more pods, the longer the interval.
PODS_PER_SECOND = 100
# An image that cannot be pulled, or a pod that cannot be scheduled, may recover within this time.
PERSISTENT_SECONDS = 180.0
# The operator records the end in the MPIJob a moment after the launcher has ended.
CONDITION_SECONDS = 60.0


class JobNeverStarted(Exception):
    """The job gives no log: `reasons` say why, one finding each."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class Unreachable(Exception):
    """The deadline passed and the API did not answer the last request: nothing is known about the job."""


class Watch:
    """What the watches of an MPIJob and of a Job share. `progress` gets one line per change."""

    kind = ""
    resource = ""
    """Group, version and plural of the kind, with a place for the namespace."""
    label = ""
    """The label of its pods that holds the job's name."""

    def __init__(
        self, api: Api, namespace: str, name: str, deadline: Deadline, progress: ProgressCallback
    ) -> None:
        self._api = api
        self._base = f"/api/v1/namespaces/{namespace}"
        self._namespace = namespace
        self.name = name
        self.path = f"/apis/{self.resource.format(namespace=namespace)}/{name}"
        self.deadline = deadline
        self._progress = progress
        self._persistent_since: dict[str, float] = {}

    def job(self) -> JsonObject:
        """The object. Raises JobNeverStarted where it does not exist, Unreachable, ApiError."""
        try:
            return wait_until(self._job, self.deadline, poll_seconds=POLL_SECONDS, progress=self._progress)
        except TimedOut as timeout:
            raise Unreachable(str(timeout.error)) from timeout

    def findings(self, pods: list[JsonObject]) -> list[str]:
        """The problems that the pods and the events of this job show."""
        try:
            found = self._api.list(f"{self._base}/events")
        except ApiError as error:
            return [*kube_pods.issue_report(pods, []), f"the events cannot be listed: {error}"]
        return kube_pods.issue_report(pods, found, also=self._also())

    def _also(self) -> list[str]:
        """Objects beside the pods whose events count."""
        return [self.name]

    def _job(self) -> JsonObject:
        try:
            return self._api.get(self.path)
        except ApiError as error:
            if error.not_found:
                raise JobNeverStarted([f"{self.kind} {self._namespace}/{self.name} does not exist"]) from None
            raise

    def _findings_if_any(self) -> list[str]:
        try:
            return self.findings(self._pods())
        except ApiError as error:
            return [f"the pods cannot be listed: {error}"]

    def _pods(self) -> list[JsonObject]:
        return self._api.list(f"{self._base}/pods", labelSelector=f"{self.label}={self.name}")

    def _has_lasting_issue(self, pods: Sequence[JsonObject]) -> bool:
        """Whether a pod has a permanent issue, or has had a persistent one for too long."""
        issues = [issue for pod in pods for issue in kube_pods.issues_of(pod)]
        now = self.deadline.elapsed
        affected = {issue.pod for issue in issues if issue.persistent}
        self._persistent_since = {pod: self._persistent_since.get(pod, now) for pod in affected}
        return any(issue.permanent for issue in issues) or any(
            now - since >= PERSISTENT_SECONDS for since in self._persistent_since.values()
        )


class JobWatch(Watch):
    """One MPIJob."""

    kind = "MPIJob"
    resource = "kubeflow.org/v2beta1/namespaces/{namespace}/mpijobs"
    label = JOB_LABEL

    def launcher(self) -> JsonObject:
        """Wait for the launcher's container to start, and return its pod.

        Raises JobNeverStarted when it cannot start or has not at the deadline; Unreachable when the API does
        not answer; ApiError when it refuses.
        """
        pods: list[JsonObject] = []

        def started() -> JsonObject | Pending:
            nonlocal pods
            pods = []
            job, pods = self._job(), self._pods()
            launcher = _newest(pods, "launcher")
            if launcher and (has_started(launcher, CONTAINER) or phase(launcher) in _ENDED):
                return launcher
            self._raise_if_it_cannot_start(job, pods)
            return Pending(_state(pods), POLL_SECONDS + len(pods) / PODS_PER_SECOND)

        try:
            return wait_until(started, self.deadline, poll_seconds=POLL_SECONDS, progress=self._progress)
        except TimedOut as timeout:
            if timeout.error:
                raise Unreachable(str(timeout.error)) from timeout
            raise JobNeverStarted(
                [f"the launcher did not start: {timeout}", *self.findings(pods)]
            ) from timeout

    def outcome(self, wait_seconds: float = CONDITION_SECONDS) -> JobOutcome:
        """How the job ended, once the launcher has. Raises ApiError where the API refuses.

        Waits `wait_seconds`, also beyond the deadline, for the operator to record it.
        """

        def recorded() -> JobOutcome | Pending:
            for condition in true_conditions(self._api.get(self.path)):
                if condition.get("type") == "Succeeded":
                    return JobOutcome(True)
                if condition.get("type") == "Failed":
                    return JobOutcome(False, self._reasons_of(condition))
            return Pending("the MPIJob has neither succeeded nor failed")

        try:
            return wait_until(
                recorded,
                Deadline(self.deadline.clock, wait_seconds),
                poll_seconds=POLL_SECONDS,
                retry_on=lambda error: error.transient or error.not_found,
            )
        except TimedOut as timeout:
            return JobOutcome(None, [str(timeout.error or timeout.state), *self._findings_if_any()])

    def suspend(self) -> None:
        """Stop a job that has not ended, so that its workers release their GPUs.

        Suspended, not deleted: the object stays for inspection, and Pulumi still finds it.
        """
        try:
            self._api.merge(self.path, {"spec": {"runPolicy": {"suspend": True}}})
            self._progress(f"{self.name}: suspended; its workers release their GPUs")
        except ApiError as error:
            self._progress(f"{self.name}: could not be suspended, its workers keep their GPUs: {error}")

    def _also(self) -> list[str]:
        return [self.name, f"{self.name}-launcher"]

    def _reasons_of(self, condition: JsonObject) -> list[str]:
        # The Job and the MPIJob each repeat the condition in an event.
        reason = str(condition.get("reason") or "").rstrip("/")
        others = [line for line in self._findings_if_any() if not reason or reason not in line]
        return [_of_condition(condition), *others]

    def _raise_if_it_cannot_start(self, job: JsonObject, pods: list[JsonObject]) -> None:
        """Raise JobNeverStarted where the launcher cannot start any more."""
        for condition in true_conditions(job):
            if condition.get("type") == "Failed":
                raise JobNeverStarted([_of_condition(condition), *self.findings(pods)])
            if condition.get("type") == "Suspended":
                raise JobNeverStarted(
                    [f"MPIJob {self.name} is suspended, as after a timeout. Fix: increase validation.run"]
                )
        if any(map(_worker_has_ended, pods)) or self._has_lasting_issue(pods):
            raise JobNeverStarted(["the job's pods cannot start", *self.findings(pods)])
        if not pods:
            # A job that fails validation gets no pods, no condition and one event.
            refusals = [line for line in self.findings([]) if "ValidationError" in line]
            if refusals:
                raise JobNeverStarted(["the MPI Operator refuses the job", *refusals])


_ENDED = ("Succeeded", "Failed")
_BRIEF_REASONS = dict.fromkeys(("ErrImagePull", "ImagePullBackOff"), "its image cannot be pulled")


def _state(pods: Sequence[JsonObject]) -> str:
    """For a progress line: how many workers are ready, and the first issue."""
    ready, total = kube_pods.readiness(pod for pod in pods if _role(pod) == "worker")
    state = f"{ready}/{total} workers ready" if total else "no workers yet"
    state += ", launcher starting" if _newest(pods, "launcher") else ""
    issue = next((issue for pod in pods for issue in kube_pods.issues_of(pod)), None)
    # In short: the reason alternates between pulling and backing off; the details follow at the end.
    return state + (f"; {issue.pod}: {_BRIEF_REASONS.get(issue.reason, issue.reason)}" if issue else "")


def true_conditions(job: JsonObject) -> Iterator[JsonObject]:
    """The conditions that are true."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition.get("status") == "True":
            yield condition


def _of_condition(condition: JsonObject) -> str:
    # The operator joins reason and message of Job and pod, either of which may be empty.
    reason = str(condition.get("reason") or "no reason").rstrip("/")
    message = str(condition.get("message") or "").rstrip(": ")
    return f"the MPIJob failed: {reason}" + (f": {message}" if message else "")


def _newest(pods: Sequence[JsonObject], role: str) -> JsonObject | None:
    of_role = [pod for pod in pods if _role(pod) == role]
    return max(of_role, key=lambda pod: pod["metadata"].get("creationTimestamp") or "", default=None)


def _role(pod: JsonObject) -> str:
    return str((pod["metadata"].get("labels") or {}).get(ROLE_LABEL, ""))


def phase(pod: JsonObject) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _worker_has_ended(pod: JsonObject) -> bool:
    """A worker that has ended is not created again: the launcher would wait for it until the deadline."""
    return _role(pod) == "worker" and phase(pod) in _ENDED
