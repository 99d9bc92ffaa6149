"""Watch a job in a cluster from its creation to its end, and report why it does not get there.

Its conditions do not tell that its pods cannot start: pods and events are read too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from busbar.collect.follower import LogFollower, has_started
from busbar.exits import NoVerdict
from busbar.judge.checks import JobOutcome
from busbar.judge.collector import JobNeverStarted
from busbar.kube import pods as kube_pods
from busbar.kube.allocatable import TOOLKIT_LABEL, restarts
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.gpus import GpuNode, requests
from busbar.kube.nodes import NODES
from busbar.kube.objects import find
from busbar.kube.wait import Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.text import listed

_REJECTED_POLL_SECONDS = 1.5
# Time for all of a rollout's restarts of an agent, with the back-off of a toolkit that ends itself.
DEVICES_SECONDS = 180.0
# Plugins register 0.5 s after the start of a kubelet, and it admits pods 0.8 s later.
STABLE_SECONDS = 5.0
# After a rollout of the GPU Operator's toolkit agents restart for up to half a minute.
UNSEEN_SECONDS = 30.0
_NAMED = 3


def is_bound_only(pod: JsonObject) -> bool:
    """Return whether the pod has a node whose kubelet has not admitted it."""
    status = pod.get("status") or {}
    is_bound = bool((pod.get("spec") or {}).get("nodeName"))
    return is_bound and status.get("phase") == "Pending" and not status.get("startTime")


def why_rejected(pods: Sequence[JsonObject]) -> str:
    """Name the kubelets that have rejected these pods, with their reasons."""
    nodes = sorted({pod["spec"]["nodeName"] for pod in pods})
    issues = [str(issue) for pod in pods for issue in kube_pods.issues_of(pod) if issue.permanent]
    text = f"the kubelet on {listed(nodes, _NAMED)} has just started, and has rejected pods of the job"
    return f"{text}: {listed(issues, _NAMED)}"


def await_devices(
    api: Api, pods: Iterable[JsonObject], deadline: Deadline, progress: ProgressCallback
) -> None:
    """Return when the nodes of the pods offer what these need, and no agent is about to restart there.

    Where the pods of the toolkit may not be read, the devices must have been there for as long as it may
    restart agents. Raises TimedOut within DEADLINE, and ApiError.
    """
    deadline = Deadline(deadline.clock, min(DEVICES_SECONDS, deadline.left))
    needs = {spec["nodeName"]: requests(spec) for pod in pods if (spec := pod["spec"]).get("nodeName")}
    good_since: float | None = None

    def there() -> bool | Pending:
        nonlocal good_since
        since, good_since = good_since, None
        nodes = {name: node for node in api.list(NODES) if (name := node["metadata"]["name"]) in needs}
        lacking = [*_lacking(needs, nodes)]
        try:
            toolkits = api.list("/api/v1/pods", labelSelector=TOOLKIT_LABEL)
            lacking += restarts(api, toolkits, nodes)
            stable = STABLE_SECONDS
        except ApiError as error:
            if error.status != 403:
                raise
            stable = UNSEEN_SECONDS
        if lacking:
            return Pending(f"waiting for devices: {listed(lacking, _NAMED)}")
        good_since = deadline.elapsed if since is None else since
        return deadline.elapsed - good_since >= stable or Pending("all devices are there")

    wait_until(there, deadline, poll_seconds=_REJECTED_POLL_SECONDS, progress=progress)


def _lacking(needs: Mapping[str, Mapping[str, int]], nodes: Mapping[str, JsonObject]) -> Iterable[str]:
    for name, needed in needs.items():
        node = GpuNode.of(nodes[name], {}) if name in nodes else None
        if node is None or not node.node.ready:
            yield f"{name} is not Ready"
        else:
            yield from filter(None, (node.lacks(resource, units) for resource, units in needed.items()))


POLL_SECONDS = 1.0
# A list of hundreds of pods is megabytes: the more pods, the longer the interval.
PODS_PER_SECOND = 100
# An image that cannot be pulled, or a pod that cannot be scheduled, may recover within this time.
PERSISTENT_SECONDS = 180.0
# The controller records the end in the job a moment after its pod has ended.
CONDITION_SECONDS = 60.0
# An agent that restarts while pods are bound rejects them, or admits them, within this time.
ADMISSION_SECONDS = 30.0
ENDED = ("Succeeded", "Failed")
_BRIEF_REASONS = dict.fromkeys(("ErrImagePull", "ImagePullBackOff"), "its image cannot be pulled")


class Unreachable(NoVerdict):
    """The deadline passed and the API did not respond to the last request: nothing is known about the job."""


class Watch(ABC):
    """One job, as busbar.judge.collector.Job. `progress` gets one line per change.

    Methods raise ApiError where the API refuses, Unreachable where it does not respond until the deadline.
    """

    kind: ClassVar[str]
    resource: ClassVar[str]
    """Group, version and plural of the kind, with a place for the namespace."""
    label: ClassVar[str]
    """The label of its pods that holds the job's name."""
    container: ClassVar[str]
    """The container whose log is that of the job."""
    complete: ClassVar[str]
    """The condition of a job that succeeded."""
    suspended: ClassVar[JsonObject]
    """The change of the spec that suspends it."""
    first: ClassVar[str]
    """The name of the part that writes the log, in messages."""
    workers: ClassVar[str]
    """The name of its pods, in messages."""
    number: ClassVar[str]
    """The number in the configuration by which it runs again."""
    _was_started_again = False

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
        self.found: JsonObject | None = None
        """The object as `uid` has seen it; None before, and without one."""

    @property
    def created_at(self) -> str | None:
        """When the object was created (UTC), as Kubernetes writes it; None before `uid`, and without one."""
        return self.found["metadata"].get("creationTimestamp") if self.found else None

    @property
    def annotations(self) -> Mapping[str, str]:
        """Those of the object; none before `uid`."""
        return (self.found["metadata"].get("annotations") or {}) if self.found else {}

    def uid(self) -> str:
        """The object's uid. Raises JobNeverStarted where it does not exist."""
        try:
            job = wait_until(self._job, self.deadline, poll_seconds=POLL_SECONDS, progress=self._progress)
        except TimedOut as timeout:
            raise Unreachable(str(timeout.error)) from timeout
        self.found = job
        return str(job["metadata"]["uid"])

    def log(self) -> LogFollower:
        """The log of the pod that writes it, once that has started. Raises as `first_pod`."""
        pod = self.first_pod()["metadata"]["name"]
        self._progress(f"following the log of {pod}")
        return LogFollower(self._api, self._namespace, pod, self.container, self.deadline, self._progress)

    def first_pod(self) -> JsonObject:
        """The pod that writes the log, once that has started. Raises JobNeverStarted and NoVerdict."""
        pods: list[JsonObject] = []
        started_at: float | None = None
        # A job that ends at its own deadline deletes its pods, but not the events that say what they lacked.
        seen: dict[str, JsonObject] = {}

        def started() -> JsonObject | Pending:
            nonlocal pods, started_at
            job, pods = self._job(), self._pods()
            seen.update({pod["metadata"]["name"]: pod for pod in pods})
            first = self._first(pods)
            if rejected := self._rejected(pods):
                self._restart(job, pods, rejected)
            elif first and phase(first) in ENDED:
                return first
            elif first and has_started(first, self.container):
                now = self.deadline.elapsed
                started_at = now if started_at is None else started_at
                if now - started_at >= ADMISSION_SECONDS or not any(map(is_bound_only, pods)):
                    return first
            if not rejected:
                self._check_can_start(job, pods, list(seen.values()))
            issue = next((issue for pod in pods for issue in kube_pods.issues_of(pod)), None)
            # In short: the reason alternates between pulling and backing off; the details follow at the end.
            why = f"; {issue.pod}: {_BRIEF_REASONS.get(issue.reason, issue.reason)}" if issue else ""
            return Pending(self._readiness(pods) + why, POLL_SECONDS + len(pods) / PODS_PER_SECOND)

        try:
            return wait_until(started, self.deadline, poll_seconds=POLL_SECONDS, progress=self._progress)
        except TimedOut as late:
            if late.error:
                raise Unreachable(str(late.error)) from late
            raise JobNeverStarted([f"{self.first} did not start: {late}", *self.findings(pods)]) from late

    def outcome(self, wait_seconds: float = CONDITION_SECONDS) -> JobOutcome:
        """How the job ended. Waits `wait_seconds`, also after the deadline, for the record of it."""

        def recorded() -> JobOutcome | Pending:
            for condition in true_conditions(self._api.get(self.path)):
                if condition.get("type") == self.complete:
                    return JobOutcome(True)
                if condition.get("type") == "Failed":
                    return JobOutcome(False, self._reasons_of(condition))
            return Pending(f"the {self.kind} has neither succeeded nor failed")

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
        """Stop a job that has not ended: its pods release their GPUs, and the object stays."""
        try:
            self._api.merge(self.path, {"spec": self.suspended})
            self._progress(f"{self.name}: suspended; its {self.workers} release their GPUs")
        except ApiError as error:
            self._progress(f"{self.name}: could not be suspended, its {self.workers} keep the GPUs: {error}")

    def findings(self, pods: list[JsonObject]) -> list[str]:
        """The problems that the pods and the events of this job show."""
        try:
            found = self._api.list(f"{self._base}/events")
        except ApiError as error:
            return [*kube_pods.issue_report(pods, []), f"the events cannot be listed: {error}"]
        return kube_pods.issue_report(pods, found, also=self._also())

    @abstractmethod
    def _make_again(self, job: JsonObject) -> None:
        """Have the rejected pods made again."""

    def _rejected(self, pods: Sequence[JsonObject]) -> list[JsonObject]:
        """The pods that a starting kubelet has rejected, and without which the job cannot run."""
        reason = "UnexpectedAdmissionError"
        return [pod for pod in pods if (pod.get("status") or {}).get("reason") == reason]

    def _restart(self, job: JsonObject, pods: Sequence[JsonObject], rejected: Sequence[JsonObject]) -> None:
        """Start the job once more when all devices are there. Raises NoVerdict the second time."""
        reason = why_rejected(rejected)
        if self._was_started_again:
            return self._give_up(f"{reason}; it was started once more before")
        self._progress(f"{self.name}: {reason}; the job starts once more")
        try:
            await_devices(self._api, pods, self.deadline, self._progress)
        except TimedOut as timeout:
            if timeout.error:
                raise Unreachable(str(timeout.error)) from timeout
            return self._give_up(f"{timeout}; before that {reason}")
        self._make_again(job)
        self._was_started_again = True

    def _give_up(self, reason: str) -> None:
        self.suspend()
        fix = "Fix: when K3s on the workers does not restart any more, run the same command again"
        raise NoVerdict(f"{self.kind} {self._namespace}/{self.name} has not run: {reason}. {fix}")

    @abstractmethod
    def _first(self, pods: Sequence[JsonObject]) -> JsonObject | None:
        """The pod that writes the log."""

    def _also(self) -> list[str]:
        """The names of objects beside the pods whose events count."""
        return [self.name]

    def _readiness(self, pods: Sequence[JsonObject]) -> str:
        """A text for the progress: how many pods are ready."""
        ready, total = kube_pods.readiness(pods)
        return f"{ready}/{total} {self.workers} ready" if total else f"no {self.workers} yet"

    def _reasons_of(self, condition: JsonObject) -> list[str]:
        """Why a job failed, from the condition that says so."""
        return [self._of_condition(condition), *self._findings_if_any()]

    def _of_condition(self, condition: JsonObject) -> str:
        # A controller joins reason and message of job and pod, either of which may be empty.
        reason = str(condition.get("reason") or "no reason").rstrip("/")
        message = str(condition.get("message") or "").rstrip(": ")
        return f"the {self.kind} failed: {reason}" + (f": {message}" if message else "")

    def _check_can_start(self, job: JsonObject, pods: list[JsonObject], seen: list[JsonObject]) -> None:
        """Raise JobNeverStarted where the job cannot start any more; `seen`: also the pods that are gone."""
        for condition in true_conditions(job):
            if condition.get("type") == "Failed":
                raise JobNeverStarted([self._of_condition(condition), *self.findings(seen)])
            if condition.get("type") == "Suspended":
                fix = f"Fix: if Kueue runs, exclude {self._namespace} from it; raise {self.number}"
                raise JobNeverStarted([f"{self.kind} {self.name} is suspended, as after a timeout. {fix}"])
        if self._has_lasting_issue(pods):
            raise JobNeverStarted(["the job's pods cannot start", *self.findings(pods)])

    def _has_lasting_issue(self, pods: Sequence[JsonObject]) -> bool:
        """Return whether a pod has a permanent issue, or has had a persistent one for too long."""
        issues = [issue for pod in pods for issue in kube_pods.issues_of(pod)]
        now = self.deadline.elapsed
        affected = {issue.pod for issue in issues if issue.persistent}
        self._persistent_since = {pod: self._persistent_since.get(pod, now) for pod in affected}
        return any(issue.permanent for issue in issues) or any(
            now - since >= PERSISTENT_SECONDS for since in self._persistent_since.values()
        )

    def _job(self) -> JsonObject:
        found = find(self._api, self.path)
        if found is None:
            raise JobNeverStarted([f"{self.kind} {self._namespace}/{self.name} does not exist"])
        return found

    def _findings_if_any(self) -> list[str]:
        try:
            return self.findings(self._pods())
        except ApiError as error:
            return [f"the pods cannot be listed: {error}"]

    def _pods(self) -> list[JsonObject]:
        return self._api.list(f"{self._base}/pods", labelSelector=f"{self.label}={self.name}")


def true_conditions(job: JsonObject) -> Iterator[JsonObject]:
    """Iterate over the conditions of a job that are true."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition.get("status") == "True":
            yield condition


def phase(pod: JsonObject) -> str:
    """The phase of a pod, such as Running; empty where the API says nothing."""
    return str((pod.get("status") or {}).get("phase", ""))
