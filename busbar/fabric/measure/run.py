"""Creates the objects of a plan, follows and judges the job, and removes everything however the run ends.

A run that outlives its process stays until a call has its result.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from busbar.collect.collector import Collected, collect
from busbar.fabric.measure.plan import RUN_LABEL, CannotMeasure, Plan
from busbar.judge.nccl import Verdict
from busbar.kube import objects
from busbar.kube.client import Api, ApiError
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.manifests.mpijob import API_VERSION
from busbar.manifests.scheduling import PRIORITY_CLASSES

Found = TypeVar("Found")

UNTIL = "busbar/nccl-run-until"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CREATION_SECONDS = 60.0
# Time limit in seconds. Pods have 5 s to end; deleting a namespace covers every kind of object.
REMOVAL_SECONDS = 180.0
# How long the log of a run that outlives its process can be fetched; `clean` removes it after that.
KEPT_SECONDS = 7 * 86400.0
_KINDS = (
    ("MPIJob", f"/apis/{API_VERSION}", "mpijobs"),
    ("ConfigMap", "/api/v1", "configmaps"),
    ("Namespace", "/api/v1", "namespaces"),
    ("PriorityClass", *PRIORITY_CLASSES.rsplit("/", 1)),
)
_CLUSTER_WIDE = ("Namespace", "PriorityClass")


class Interrupted(KeyboardInterrupt):
    """A signal has ended the run; `exit_code`: the exit code that shells report."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Preempted(CannotMeasure):
    """Pods of an idle run ended for other pods, so its verdict says nothing of the fabric."""


class IdleApi:
    """The API of an idle run: a log ends with Preempted once pods of the run made room for others.

    Without a worker, the launcher's mpirun may wait until the job's deadline, and the other workers with it.
    A silent log is opened again after 30 s (RestApi), so preemption is noticed by then.
    """

    def __init__(self, api: Api, plan: Plan) -> None:
        self._api, self._plan = api, plan
        self.get, self.list = api.get, api.list
        self.create, self.merge, self.apply, self.delete = api.create, api.merge, api.apply, api.delete

    def stream(self, path: str, **query: str) -> Iterator[bytes]:
        raise_if_preempted(self._api, self._plan)
        return self._api.stream(path, **query)


class LeftBehind(CannotMeasure):
    """The run has ended with `found`, and objects of it are still in the cluster."""

    def __init__(self, left: str, found: Any) -> None:
        super().__init__([left])
        self.found = found


@dataclass(frozen=True)
class Remnant:
    kind: str
    path: str
    uid: str
    run: str
    until: str

    def __str__(self) -> str:
        parts = self.path.split("/")
        namespace = "" if self.kind in _CLUSTER_WIDE else f"{parts[-3]}/"
        return f"{self.kind} {namespace}{parts[-1]}"


def latest_end(seconds: float) -> str:
    """The mark of an object: no process follows its run then, with an hour for another machine's clock."""
    return (datetime.now(UTC) + timedelta(hours=1, seconds=seconds)).isoformat(timespec="seconds")


def measure(
    api: Api,
    plan: Plan,
    folder: str,
    clock: Clock,
    progress: ProgressCallback,
    keep: Callable[[Collected], None] = lambda found: None,
    options: str = "",
    about: Mapping[str, str] | None = None,
    *,
    outlives: bool = False,
) -> Verdict:
    """Run the plan; log, verdict and report are kept in `folder`, and nothing in the cluster.

    `keep` gets the collected result, before everything is removed. `about`: `pool` and `folder` of a record
    that stays in the cluster. Raises Preempted if an idle run made room for other pods, and the errors of
    `run`, which gets `options` and `outlives`, and of `collect`.
    """
    spec = plan.collect_spec(folder)

    def refuse(verdict: Verdict) -> None:
        if plan.idle and not verdict.passed:
            raise_if_preempted(api, plan)

    def follow() -> Verdict:
        kind = ("idle" if plan.idle else "measure") if about else "run"
        whose = {"pool": plan.run, "kind": kind, **(about or {})}
        reached = IdleApi(api, plan) if plan.idle else api
        found = collect(reached, spec, clock, progress, refuse, None, **whose)
        keep(found)
        return Verdict.model_validate(found.verdict)

    return run(api, plan, spec.deadline_seconds, follow, clock, progress, options, outlives=outlives)


