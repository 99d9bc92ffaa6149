"""Takes a worker out for a repair and puts it back: `busbar drain` and `busbar uncordon`.

Unlike the drain of an update (host/k3s-drain.sh) it ends with a cordoned Node, also where pods remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from busbar.exits import Failed
from busbar.kube import allocatable, nodes
from busbar.kube.allocatable import AllocatableSpec
from busbar.kube.client import Api, JsonObject
from busbar.kube.evictions import evict_all, owners
from busbar.kube.nodes import NODES, Node
from busbar.kube.stale_nodes import SILENT
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until

POLL_SECONDS = 3.0
CHANGE_SECONDS = 60.0


class DrainHook(Protocol):
    """A scheduler in the cluster that has jobs on a Node.

    `annotations` are set with the cordon, and removed with it. Pods are evicted when `released` is true; it
    raises ApiError.
    """

    @property
    def annotations(self) -> Mapping[str, str]: ...
    def released(self) -> bool | Pending: ...


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
    more = {key: text for hook in hooks for key, text in hook.annotations.items()}
    _changed(lambda: nodes.take_out(api, name, reason, by, datetime.now(UTC), more), clock, progress)
    progress(f"{name} is cordoned: {reason}")

    def done() -> bool | Pending:
        if not Node.of(api.get(f"{NODES}/{name}")).ready or name in nodes.silent(api):
            progress(SILENT.format(name))
            return True
        for hook in hooks:
            if isinstance(state := hook.released(), Pending):
                return state
        left = evict_all(api, name, lambda pod: "" if end_jobs else _is_lost(pod))
        return Pending(f"remaining pods: {left}") if left else True

    def say(text: str) -> None:
        progress(f"draining; {text}")

    try:
        wait_until(done, Deadline(clock, seconds), poll_seconds=POLL_SECONDS, progress=say)
    except TimedOut as timeout:
        raise PodsRemain(f"drain of {name} {timeout}") from timeout


def _is_lost(pod: JsonObject) -> str:
    """Why an eviction would end the pod for good."""
    kinds = owners(pod)
    if not kinds:
        return "has no controller"
    return "of a job" if any(kind.endswith("Job") for kind in kinds) else ""


def uncordon(
    api: Api, name: str, needs: Iterable[AllocatableSpec], clock: Clock, progress: ProgressCallback
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
    return _changed(lambda: nodes.put_back(api, name), clock, progress)


def _changed(change: Callable[[], bool], clock: Clock, progress: ProgressCallback) -> bool:
    return wait_until(
        change,
        Deadline(clock, CHANGE_SECONDS),
        poll_seconds=1,
        progress=progress,
        retry_on=lambda error: error.transient or error.conflict,
    )
