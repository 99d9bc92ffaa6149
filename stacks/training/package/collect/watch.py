"""Watch the Job of a training run from its creation to its end, and report why it does not get there."""

from __future__ import annotations

from collections.abc import Sequence

from busbar.collect.follower import has_started
from busbar.collect.jobwatch import (
    CONDITION_SECONDS,
    PODS_PER_SECOND,
    POLL_SECONDS,
    JobNeverStarted,
    Unreachable,
    Watch,
    phase,
    true_conditions,
)
from busbar.kube import pods as kube_pods
from busbar.kube.client import ApiError, JsonObject
from busbar.kube.wait import Deadline, Pending, TimedOut, wait_until
from busbar.nccl import JobOutcome
from stacks.training.package.proof import CONTAINER, INDEX_ANNOTATION, JOB_LABEL


class JobWatch(Watch):
    """One Job."""

    kind = "Job"
    resource = "batch/v1/namespaces/{namespace}/jobs"
    label = JOB_LABEL

    def first_pod(self) -> JsonObject:
        """Wait for the container of the pod with index 0 to start, and return the pod.

        Raises JobNeverStarted when it cannot start or has not at the deadline; Unreachable when the API does
        not answer; ApiError when it refuses.
        """
        pods: list[JsonObject] = []
        # A Job that ends at its own deadline deletes its pods, but not the events that say what they lacked.
        seen: dict[str, JsonObject] = {}

        def started() -> JsonObject | Pending:
            nonlocal pods
            job, pods = self._job(), self._pods()
            seen.update({pod["metadata"]["name"]: pod for pod in pods})
            first = next((pod for pod in pods if _index(pod) == "0"), None)
            if first and (has_started(first, CONTAINER) or phase(first) in ("Succeeded", "Failed")):
                return first
            self._raise_if_it_cannot_start(job, pods, list(seen.values()))
            return Pending(_state(pods), POLL_SECONDS + len(pods) / PODS_PER_SECOND)

        try:
            return wait_until(started, self.deadline, poll_seconds=POLL_SECONDS, progress=self._progress)
        except TimedOut as timeout:
            if timeout.error:
                raise Unreachable(str(timeout.error)) from timeout
            raise JobNeverStarted([f"the run did not start: {timeout}", *self.findings(pods)]) from timeout

    def outcome(self, wait_seconds: float = CONDITION_SECONDS) -> JobOutcome:
        """How the job ended, once its first pod has. Raises ApiError where the API refuses.

        Waits `wait_seconds`, also beyond the deadline, for the controller to record it.
        """

        def recorded() -> JobOutcome | Pending:
            for condition in true_conditions(self._api.get(self.path)):
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

    def _raise_if_it_cannot_start(
        self, job: JsonObject, pods: list[JsonObject], seen: list[JsonObject]
    ) -> None:
        """Raise JobNeverStarted where the run cannot start any more; `seen`: also the pods that are gone."""
        for condition in true_conditions(job):
            if condition.get("type") == "Failed":
                raise JobNeverStarted([_of_condition(condition), *self.findings(seen)])
            if condition.get("type") == "Suspended":
                fix = "Fix: increase proof.run"
                raise JobNeverStarted([f"Job {self.name} is suspended, as after a timeout. {fix}"])
        if self._has_lasting_issue(pods):
            raise JobNeverStarted(["the job's pods cannot start", *self.findings(pods)])


def _of_condition(condition: JsonObject) -> str:
    message = str(condition.get("message") or "")
    return f"the Job failed: {condition.get('reason') or 'no reason'}" + (f": {message}" if message else "")


def _index(pod: JsonObject) -> str | None:
    found: str | None = (pod["metadata"].get("annotations") or {}).get(INDEX_ANNOTATION)
    return found


def _state(pods: Sequence[JsonObject]) -> str:
    """For a progress line: how many pods are ready, and the first issue."""
    ready, total = kube_pods.readiness(pods)
    issue = next((issue for pod in pods for issue in kube_pods.issues_of(pod)), None)
    state = f"{ready}/{total} pods ready" if total else "no pods yet"
    return state + (f"; {issue.pod}: {issue.reason}" if issue else "")
