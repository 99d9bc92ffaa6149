"""Steps of an update or a destroy that wait: for the webhook, slurmrestd, the end of jobs and of pods."""

from __future__ import annotations

import os
from collections.abc import Callable

from busbar.capability import CANCEL_JOBS
from busbar.cli.output import progress
from busbar.exits import Failed, NoVerdict
from busbar.kube.client import Api, ApiError
from busbar.kube.objects import find
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, SystemClock, TimedOut, wait_until
from busbar.models import StrictModel
from busbar.text import listed
from stacks.slurm_k8s.package.rest import POD_LABELS, ProxyApi, SlurmApi, clusters, transient
from stacks.slurm_k8s.package.roll import Roll, RollSpec
from stacks.slurm_k8s.package.values import API_VERSION, OPERATOR, RELEASE, SLURM_KEY

SERVICE = "slurm-operator-webhook"
SECONDS, POLL_SECONDS = 120, 2.0
_CANCEL = "set removal.cancel_jobs: true, which cancels them, then retry"
_DRY_RUN = "busbar-dry-run"


class StepSpec(StrictModel):
    """The request of a step. `namespace`: of Slurm. `cancel_jobs`: in `before-removal`, not a refusal."""

    namespace: str
    cancel_jobs: bool = False


def _wait(look: Callable[[], bool | Pending], clock: Clock, progress: ProgressCallback | None) -> bool:
    return wait_until(look, Deadline(clock, SECONDS), poll_seconds=POLL_SECONDS, progress=progress)


def await_webhook(api: Api, spec: StepSpec, clock: Clock, progress: ProgressCallback) -> None:
    """The step `webhook`, after the operator. Raises TimedOut and ApiError."""
    _wait(lambda: _accepts(api), clock, progress)


def _accepts(api: Api) -> bool | Pending:
    """True if the operator's webhook accepts an object; a change of its release makes a new certificate."""
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
    return True


def before_change(api: ProxyApi, spec: RollSpec, clock: Clock, progress: ProgressCallback) -> list[str]:
    """The step `before-change`, before Slurm's release. Returns the pods that leave. Raises as Roll."""
    is_running = _wait(lambda: _slurmrestd(api, spec.namespace), clock, progress)
    return Roll(api, spec, clock, progress).prepare() if is_running else []


def await_slurmrestd(api: Api, namespace: str) -> None:
    """The hook before each change of the operator or of Slurm's release. Raises TimedOut and ApiError."""
    _wait(lambda: _slurmrestd(api, namespace), SystemClock(), None)


def _slurmrestd(api: Api, namespace: str) -> bool | Pending:
    """True if slurmrestd is ready, False if no pod of slurmd runs that needs it.

    Without it the operator knows neither the nodes nor their jobs.
    """
    found = find(api, f"/apis/apps/v1/namespaces/{namespace}/deployments/{RELEASE}-restapi")
    if found and (found.get("status") or {}).get("readyReplicas"):
        return True
    pods = api.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=POD_LABELS) if found else []
    if not any((pod.get("status") or {}).get("phase") == "Running" for pod in pods):
        return False
    return Pending(f"no pod of Deployment {namespace}/{RELEASE}-restapi is ready: nothing is changed")


def await_removal(api: Api, spec: StepSpec, clock: Clock, progress: ProgressCallback) -> None:
    """The step `after-removal`: without the operator pods of Slurm would stay. Raises TimedOut, ApiError."""

    def look() -> bool | Pending:
        names = [pod["metadata"]["name"] for pod in api.list(f"/api/v1/namespaces/{spec.namespace}/pods")]
        return not names or Pending(f"pods of Slurm are ending: {listed(names)}")

    _wait(look, clock, progress)


def refuse_jobs(api: ProxyApi, spec: StepSpec, clock: Clock, progress: ProgressCallback) -> None:
    """The step `before-removal`. Raises Failed with the jobs that run or wait, and ApiError."""
    _refuse_others(api)
    ends = spec.cancel_jobs or os.environ.get(CANCEL_JOBS) == "true"
    if jobs := end_jobs(SlurmApi(api, spec.namespace), clock, progress, ends=ends):
        what = f"{listed(jobs)} are running or pending; nothing was removed"
        raise Failed(f"{what}. Fix: wait for their end, or {_CANCEL}")


def running_jobs(api: ProxyApi, ends: bool) -> list[str]:
    """The question of a destroy (busbar.capability.Capability.jobs). Raises NoVerdict without an answer."""
    _refuse_others(api)
    found = (end_jobs(each, SystemClock(), progress, ends=ends) for each in clusters(api))
    return [text for jobs in found for text in jobs]


def _refuse_others(api: Api) -> None:
    """Refuse a removal that would end Slurm clusters of others: the CRDs go with it. Raises Failed."""
    for each in (find(api, f"/apis/{API_VERSION}/controllers") or {}).get("items") or ():
        namespace, name = each["metadata"]["namespace"], each["metadata"]["name"]
        if (each["spec"].get("slurmKeyRef") or {}).get("name") != SLURM_KEY:
            what = f"the Slurm cluster {namespace}/{name} is not of busbar, and would end with its CRDs"
            fix = f"first remove it: kubectl -n {namespace} delete controllers.slinky.slurm.net {name}"
            raise Failed(f"{what}; nothing was removed. Fix: {fix}, which ends its jobs; then retry")


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
        what = f"it is unknown whether jobs of Slurm run: {timeout.state}; nothing was removed"
        raise NoVerdict(what, f"kubectl -n {slurm.namespace} get pods; or {_CANCEL}") from timeout
