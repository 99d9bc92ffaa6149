"""Watch an MPIJob.

A job that fails validation has no condition at all, only an event (kubeflow/mpi-operator, pkg/controller).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from busbar.collect.watch import ENDED, Watch, phase
from busbar.judge.collector import JobNeverStarted
from busbar.kube.client import JsonObject
from busbar.manifests.mpijob import CONTAINER, JOB_LABEL, ROLE_LABEL


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

    def _first(self, pods: Sequence[JsonObject]) -> JsonObject | None:
        launchers = [pod for pod in pods if _role(pod) == "launcher"]
        return max(launchers, key=lambda pod: pod["metadata"].get("creationTimestamp") or "", default=None)

    def _readiness(self, pods: Sequence[JsonObject]) -> str:
        starting = ", launcher starting" if self._first(pods) else ""
        return super()._readiness([pod for pod in pods if _role(pod) == "worker"]) + starting

    def _also(self) -> list[str]:
        return [self.name, f"{self.name}-launcher"]

    def _reasons_of(self, condition: JsonObject) -> list[str]:
        # The Job and the MPIJob each repeat the condition in an event.
        reason = str(condition.get("reason") or "").rstrip("/")
        found, *others = super()._reasons_of(condition)
        return [found, *(line for line in others if not reason or reason not in line)]

    def _raise_if_it_cannot_start(
        self, job: JsonObject, pods: list[JsonObject], seen: list[JsonObject]
    ) -> None:
        super()._raise_if_it_cannot_start(job, pods, seen)
        if any(map(_worker_has_ended, pods)):
            raise JobNeverStarted(["the job's pods cannot start", *self.findings(pods)])
        if not pods:
            # A job that fails validation gets no pods, no condition and one event.
            refusals = [line for line in self.findings([]) if "ValidationError" in line]
            if refusals:
                raise JobNeverStarted(["the MPI Operator refuses the job", *refusals])


def _role(pod: JsonObject) -> str:
    return str((pod["metadata"].get("labels") or {}).get(ROLE_LABEL, ""))


def _worker_has_ended(pod: JsonObject) -> bool:
    """A worker that has ended is not created again: the launcher would wait for it until the deadline."""
    return _role(pod) == "worker" and phase(pod) in ENDED
