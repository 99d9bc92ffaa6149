"""Creates what a plan says, follows and judges the job, and removes all of it, however the run ends."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from busbar.collect.collector import collect
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.manifests.mpijob import API_VERSION
from busbar.measure.plan import RUN_LABEL, CannotMeasure, Plan
from busbar.nccl import Verdict

OWNER = "busbar/nccl-run-owner"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CREATION_SECONDS = 60.0
# Pods have 5 s to end; the deletion of a namespace goes through every kind of object.
REMOVAL_SECONDS = 180.0
_KINDS = (
    ("MPIJob", f"/apis/{API_VERSION}", "mpijobs"),
    ("ConfigMap", "/api/v1", "configmaps"),
    ("Namespace", "/api/v1", "namespaces"),
)


class Interrupted(KeyboardInterrupt):
    """A signal has ended the run; `exit_code` is what shells report."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@dataclass(frozen=True)
class Remnant:
    """An object of a run."""

    kind: str
    path: str
    uid: str
    run: str
    owner: str

    def __str__(self) -> str:
        parts = self.path.split("/")
        namespace = f"{parts[-3]}/" if self.kind != "Namespace" else ""
        return f"{self.kind} {namespace}{parts[-1]}"


def this_process(seconds: float) -> str:
    """What says later who has made an object: host, pid, and when this process is over at the latest."""
    until = datetime.now(UTC) + timedelta(seconds=seconds)
    return f"{socket.gethostname()} {os.getpid()} {until.isoformat(timespec='seconds')}"


def may_run(owner: str) -> bool:
    """Whether the process of `this_process` may still follow its job; on another host nobody can tell."""
    host, pid, until = owner.split()
    if datetime.now(UTC) >= datetime.fromisoformat(until):
        return False
    return host != socket.gethostname() or _lives(int(pid))


def measure(api: Api, plan: Plan, folder: str, clock: Clock, progress: ProgressCallback) -> Verdict:
    """Run the plan; log, verdict and report are kept in `folder`, and nothing in the cluster.

    Raises CannotMeasure where the cluster refuses an object, Interrupted at a signal, and as `collect`.
    """
    spec = plan.collect_spec(folder)
    owner = this_process(CREATION_SECONDS + spec.deadline_seconds + REMOVAL_SECONDS)
    with _signals_raise():
        try:
            _create(api, plan, owner, Deadline(clock, CREATION_SECONDS), progress)
            return Verdict.model_validate(collect(api, spec, clock, progress).verdict)
        except Interrupted as signalled:
            progress(f"{signalled}: removing the run; a second signal leaves it in the cluster")
            raise
        finally:
            _remove_run(api, plan, clock, progress)


def clean(
    api: Api, runs: Collection[str], namespace: str | None, clock: Clock, progress: ProgressCallback
) -> list[Remnant]:
    """Remove what killed processes have left: of `runs`, else of all runs whose process cannot be alive.

    Returns what is kept, because its process may be alive. Raises ApiError, and TimedOut.
    """
    found = find(api, namespace=namespace)
    kept = [each for each in found if not runs and (not each.owner or may_run(each.owner))]
    named = [each for each in found if each not in kept and (not runs or each.run in runs)]
    remove(api, named, clock, progress)
    return kept


def find(
    api: Api, *, run: str | None = None, namespace: str | None = None, kinds: Collection[str] = ()
) -> list[Remnant]:
    """The objects with the label of `run`, or of any: in `namespace`, else in all. Raises ApiError."""
    selector = f"{RUN_LABEL}={run}" if run else RUN_LABEL
    found: list[Remnant] = []
    for kind, base, plural in _KINDS:
        if (kinds and kind not in kinds) or (namespace and kind == "Namespace"):
            continue
        path = f"{base}/namespaces/{namespace}/{plural}" if namespace else f"{base}/{plural}"
        for each in _listed(api, path, selector):
            if (label := each["metadata"].get("labels", {}).get(RUN_LABEL)) and run in (None, label):
                found.append(_remnant(kind, base, plural, each["metadata"], label))
    return found


