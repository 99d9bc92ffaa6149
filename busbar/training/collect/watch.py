"""Watch the Job of a training run from its creation to its end, and report why it does not get there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from busbar.collect.follower import has_started
from busbar.collect.jobwatch import PERSISTENT_SECONDS, PODS_PER_SECOND, JobNeverStarted, Unreachable
from busbar.kube import pods as kube_pods
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.wait import Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.nccl import JobOutcome
from busbar.training.proof import CONTAINER, INDEX_ANNOTATION, JOB_LABEL

POLL_SECONDS = 1.0
# The other pods end a moment after the first, and the controller records it.
CONDITION_SECONDS = 60.0


class JobWatch:
    """One Job. `progress` gets one line per change."""

    def __init__(
        self, api: Api, namespace: str, name: str, deadline: Deadline, progress: ProgressCallback
    ) -> None:
        self._api = api
        self._base = f"/api/v1/namespaces/{namespace}"
        self._namespace = namespace
        self.name = name
        self.path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"
        self.deadline = deadline
        self._progress = progress
        self._persistent_since: dict[str, float] = {}

    def job(self) -> JsonObject:
        """The Job. Raises JobNeverStarted where it does not exist, Unreachable, ApiError."""
        try:
            return wait_until(self._job, self.deadline, poll_seconds=POLL_SECONDS, progress=self._progress)
        except TimedOut as timeout:
            raise Unreachable(str(timeout.error)) from timeout

    def first_pod(self) -> JsonObject:
        """Wait for the container of the pod with index 0 to start, and return the pod.

        Raises JobNeverStarted when it cannot start or has not at the deadline; Unreachable when the API does
        not answer; ApiError when it refuses.
        """
        pods: list[JsonObject] = []

        def started() -> JsonObject | Pending:
            nonlocal pods
            job, pods = self._job(), self._pods()
            first = next((pod for pod in pods if _index(pod) == "0"), None)
            if first and (has_started(first, CONTAINER) or _phase(first) in ("Succeeded", "Failed")):
                return first
            self._raise_if_it_cannot_start(job, pods)
            return Pending(_state(pods), POLL_SECONDS + len(pods) / PODS_PER_SECOND)

        try:
            return wait_until(started, self.deadline, poll_seconds=POLL_SECONDS, progress=self._progress)
        except TimedOut as timeout:
            if timeout.error:
                raise Unreachable(str(timeout.error)) from timeout
            raise JobNeverStarted([f"the run did not start: {timeout}", *self._findings(pods)]) from timeout

    def outcome(self, wait_seconds: float = CONDITION_SECONDS) -> JobOutcome:
        """How the job ended, once its first pod has. Raises ApiError where the API refuses.

        Waits `wait_seconds`, also beyond the deadline, for the controller to record it.
        """

        def recorded() -> JobOutcome | Pending:
            for condition in _conditions(self._api.get(self.path)):
                if condition.get("type") == "Complete":
                    return JobOutcome(True)
                if condition.get("type") == "Failed":
                    return JobOutcome(False, [_of_condition(condition), *self._findings_if_any()])
            return Pending("the Job has neither completed nor failed")

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
        """Stop a job that has not ended, so that its pods release their GPUs; the object stays."""
        try:
            self._api.merge(self.path, {"spec": {"suspend": True}})
            self._progress(f"{self.name}: suspended; its pods release their GPUs")
        except ApiError as error:
            self._progress(f"{self.name}: could not be suspended, its pods keep their GPUs: {error}")

    def _job(self) -> JsonObject:
        try:
            return self._api.get(self.path)
        except ApiError as error:
            if error.not_found:
                raise JobNeverStarted([f"Job {self._namespace}/{self.name} does not exist"]) from None
            raise

    def _pods(self) -> list[JsonObject]:
        return self._api.list(f"{self._base}/pods", labelSelector=f"{JOB_LABEL}={self.name}")

    def _findings(self, pods: list[JsonObject]) -> list[str]:
        """The problems that the pods and the events of this job show."""
        try:
            events = self._api.list(f"{self._base}/events")
        except ApiError as error:
            return [*kube_pods.issue_report(pods, []), f"the events cannot be listed: {error}"]
        return kube_pods.issue_report(pods, events, also=[self.name])

    def _findings_if_any(self) -> list[str]:
        try:
            return self._findings(self._pods())
        except ApiError as error:
            return [f"the pods cannot be listed: {error}"]

    def _raise_if_it_cannot_start(self, job: JsonObject, pods: list[JsonObject]) -> None:
        """Raise JobNeverStarted where the run cannot start any more."""
        for condition in _conditions(job):
            if condition.get("type") == "Failed":
                raise JobNeverStarted([_of_condition(condition), *self._findings(pods)])
            if condition.get("type") == "Suspended":
                fix = "Fix: increase proof.run"
                raise JobNeverStarted([f"Job {self.name} is suspended, as after a timeout. {fix}"])
        issues = [issue for pod in pods for issue in kube_pods.issues_of(pod)]
        now = self.deadline.elapsed
        affected = {issue.pod for issue in issues if issue.persistent}
        self._persistent_since = {pod: self._persistent_since.get(pod, now) for pod in affected}
        if any(issue.permanent for issue in issues) or any(
            now - since >= PERSISTENT_SECONDS for since in self._persistent_since.values()
        ):
            raise JobNeverStarted(["the job's pods cannot start", *self._findings(pods)])


def _conditions(job: JsonObject) -> Iterator[JsonObject]:
    """The conditions that are true."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition.get("status") == "True":
            yield condition


def _of_condition(condition: JsonObject) -> str:
    message = str(condition.get("message") or "")
    return f"the Job failed: {condition.get('reason') or 'no reason'}" + (f": {message}" if message else "")


def _index(pod: JsonObject) -> str | None:
    found: str | None = (pod["metadata"].get("annotations") or {}).get(INDEX_ANNOTATION)
    return found


def _phase(pod: JsonObject) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _state(pods: Sequence[JsonObject]) -> str:
    """For a progress line: how many pods are ready, and the first issue."""
    ready, total = kube_pods.readiness(pods)
    issue = next((issue for pod in pods for issue in kube_pods.issues_of(pod)), None)
    state = f"{ready}/{total} pods ready" if total else "no pods yet"
    return state + (f"; {issue.pod}: {issue.reason}" if issue else "")