def run(
    api: Api,
    plan: Plan,
    seconds: float,
    follow: Callable[[], Found],
    clock: Clock,
    progress: ProgressCallback,
    options: str = "",
    *,
    outlives: bool = False,
) -> Found:
    """Create the objects of the plan, call `follow`, which takes at most `seconds`, and remove the objects.

    `options`: of `busbar nccl clean` for this cluster. `outlives`: if `follow` raises, the job goes on, and
    the next call finds it by its label. Raises CannotMeasure if the cluster refuses an object, LeftBehind if
    one cannot be removed, Interrupted at a signal, and the errors of `follow`.
    """
    until = latest_end(CREATION_SECONDS + seconds + REMOVAL_SECONDS + (KEPT_SECONDS if outlives else 0))
    with _signals_raise():
        stays = False
        try:
            if not (outlives and _has_begun(api, plan, clock, progress)):
                _create(api, plan, until, Deadline(clock, CREATION_SECONDS), progress)
            stays = outlives
            found = follow()
        except BaseException as ended:
            if stays and not isinstance(ended, CannotMeasure):
                ends = f"busbar nccl clean {plan.run}{options} ends it"
                progress(f"{plan.run} goes on without this process; {ends}")
                raise
            if isinstance(ended, Interrupted):
                progress(f"{ended}: removing the run; a second signal leaves it in the cluster")
            if left := _remove_run(api, plan, clock, progress, options):
                progress(f"error: {left}")
            raise
        if left := _remove_run(api, plan, clock, progress, options):
            raise LeftBehind(left, found)
        return found


def clean(
    api: Api, runs: Collection[str], namespace: str | None, clock: Clock, progress: ProgressCallback
) -> list[Remnant]:
    """Remove objects of killed processes: of `runs`, else of all runs whose time is over.

    Returns the objects that are kept, because their process may be alive. Raises ApiError, and TimedOut.
    """
    found, now = find(api, namespace), datetime.now(UTC)
    over = [each for each in found if each.until and datetime.fromisoformat(each.until) <= now]
    named = [each for each in found if each.run in runs] if runs else over
    remove(api, named, Deadline(clock, REMOVAL_SECONDS), progress)
    return [] if runs else [each for each in found if each not in over]


def find(api: Api, namespace: str | None = None) -> list[Remnant]:
    """All objects with the label of a run: in `namespace`, else in the cluster. Raises ApiError."""
    found: list[Remnant] = []
    for kind, base, plural in _KINDS:
        if namespace and kind in _CLUSTER_WIDE:
            continue
        collection = f"{base}/namespaces/{namespace}/{plural}" if namespace else f"{base}/{plural}"
        try:
            served = api.list(collection, labelSelector=RUN_LABEL)
        except ApiError as error:
            # Without permission to list PriorityClasses we cannot have created one.
            if not (error.not_found or (error.status == 403 and kind == "PriorityClass")):
                raise
            continue
        for metadata in (each["metadata"] for each in served):
            inside = "" if kind in _CLUSTER_WIDE else f"namespaces/{metadata['namespace']}/"
            path = f"{base}/{inside}{plural}/{metadata['name']}"
            run, until = metadata["labels"][RUN_LABEL], metadata.get("annotations", {}).get(UNTIL, "")
            found.append(Remnant(kind, path, metadata["uid"], run, until))
    return found


def remove(api: Api, remnants: Collection[Remnant], deadline: Deadline, progress: ProgressCallback) -> None:
    """Delete objects and wait until they and the pods of their jobs are gone. Raises as `wait_until`."""
    for each in remnants:
        wait_until(
            partial(objects.delete, api, each.path, each.uid), deadline, poll_seconds=1, progress=progress
        )
    for each in remnants:
        wait_until(partial(_gone, api, each), deadline, poll_seconds=1, progress=progress)
        progress(f"removed {each}")


def _has_begun(api: Api, plan: Plan, clock: Clock, progress: ProgressCallback) -> bool:
    """True if an earlier process has created the job; without one, what it has left is removed."""
    found = [each for each in find(api) if each.run == plan.run]
    if any(each.kind == "MPIJob" for each in found):
        return True
    remove(api, found, Deadline(clock, REMOVAL_SECONDS), progress)
    return False


