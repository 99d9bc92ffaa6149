"""What is checked before the pods of a running Slurm change, and before all of it is removed."""

from __future__ import annotations

from busbar.exits import Failed
from busbar.kube.client import Api
from busbar.kube.objects import find
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.models import StrictModel
from busbar.text import listed
from stacks.slurm_k8s.package.rest import SlurmApi, transient
from stacks.slurm_k8s.package.values import RELEASE

SECONDS = 120
POLL_SECONDS = 2.0
_CANCEL = "set removal.cancel_jobs: true and run `busbar up`, then retry"


class ChangeSpec(StrictModel):
    """Stdin of `busbar slurm_k8s before-change` and `after-removal`."""

    namespace: str


class RemovalSpec(StrictModel):
    """Stdin of `busbar slurm_k8s before-removal`. `cancel_jobs`: cancel jobs in place of a refusal."""

    namespace: str
    cancel_jobs: bool


def before_change(api: Api, spec: ChangeSpec, clock: Clock, progress: ProgressCallback) -> str:
    """Wait until slurmrestd is ready, where Slurm is installed.

    Without it the operator knows no node: 1.0 has then deleted every worker pod, with the jobs in them.
    Raises TimedOut.
    """
    path = f"/apis/apps/v1/namespaces/{spec.namespace}/deployments/{RELEASE}-restapi"

    def look() -> str | Pending:
        found = find(api, path)
        if found is None:
            return "not installed"
        if (found.get("status") or {}).get("readyReplicas"):
            return "ready"
        return Pending(
            f"no pod of Deployment {spec.namespace}/{RELEASE}-restapi is ready: nothing is changed"
        )

    return wait_until(look, Deadline(clock, SECONDS), poll_seconds=POLL_SECONDS, progress=progress)


def after_removal(api: Api, spec: ChangeSpec, clock: Clock, progress: ProgressCallback) -> None:
    """Wait until the operator has removed all pods of Slurm: without it they would stay. Raises TimedOut."""
    path = f"/api/v1/namespaces/{spec.namespace}/pods"

    def look() -> bool | Pending:
        names = [pod["metadata"]["name"] for pod in api.list(path)]
        return Pending(f"pods of Slurm are ending: {listed(names)}") if names else True

    wait_until(look, Deadline(clock, SECONDS), poll_seconds=POLL_SECONDS, progress=progress)


def before_removal(slurm: SlurmApi, spec: RemovalSpec, clock: Clock, progress: ProgressCallback) -> int:
    """The number of jobs that were cancelled. Raises Failed while there are jobs, and without an answer."""
    cancelled: set[int] = set()

    def look() -> int | Pending:
        jobs = slurm.active_jobs()
        if not jobs:
            return len(cancelled)
        if not spec.cancel_jobs:
            raise Failed(
                f"jobs of Slurm are running or pending: {listed([str(job) for job in jobs])}; nothing was "
                f"removed. Fix: wait for their end, or {_CANCEL}"
            )
        for job in jobs:
            slurm.cancel(job)
        cancelled.update(jobs)
        return Pending(f"cancelling {len(jobs)} jobs")

    try:
        return wait_until(
            look, Deadline(clock, SECONDS), poll_seconds=POLL_SECONDS, progress=progress, retry_on=transient
        )
    except TimedOut as timeout:
        if spec.cancel_jobs and timeout.error:
            progress(f"warning: slurmctld cannot be asked for jobs: {timeout.error}")
            return len(cancelled)
        raise Failed(
            f"it is unknown whether jobs of Slurm run: {timeout.state}; nothing was removed. Fix: "
            f"kubectl -n {spec.namespace} get pods; or {_CANCEL}"
        ) from timeout
