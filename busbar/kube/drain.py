"""Takes a worker out for a repair and puts it back: `busbar drain` and `busbar uncordon`.

Unlike the drain of an update (host/k3s-drain.sh) it ends with a cordoned Node, also where pods remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol

from busbar.exits import Failed
from busbar.kube import allocatable, nodes
from busbar.kube.allocatable import AllocatableSpec
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.nodes import DRAINED, NODES, SILENT, Node
from busbar.kube.objects import find
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until

# Pods of these owners stay with their Node.
_STAY = frozenset({"DaemonSet", "Node"})


Stays = Callable[[JsonObject], str]
"""Pod -> why its eviction is not asked for; "" where it is."""


def evict_all(api: Api, node: str, stays: Stays = lambda pod: "") -> str:
    """Ask for the eviction of the Node's pods; those that are left, with what keeps each. Raises ApiError."""
    left = []
    for pod in api.list("/api/v1/pods", fieldSelector=f"spec.nodeName={node}"):
        metadata, is_over = pod["metadata"], (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if not is_over and not owners(pod) & _STAY:
            keeps = "ending" if metadata.get("deletionTimestamp") else stays(pod) or _evict(api, pod)
            left.append(f"{metadata['namespace']}/{metadata['name']} ({keeps})")
    return "; ".join(left)


def owners(pod: JsonObject) -> set[str]:
    """The kinds of what owns a pod."""
    return {str(each.get("kind")) for each in pod["metadata"].get("ownerReferences") or []}


def _evict(api: Api, pod: JsonObject) -> str:
    """Why the pod is still there: it ends, or the API refuses, for a disruption budget with its name."""
    metadata = {key: pod["metadata"][key] for key in ("namespace", "name")}
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/eviction"
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    try:
        api.create(path, body)
    except ApiError as error:
        return "ending" if error.not_found else error.reason
    return "ending"


POLL_SECONDS = 3.0
CHANGE_SECONDS = 60.0


class DrainHook(Protocol):
    """A scheduler in the cluster that has jobs on a Node. Its methods raise ApiError, and are safe to repeat.

    `begin`: it starts no new jobs there, with the reason; a drain of somebody else stays as it is. Pods are
    evicted when `released` is true. `end`: it starts jobs there again, unless somebody else has drained it.
    """

    def begin(self) -> None: ...
    def released(self) -> bool | Pending: ...
    def end(self) -> None: ...


Hooks = Callable[[str, str], Sequence[DrainHook]]
"""Node, reason -> the schedulers that have jobs there. Raises ApiError."""


def no_hooks(node: str, reason: str) -> Sequence[DrainHook]:
    """No scheduler."""
    return ()


def reason_of(quarantine: str | None, drained: str = "") -> str:
    """Why schedulers start no jobs on a Node; "" where they may."""
    return f"quarantine: {quarantine}" if quarantine else drained


def tell(hooks: Hooks, node: str, reason: str) -> None:
    """Let schedulers start no new jobs on a Node, for a reason, or without one start them again."""
    for hook in hooks(node, reason):
        (hook.begin if reason else hook.end)()


class PodsRemain(Failed):
    """Pods that had not left the Node by the deadline; the text names them with what keeps each."""


class NotDrained(Failed):
    """The Node was not drained by `busbar drain`; the text says what keeps pods away, if anything does."""


def drain(
    api: Api,
    name: str,
    reason: str,
    by: str,
    *,
    end_jobs: bool,
    seconds: float,
    clock: Clock,
    progress: ProgressCallback,
    hooks: Sequence[DrainHook] = (),
) -> None:
    """Cordon a Node, note why, and return when all pods but those of DaemonSets have left. Safe to run again.

    Pods that nothing starts again elsewhere, those of jobs and without a controller, are waited for, or with
    `end_jobs` evicted too. Those of a machine that is not responding are not waited for. Raises PodsRemain,
    after which the Node stays cordoned, and ApiError or TimedOut where it could not be cordoned.
    """

    def take_out() -> bool:
        for hook in hooks:
            hook.begin()
        return nodes.take_out(api, name, DRAINED, reason, by, datetime.now(UTC))

    changed(take_out, clock, progress)
    progress(f"{name} is cordoned: {reason}")

    stays: Stays = (lambda pod: "") if end_jobs else _is_lost
    if left := wait_for_pods(api, {name: hooks}, Deadline(clock, seconds), progress, stays=stays):
        raise PodsRemain(f"drain of {name} timed out after {seconds:.0f} s: {left[name]}")


def wait_for_pods(
    api: Api,
    draining: Mapping[str, Sequence[DrainHook]],
    deadline: Deadline,
    progress: ProgressCallback,
    *,
    stays: Stays = lambda pod: "",
    left: Callable[[str, bool], None] = lambda node, silent: None,
) -> dict[str, str]:
    """Evict the pods of Nodes side by side, each once its schedulers have no jobs there, until all have left.

    `left` is called at once with each Node that is done, and whether its kubelet is silent. Returns what
    keeps the others at the deadline. Raises ApiError.
    """
    keeps = dict.fromkeys(draining, "no answer")

    def done() -> bool | Pending:
        silent = nodes.silent(api)
        for name in list(keeps):
            found = find(api, f"{NODES}/{name}")
            if not found or not Node.of(found).ready or name in silent:
                progress(SILENT.format(name))
                keeps[name] = ""
            elif state := held(draining[name]):
                keeps[name] = state.state
            else:
                pods = evict_all(api, name, stays)
                keeps[name] = f"remaining pods: {pods}" if pods else ""
            if not keeps[name]:
                del keeps[name]
                left(name, name in silent)
        texts = (f"{name}: {keep}" for name, keep in keeps.items())
        return not keeps or Pending(f"draining; {'; '.join(texts)}")

    with suppress(TimedOut):
        wait_until(done, deadline, poll_seconds=POLL_SECONDS, progress=progress)
    return keeps


def held(hooks: Iterable[DrainHook]) -> Pending | None:
    """The reason that keeps the pods of a Node from their eviction; None where there is none."""
    return next((state for each in hooks if isinstance(state := each.released(), Pending)), None)


def before_restart(
    api: Api,
    name: str,
    hooks: Hooks,
    seconds: float,
    clock: Clock,
    progress: ProgressCallback,
    *,
    version: str | None = None,
) -> bool:
    """Return when schedulers have no jobs on a Node, whose pods are evicted then (host/k3s-drain.sh).

    `version`: of a kubelet that is not drained. Whether there is one. Raises PodsRemain at the deadline; they
    go on then.
    """
    asked: list[DrainHook] = []

    def done() -> bool | Pending:
        found = find(api, f"{NODES}/{name}")
        if not found or not Node.of(found).ready or Node.of(found).kubelet == version:
            return True
        asked[:] = hooks(name, "restart of K3s")
        for hook in asked:
            hook.begin()
        return held(asked) or True

    try:
        wait_until(done, Deadline(clock, seconds), poll_seconds=POLL_SECONDS, progress=progress)
    except TimedOut as timeout:
        after_restart(api, name, hooks)
        raise PodsRemain(f"drain of {name} {timeout}; its agent was not restarted. Fix: retry") from timeout
    return bool(asked)


def after_restart(api: Api, name: str, hooks: Hooks) -> None:
    """Let schedulers start jobs on a Node again that is not out for another reason. Raises ApiError."""
    if found := find(api, f"{NODES}/{name}"):
        node = Node.of(found)
        tell(hooks, name, reason_of(node.quarantine, node.drained))


def _is_lost(pod: JsonObject) -> str:
    """Why an eviction would end the pod for good."""
    kinds = owners(pod)
    if not kinds:
        return "has no controller"
    return "of a job" if any(kind.endswith("Job") for kind in kinds) else ""


def uncordon(
    api: Api,
    name: str,
    needs: Iterable[AllocatableSpec],
    clock: Clock,
    progress: ProgressCallback,
    hooks: Hooks = no_hooks,
) -> bool:
    """Put a Node back, once it offers what it `needs`; whether new pods can start there now.

    Raises NotDrained, NotAllocatable (the Node stays as it is), ApiError and TimedOut.
    """
    node = Node.of(api.get(f"{NODES}/{name}"))
    if not node.drained:
        by = f"it is cordoned by {node.cordoned_by or 'somebody else'}"
        why = by if node.cordoned_by_others else "nothing was changed"
        raise NotDrained(f"{name} was not drained by `busbar drain`; {why}")
    for each in needs:
        allocatable.wait(api, each.model_copy(update={"also_drained": True}), clock, progress)

    def put_back() -> bool:
        is_back = nodes.put_back(api, name, DRAINED)
        tell(hooks, name, reason_of(node.quarantine))
        return is_back

    return changed(put_back, clock, progress)


def changed(change: Callable[[], bool], clock: Clock, progress: ProgressCallback) -> bool:
    """Change a Node, again where somebody else changed it at the same time. Raises ApiError and TimedOut."""
    return wait_until(
        change,
        Deadline(clock, CHANGE_SECONDS),
        poll_seconds=1,
        progress=progress,
        retry_on=lambda error: error.transient or error.conflict,
    )
