"""Steps of an update or a destroy that wait: for the webhook, slurmrestd, the end of jobs and of pods."""

from __future__ import annotations

from typing import Any, Literal

from busbar.cli.output import progress
from busbar.exits import Failed
from busbar.kube.client import Api, ApiError
from busbar.kube.objects import find
from busbar.kube.wait import (
    Clock,
    Deadline,
    Pending,
    ProgressCallback,
    SystemClock,
    TimedOut,
    wait_until,
)
from busbar.text import listed
from stacks.slurm_k8s.package.rest import POD_LABELS, ProxyApi, SlurmApi, clusters, transient
from stacks.slurm_k8s.package.roll import Roll, RollSpec
from stacks.slurm_k8s.package.values import API_VERSION, OPERATOR, RELEASE

SERVICE = "slurm-operator-webhook"
SECONDS = 120
POLL_SECONDS = 2.0
_CANCEL = "set removal.cancel_jobs: true, which cancels them, and run `busbar destroy` again"
_DRY_RUN = "busbar-dry-run"
READY = "ready"


class StepSpec(RollSpec):
    """Stdin of `busbar slurm_k8s step`. `namespace`: of Slurm. `cancel_jobs`: in place of a refusal."""

    step: Literal["webhook", "before-change", "roll", "before-removal", "after-removal"]
    cancel_jobs: bool = False


def run(api: ProxyApi, spec: StepSpec, clock: Clock, progress: ProgressCallback) -> Any:
    """Run a step; what it has found. Raises TimedOut, Failed and ApiError."""
    roll = Roll(api, SlurmApi(api, spec.namespace), spec, clock, progress)
    if spec.step == "before-removal":
        if jobs := end_jobs(roll.slurm, clock, progress, ends=spec.cancel_jobs):
            raise Failed(
                f"{listed(jobs)} are running or pending; nothing was removed. Fix: wait for their end, or "
                f"{_CANCEL}"
            )
        return "no jobs"
    if spec.step == "roll":
        return roll.roll()
    look = {"webhook": webhook, "before-change": slurmrestd, "after-removal": no_pods}[spec.step]
    found = wait_until(
        lambda: look(api, spec.namespace),
        Deadline(clock, SECONDS),
        poll_seconds=POLL_SECONDS,
        progress=progress,
    )
    if spec.step == "before-change" and found == READY:
        roll.note_limits()
        roll.note_conf()
        roll.write_gres()
        return roll.release_leaving()
    return found


def webhook(api: Api, namespace: str) -> str | Pending:
    """Whether the operator's webhook accepts an object; a change of its release makes a new certificate."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{OPERATOR.namespace}/endpointslices"
    slices = api.list(path, labelSelector=f"kubernetes.io/service-name={SERVICE}")
    ends = [end for each in slices for end in each.get("endpoints") or []]
    if not any((end.get("conditions") or {}).get("ready") for end in ends):
        return Pending(f"Service {OPERATOR.namespace}/{SERVICE} has no ready endpoint")
    reference = {"name": _DRY_RUN, "key": "key"}
    body = {
        "apiVersion": API_VERSION,
        "kind": "Controller",
        "metadata": {"name": _DRY_RUN, "namespace": "default"},
        "spec": {"slurmKeyRef": reference, "jwtHs256KeyRef": reference},
    }
    try:
        api.create(f"/apis/{API_VERSION}/namespaces/default/controllers?dryRun=All", body)
    except ApiError as error:
        # 500: the API server cannot reach the webhook, or does not know its authority yet.
        return Pending(f"the operator's webhook is not ready: {error}")
    return "accepted"


def await_slurmrestd(api: Api, namespace: str) -> None:
    """The hook before each change of the operator or of Slurm's release. Raises TimedOut."""
    wait_until(
        lambda: slurmrestd(api, namespace), Deadline(SystemClock(), SECONDS), poll_seconds=POLL_SECONDS
    )


def slurmrestd(api: Api, namespace: str) -> str | Pending:
    """Whether slurmrestd is ready, where pods of slurmd run.

    Without it the operator knows neither the nodes nor their jobs.
    """
    found = find(api, f"/apis/apps/v1/namespaces/{namespace}/deployments/{RELEASE}-restapi")
    if found and (found.get("status") or {}).get("readyReplicas"):
        return READY
    pods = api.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=POD_LABELS) if found else []
    if not any((pod.get("status") or {}).get("phase") == "Running" for pod in pods):
        return "not running"
    return Pending(f"no pod of Deployment {namespace}/{RELEASE}-restapi is ready: nothing is changed")


def no_pods(api: Api, namespace: str) -> str | Pending:
    """Whether the operator has removed all pods of Slurm: without it they would stay."""
    names = [pod["metadata"]["name"] for pod in api.list(f"/api/v1/namespaces/{namespace}/pods")]
    return Pending(f"pods of Slurm are ending: {listed(names)}") if names else "gone"


def running_jobs(api: ProxyApi, ends: bool) -> list[str]:
    """The question of a destroy (busbar.capability.Capability.jobs). Raises Failed without an answer."""
    found = (end_jobs(each, SystemClock(), progress, ends=ends) for each in clusters(api))
    return [text for jobs in found for text in jobs]


def end_jobs(slurm: SlurmApi, clock: Clock, progress: ProgressCallback, *, ends: bool) -> list[str]:
    """The jobs that run or wait; with `ends` they are cancelled, and have ended. Raises Failed."""
    cancelled: set[int] = set()

    def look() -> list[str] | Pending:
        jobs = slurm.active_jobs()
        if not jobs or not ends:
            return [f"job {job} of Slurm" for job in jobs]
        for job in {*jobs} - cancelled:
            slurm.cancel(job)
        cancelled.update(jobs)
        return Pending(f"jobs of Slurm are ending: {listed([*map(str, jobs)])}")

    deadline = Deadline(clock, SECONDS)
    try:
        return wait_until(look, deadline, poll_seconds=POLL_SECONDS, progress=progress, retry_on=transient)
    except TimedOut as timeout:
        if not timeout.error:
            fix = "sinfo; of a host that is gone: scontrol update nodename=NODE state=down reason=gone"
            raise Failed(f"{timeout}; nothing was removed. Fix: {fix}; then retry") from timeout
        if ends:
            progress(f"warning: slurmctld cannot be asked for jobs: {timeout.error}")
            return []
        raise Failed(
            f"it is unknown whether jobs of Slurm run: {timeout.state}; nothing was removed. Fix: "
            f"kubectl -n {slurm.namespace} get pods; or {_CANCEL}"
        ) from timeout