def remove(api: Api, remnants: Collection[Remnant], clock: Clock, progress: ProgressCallback) -> None:
    """Delete these objects and wait until they and the pods of the jobs are gone. Raises as `wait_until`."""
    deadline = Deadline(clock, REMOVAL_SECONDS)
    for each in remnants:
        wait_until(lambda each=each: _delete(api, each), deadline, poll_seconds=1, progress=progress)  # type: ignore[misc]
    for each in remnants:
        wait_until(lambda each=each: _gone(api, each), deadline, poll_seconds=1, progress=progress)  # type: ignore[misc]
        progress(f"removed {each}")


def _create(api: Api, plan: Plan, owner: str, deadline: Deadline, progress: ProgressCallback) -> None:
    namespace = plan.job.namespace
    for path, manifest in plan.objects({OWNER: owner}):
        if manifest["kind"] == "MPIJob":
            _try_worker(api, namespace, manifest, deadline)
        # A signal meanwhile waits: whether the object was created would not be known.
        with _blocked():
            try:
                api.create(path, manifest)
            except ApiError as error:
                fix = ". Fix: --namespace NAME, one that you may use" if path.endswith("/namespaces") else ""
                raise CannotMeasure([f"{manifest['kind']} cannot be created: {error}{fix}"]) from None
        progress(f"created {manifest['kind']} {manifest['metadata']['name']}")


def _try_worker(api: Api, namespace: str, manifest: Mapping[str, Any], deadline: Deadline) -> None:
    """Have the API admit a worker pod without creating it.

    The operator would retry a refused one until the deadline: by Pod Security, a quota, a policy.
    """
    template = manifest["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
    metadata = {**template["metadata"], "name": f"{manifest['metadata']['name']}-worker-0"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    try:
        wait_until(
            lambda: api.create(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod),
            deadline,
            poll_seconds=0.5,
            # A new namespace has its service account a moment later.
            retry_on=lambda error: error.transient or "serviceaccount" in error.reason,
        )
    except (ApiError, TimedOut) as error:
        raise CannotMeasure(
            [
                f"namespace {namespace} does not admit the worker pods: {error}. Fix: another --namespace, "
                "or none: busbar then creates one with the Pod Security level that they need"
            ]
        ) from None


def _remove_run(api: Api, plan: Plan, clock: Clock, progress: ProgressCallback) -> None:
    """Remove the run; what cannot be removed is a message, because there may be a verdict."""
    own = plan.owns_namespace
    scope: dict[str, Any] = {"kinds": ("Namespace",)} if own else {"namespace": plan.job.namespace}
    try:
        found = wait_until(
            lambda: find(api, run=plan.run, **scope), Deadline(clock, REMOVAL_SECONDS), poll_seconds=1
        )
        remove(api, found, clock, progress)
    except (ApiError, TimedOut, Interrupted) as error:
        progress(f"error: {plan.run} is not removed: {error}. Fix: busbar nccl clean {plan.run}")
        if isinstance(error, Interrupted):
            raise


def _remnant(kind: str, base: str, plural: str, metadata: JsonObject, run: str) -> Remnant:
    inside = "" if kind == "Namespace" else f"namespaces/{metadata['namespace']}/"
    owner = metadata.get("annotations", {}).get(OWNER, "")
    path = f"{base}/{inside}{plural}/{metadata['name']}"
    return Remnant(kind, path, metadata["uid"], run, owner)


def _listed(api: Api, path: str, selector: str) -> list[JsonObject]:
    try:
        return api.list(path, labelSelector=selector)
    except ApiError as error:
        if not error.not_found:
            raise
        return []


def _delete(api: Api, remnant: Remnant) -> None:
    try:
        api.delete(remnant.path, uid=remnant.uid)
    except ApiError as error:
        # Gone, or another object of the same name: not ours.
        if not (error.not_found or error.conflict):
            raise


def _gone(api: Api, remnant: Remnant) -> bool | Pending:
    try:
        if api.get(remnant.path)["metadata"]["uid"] == remnant.uid:
            return Pending(f"{remnant} is being deleted")
    except ApiError as error:
        if not error.not_found:
            raise
    if remnant.kind != "MPIJob":
        return True
    namespace = remnant.path.split("/")[-3]
    pods = _listed(api, f"/api/v1/namespaces/{namespace}/pods", f"{RUN_LABEL}={remnant.run}")
    return Pending(f"{len(pods)} pods of {remnant} are ending") if pods else True


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


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


@contextmanager
def _blocked() -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