def _create(api: Api, plan: Plan, until: str, deadline: Deadline, progress: ProgressCallback) -> None:
    for path, manifest in plan.objects({UNTIL: until}):
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind in ("MPIJob", "Pod"):
            _try_worker(api, plan, manifest, deadline)
        # A signal during the request is handled after its response.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            api.create(path, manifest)
        except ApiError as error:
            fix = ". Fix: --namespace NAME, one that you may use" if kind == "Namespace" else ""
            raise CannotMeasure([f"{kind} cannot be created: {error}{fix}"]) from None
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        progress(f"created {kind} {name}")


def _try_worker(api: Api, plan: Plan, manifest: Mapping[str, Any], deadline: Deadline) -> None:
    """Have the API admit a pod, or a worker of a job, without creating it.

    The operator would retry a pod that Pod Security, a quota or a policy refuses until the deadline.
    """
    namespace = plan.job.namespace
    is_pod = manifest["kind"] == "Pod"
    template = manifest if is_pod else manifest["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
    metadata = {**template["metadata"], "name": f"{manifest['metadata']['name']}-worker-0"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    # A new namespace gets its service account, and an API server the PriorityClass, a moment later; admission
    # reports that. An authorizer's refusal, which may contain the same words in a name, is final.
    late = ('serviceaccount "default" not found', f"no PriorityClass with name {plan.priority} was found")
    try:
        wait_until(
            lambda: api.create(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod),
            deadline,
            poll_seconds=0.5,
            retry_on=lambda error: (
                error.transient
                or (error.object_name == metadata["name"] and any(text in error.reason for text in late))
            ),
        )
    except (ApiError, TimedOut) as error:
        refused = error if isinstance(error, ApiError) else error.error
        fix = (
            "grant this right: busbar docs measuring Rights"
            if refused and refused.status == 403 and not refused.object_name
            else f"let what it names (a policy, a webhook, a quota, Pod Security) admit them in {namespace}"
        )
        found = f"namespace {namespace} does not admit the worker pods: {error}. Fix: {fix}"
        raise CannotMeasure([found]) from None


def raise_if_preempted(api: Api, plan: Plan) -> None:
    """Raise Preempted with the pods of the run that the scheduler has preempted, or ApiError."""
    events = api.list(f"/api/v1/namespaces/{plan.job.namespace}/events", fieldSelector="reason=Preempted")
    begin = f"{plan.objects({})[-1][1]['metadata']['name']}-"
    found = [(each["involvedObject"]["name"], each) for each in events if each.get("reason") == "Preempted"]
    if mine := [f"{name}: {each.get('message')}" for name, each in found if name.startswith(begin)]:
        raise Preempted([f"the measurement made room for other pods: {each}" for each in mine])


def _remove_run(api: Api, plan: Plan, clock: Clock, progress: ProgressCallback, options: str) -> str:
    """Remove the run. Returns what is left, why, and the command that removes it; empty if nothing is."""
    deadline, left = Deadline(clock, REMOVAL_SECONDS), list[str]()
    inside = None if plan.owns_namespace or plan.idle else plan.job.namespace
    where = f" --namespace {inside}" if inside else ""
    fix = f"Fix: busbar nccl clean {plan.run}{where}{options}"
    try:
        for each in wait_until(partial(find, api, inside), deadline, poll_seconds=1):
            # Deleting the run's own namespace deletes everything in it.
            if each.run != plan.run or (plan.owns_namespace and each.kind not in _CLUSTER_WIDE):
                continue
            try:
                remove(api, [each], deadline, progress)
            except (ApiError, TimedOut) as error:
                left.append(f"{each}: {error}")
    except (ApiError, TimedOut) as error:
        left.append(str(error))
    except Interrupted as signalled:
        progress(f"error: {plan.run} is not removed: {signalled}. {fix}")
        raise
    return f"{plan.run} is not removed: {'; '.join(left)}. {fix}" if left else ""


def _gone(api: Api, remnant: Remnant) -> bool | Pending:
    found = objects.find(api, remnant.path)
    if found and found["metadata"]["uid"] == remnant.uid:
        return Pending(f"{remnant} is being deleted")
    if remnant.kind != "MPIJob":
        return True
    namespace = remnant.path.split("/")[-3]
    pods = api.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"{RUN_LABEL}={remnant.run}")
    return Pending(f"{len(pods)} pods of {remnant} are ending") if pods else True


@contextmanager
def _signals_raise() -> Iterator[None]:
    def interrupt(number: int, _: object) -> None:
        raise Interrupted(number)

    former: dict[int, Callable[[int, Any], Any] | int | None] = {
        number: signal.signal(number, interrupt) for number in SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
