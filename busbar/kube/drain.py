"""Takes a worker out for a repair and puts it back, and drains and deletes the Nodes of removed workers.

Unlike the drain of an update (host/k3s-drain.sh) `busbar drain` ends with a cordoned Node, also where pods
remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Protocol

from pydantic import Field

from busbar.exits import Failed
from busbar.kube import allocatable, nodes
from busbar.kube.allocatable import AllocatableSpec
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.nodes import CORDONED, DRAINED, NODES, SILENT, Node
from busbar.kube.objects import find
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.models import StrictModel

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


REMOVED = "removed from the cluster"
READ_SECONDS = 60.0
DRAIN_SECONDS = 300.0
DELETE_SECONDS = 60.0
AT_ONCE = 10


class StaleNodesSpec(StrictModel):
    """The JSON that `busbar remove nodes` reads on stdin."""

    workers: list[str] = Field(description="All workers of the configuration, by name.")
    folder: str = Field(description="Where it is noted which of the machines were silent.")


class NodesRemain(Failed):
    """Nodes that could not be deleted; the text names them and what the API said."""


def remove_stale_nodes(
    api: Api, spec: StaleNodesSpec, clock: Clock, progress: ProgressCallback, hooks: Hooks = no_hooks
) -> dict[str, bool]:
    """The Nodes that were deleted, and whether their kubelets were silent. Safe to run again.

    Ten are drained at the same time, by schedulers first. A drain that takes longer than DRAIN_SECONDS, or
    whose machine died meanwhile, does not keep the Node. Raises ApiError, TimedOut (no Nodes could be read),
    and NodesRemain after all others are gone. On SIGTERM, the Nodes that are not deleted are uncordoned.
    """
    found, silent = wait_until(
        lambda: (nodes.read(api), nodes.silent(api)),
        Deadline(clock, READ_SECONDS),
        poll_seconds=POLL_SECONDS,
        progress=progress,
    )
    stale = list(stale_nodes(found, spec.workers))
    removal = _Removal(api, clock, progress, hooks, silent)
    for at in range(0, len(stale), AT_ONCE):
        removal.remove(stale[at : at + AT_ONCE], [node.machine for node in found])
    if removal.failed:
        reasons = "; ".join(f"{name} ({reason})" for name, reason in removal.failed.items())
        raise NodesRemain(
            f"these Nodes could not be deleted: {reasons}. Fix: make the API answer, or run on a server: "
            f"k3s kubectl delete node {' '.join(removal.failed)}; then retry"
        )
    return {node.name: node.name in silent for node in stale}


def stale_nodes(found: Sequence[Node], workers: Sequence[str]) -> Iterator[Node]:
    """The Nodes of workers that left the configuration. K3s writes names of Nodes in lower case."""
    configured = {name.lower() for name in workers}
    for node in found:
        if node.machine and not node.is_server and node.name.lower() not in configured:
            yield node


@dataclass
class _Removal:
    """Drains Nodes side by side, and deletes each when nothing runs there any more.

    `silent`: Nodes whose kubelets are. `failed`: why Nodes could not be deleted.
    """

    api: Api
    clock: Clock
    progress: ProgressCallback
    hooks: Hooks
    silent: set[str]
    out: dict[str, Sequence[DrainHook]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def remove(self, batch: Sequence[Node], machines: Sequence[str]) -> None:
        """Remove Nodes; `machines`: those of all Nodes. Nothing runs on a Node whose machine is gone."""
        try:
            for node in batch:
                if machines.count(node.machine) > 1:
                    self.progress(f"the machine of Node {node.name} has another Node now; nothing to drain")
                    self._delete(node.name)
                elif not node.ready or node.name in self.silent:
                    self.progress(SILENT.format(node.name))
                    self._delete(node.name)
                else:
                    self.progress(f"{node.name} is no longer configured: draining and deleting its Node")
                    changed(partial(self._take_out, node.name), self.clock, self.progress)
            self._drain()
        finally:
            for name in sorted(self.out):
                self._put_back(name)
            self.out.clear()

    def _take_out(self, name: str) -> bool:
        self.out[name] = self.hooks(name, REMOVED)
        for hook in self.out[name]:
            hook.begin()
        return nodes.take_out(self.api, name, CORDONED, REMOVED, "an update", datetime.now(UTC))

    def _put_back(self, name: str) -> None:
        try:
            put_back = partial(nodes.put_back, self.api, name, CORDONED)
            wait_until(
                put_back,
                Deadline(self.clock, CHANGE_SECONDS),
                poll_seconds=1,
                retry_on=attrgetter("conflict"),
            )
            for hook in self.out[name]:
                hook.end()
        except (ApiError, TimedOut) as error:
            self.progress(f"uncordoning Node {name} failed: {error}. Fix: kubectl uncordon {name}")

    def _drain(self) -> None:
        deadline = Deadline(self.clock, DRAIN_SECONDS)
        left = wait_for_pods(self.api, {**self.out}, deadline, self.progress, left=self._delete)
        for name, keeps in left.items():
            waited = f"drain of {name} timed out after {DRAIN_SECONDS:.0f} s"
            self.progress(f"{waited}: {keeps}; deleting the Node anyway")
            self._delete(name)

    def _delete(self, name: str, silent: bool = False) -> None:
        self.silent |= {name} if silent else set()
        try:
            nodes.delete(self.api, name, Deadline(self.clock, DELETE_SECONDS))
            self.out.pop(name, None)
        except (ApiError, TimedOut) as error:
            self.failed[name] = str(error)
