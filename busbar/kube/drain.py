"""Drains Nodes: of a worker that is repaired, restarts its agent, or is not configured any more.

After `busbar drain` the Node stays cordoned, also where pods remain. An update puts it back.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Literal, Protocol

from pydantic import Field

from busbar.exits import Failed
from busbar.finding import STACK, Fix
from busbar.kube import allocatable, nodes
from busbar.kube.allocatable import AllocatableSpec
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.gpus import HOSTNAME_LABEL, active_pods, held_by
from busbar.kube.nodes import CORDONED, DRAINED, NODES, SILENT, Node
from busbar.kube.objects import find
from busbar.kube.pods import is_of_job, owners
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.models import StrictModel
from busbar.text import listed

# Pods of these owners stay with their Node.
_STAY = frozenset({"DaemonSet", "Node"})


Lost = Literal["evict", "await", "leave"]
"""The treatment of pods that nothing starts again elsewhere: of jobs, and those without a controller."""


def evict_all(api: Api, node: str, lost: Lost) -> str:
    """Ask for the eviction of the Node's pods; those that are left, with what keeps each. Raises ApiError."""
    left = []
    for pod in api.list("/api/v1/pods", fieldSelector=f"spec.nodeName={node}"):
        metadata, is_over = pod["metadata"], (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        stays = "" if lost == "evict" else _is_lost(pod)
        if is_over or owners(pod) & _STAY or (stays and lost == "leave"):
            continue
        keeps = "ending" if metadata.get("deletionTimestamp") else stays or _evict(api, pod)
        left.append(f"{metadata['namespace']}/{metadata['name']} ({keeps})")
    return "; ".join(left)


def _is_lost(pod: JsonObject) -> str:
    """The reason why an eviction would end the pod for good; "" where it would not."""
    if not owners(pod):
        return "has no controller"
    return "of a job" if is_of_job(pod) else ""


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
RESTART, REMOVED = "restart of K3s", "removed from the cluster"


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
    _take_out(api, name, DRAINED, reason, by, hooks, clock, progress)
    progress(f"{name} is cordoned: {reason}")
    lost: Lost = "evict" if end_jobs else "await"
    if left := wait_for_pods(api, {name: hooks}, Deadline(clock, seconds), progress, lost):
        raise PodsRemain(f"drain of {name} timed out after {seconds:.0f} s: {left[name]}")


def _take_out(
    api: Api,
    name: str,
    key: str,
    reason: str,
    by: str,
    hooks: Sequence[DrainHook],
    clock: Clock,
    progress: ProgressCallback,
) -> None:
    """Let schedulers start no new jobs on a Node, and cordon it with a note. Raises ApiError and TimedOut."""

    def take_out() -> bool:
        for hook in hooks:
            hook.begin()
        return nodes.take_out(api, name, key, reason, by, datetime.now(UTC))

    changed(take_out, clock, progress)


def wait_for_pods(
    api: Api,
    draining: Mapping[str, Sequence[DrainHook]],
    deadline: Deadline,
    progress: ProgressCallback,
    lost: Lost,
    left: Callable[[str], None] = lambda node: None,
) -> dict[str, str]:
    """Evict the pods of Nodes side by side, each once its schedulers have no jobs there, until all have left.

    `left` is called at once with each Node that is done. Returns what keeps the others. Raises ApiError.
    """
    keeps = dict.fromkeys(draining, "no answer")

    def done() -> bool | Pending:
        silent = nodes.silent(api)
        for name in list(keeps):
            found = find(api, f"{NODES}/{name}")
            if not found or not Node.of(found).ready or name in silent:
                progress(SILENT.format(name))
                keeps[name] = ""
            elif state := _held(draining[name]):
                keeps[name] = state
            else:
                pods = evict_all(api, name, lost)
                keeps[name] = f"remaining pods: {pods}" if pods else ""
            if not keeps[name]:
                del keeps[name]
                left(name)
        texts = (f"{name}: {keep}" for name, keep in keeps.items())
        return not keeps or Pending(f"draining; {'; '.join(texts)}")

    with suppress(TimedOut):
        wait_until(done, deadline, poll_seconds=POLL_SECONDS, progress=progress)
    return keeps


def _held(hooks: Iterable[DrainHook]) -> str:
    """The reason that keeps the pods of a Node from their eviction; "" where there is none."""
    states = (hook.released() for hook in hooks)
    return next((state.state for state in states if isinstance(state, Pending)), "")


def drain_for_restart(
    api: Api, name: str, hooks: Hooks, seconds: float, clock: Clock, progress: ProgressCallback
) -> None:
    """Drain a Node whose agent is going to restart (host/k3s-agent.sh), until `put_back`.

    Pods that nothing starts again elsewhere stay and run on. Raises PodsRemain, ApiError and TimedOut.
    """
    draining = hooks(name, RESTART)
    _take_out(api, name, CORDONED, RESTART, "an update", draining, clock, progress)
    if left := wait_for_pods(api, {name: draining}, Deadline(clock, seconds), progress, "leave"):
        raise PodsRemain(
            f"drain of {name} timed out after {seconds:.0f} s: {left[name]}; its agent was not restarted",
            "let the budget allow an eviction (more replicas, free nodes), or set drain: never for the pool",
        )


def put_back(api: Api, name: str, hooks: Hooks, clock: Clock, seconds: float = CHANGE_SECONDS) -> None:
    """Put back a Node that an update has drained, also one that was interrupted.

    The cordon of another note or of somebody else stays. Raises ApiError, and TimedOut after `seconds`.
    """
    look = partial(find, api, f"{NODES}/{name}")
    found = wait_until(look, Deadline(clock, seconds), poll_seconds=1)
    if found and CORDONED in (node := Node.of(found)).notes:
        changed(partial(nodes.put_back, api, name, CORDONED), clock, seconds=seconds)
        tell(hooks, name, reason_of(node.quarantine, node.drained))


def uncordon(
    api: Api,
    name: str,
    needs: Iterable[AllocatableSpec],
    clock: Clock,
    progress: ProgressCallback,
    hooks: Hooks = no_hooks,
) -> bool:
    """Put a Node back, once it offers what it `needs`; whether new pods can start there now.

    Raises Failed (the Node stays as it is), ApiError and TimedOut.
    """
    node = Node.of(api.get(f"{NODES}/{name}"))
    if not node.drained:
        what, fix = f"{name} was not drained by `busbar drain`", Fix("see its state", ("verify", STACK))
        if node.cordoned_by_others:
            what += f"; it is cordoned by {node.cordoned_by or 'somebody else'}"
            fix = Fix(f"kubectl uncordon {name}")
        raise Failed(what, fix)
    for each in needs:
        allocatable.wait(api, each.model_copy(update={"also_drained": True}), clock, progress)

    def end() -> bool:
        is_back = nodes.put_back(api, name, DRAINED)
        tell(hooks, name, reason_of(node.quarantine))
        return is_back

    return changed(end, clock, progress)


def changed(
    change: Callable[[], bool],
    clock: Clock,
    progress: ProgressCallback | None = None,
    seconds: float = CHANGE_SECONDS,
) -> bool:
    """Change a Node, again where somebody else changed it at the same time. Raises ApiError and TimedOut."""
    return wait_until(
        change,
        Deadline(clock, seconds),
        poll_seconds=1,
        progress=progress,
        retry_on=lambda error: error.transient or error.conflict,
    )


VOLUMES = "/api/v1/persistentvolumes"
READ_SECONDS = 60.0
DRAIN_SECONDS = 300.0
DELETE_SECONDS = 60.0
# Ten Nodes are put back one after another, also after SIGTERM.
PUT_BACK_SECONDS = 5.0
AT_ONCE = 10


class StaleNodesSpec(StrictModel):
    """The JSON that `busbar remove nodes` reads on stdin."""

    workers: list[str] = Field(description="All workers of the configuration, by name.")


def remove_stale_nodes(
    api: Api, spec: StaleNodesSpec, clock: Clock, progress: ProgressCallback, hooks: Hooks = no_hooks
) -> list[str]:
    """The Nodes that were deleted. Safe to run again.

    Ten are drained at the same time, by schedulers first. A drain that takes longer than DRAIN_SECONDS, or
    whose machine died meanwhile, does not keep the Node. Raises ApiError, TimedOut (no Nodes could be read),
    and Failed after all others are gone. On SIGTERM, the Nodes that are not deleted are uncordoned.
    """
    look, deadline = partial(leaving, api, spec.workers), Deadline(clock, READ_SECONDS)
    stale, machines, silent = wait_until(look, deadline, poll_seconds=POLL_SECONDS, progress=progress)
    draining: dict[str, Sequence[DrainHook]] = {}
    failed: dict[str, str] = {}

    def delete(name: str) -> None:
        try:
            nodes.delete(api, name, Deadline(clock, DELETE_SECONDS))
            draining.pop(name, None)
        except (ApiError, TimedOut) as error:
            failed[name] = str(error)

    for at in range(0, len(stale), AT_ONCE):
        try:
            for node in stale[at : at + AT_ONCE]:
                if machines[node.machine] > 1:
                    progress(f"the machine of Node {node.name} has another Node now; nothing to drain")
                    delete(node.name)
                elif not node.ready or node.name in silent:
                    progress(SILENT.format(node.name))
                    delete(node.name)
                else:
                    progress(f"{node.name} is no longer configured: draining and deleting its Node")
                    asked = draining[node.name] = hooks(node.name, REMOVED)
                    _take_out(api, node.name, CORDONED, REMOVED, "an update", asked, clock, progress)
            deadline = Deadline(clock, DRAIN_SECONDS)
            for name, keeps in wait_for_pods(api, {**draining}, deadline, progress, "evict", delete).items():
                waited = f"drain of {name} timed out after {DRAIN_SECONDS:.0f} s"
                progress(f"{waited}: {keeps}; deleting the Node anyway")
                delete(name)
        finally:
            for name in sorted(draining):
                del draining[name]
                try:
                    put_back(api, name, hooks, clock, PUT_BACK_SECONDS)
                except (ApiError, TimedOut) as error:
                    progress(f"uncordoning Node {name} failed: {error}. Fix: kubectl uncordon {name}")
    if failed:
        reasons = "; ".join(f"{name} ({reason})" for name, reason in failed.items())
        fix = f"on a server: k3s kubectl delete node {' '.join(failed)}; then retry"
        raise Failed(f"these Nodes could not be deleted: {reasons}", fix)
    return [node.name for node in stale]


def leaving(api: Api, workers: Collection[str]) -> tuple[list[Node], Counter[str], set[str]]:
    """The Nodes of workers that left the configuration, the number of Nodes per machine, the silent Nodes.

    Raises Failed for running ones with a claim's data on their disks or a job on their devices; ApiError.
    """
    found, silent, claims = nodes.read(api), nodes.silent(api), _local_claims(api)
    machines, stale = Counter(node.machine for node in found), [*stale_nodes(found, workers)]
    runs = {each.name for each in stale if each.ready and machines[each.machine] == 1} - silent
    if held := [f"{name} ({listed(claims[name])})" for name in sorted(runs & claims.keys())]:
        raise Failed(
            f"claims have their data on the disks of hosts that are to be removed: {', '.join(held)}. Fix: "
            "copy what is needed, kubectl delete pvc and the pv that stays, retry; or list the hosts again"
        )
    busy = held_by(filter(_is_lost, active_pods(api)), idle=False) if runs else {}
    pods = [
        (pod, name) for name in sorted(runs & busy.keys()) for units in busy[name].values() for pod in units
    ]
    if pods:
        jobs = dict.fromkeys(f"{pod} on {name}" for pod, name in pods)
        what = f"jobs run on hosts that are to be removed: {listed([*jobs])}"
        raise Failed(what, "wait for their end, or end them; or list the hosts again")
    return stale, machines, silent


def _local_claims(api: Api) -> dict[str, list[str]]:
    """Node -> claims whose data are on its disks, such as those of K3s's local-path. Raises ApiError."""
    found = defaultdict[str, list[str]](list)
    for spec in (each["spec"] for each in api.list(VOLUMES) if each["spec"].get("claimRef")):
        terms = ((spec.get("nodeAffinity") or {}).get("required") or {}).get("nodeSelectorTerms") or []
        rules = [rule for term in terms for rule in term.get("matchExpressions") or []]
        for name in (
            name for rule in rules if rule["key"] == HOSTNAME_LABEL for name in rule.get("values", ())
        ):
            found[name].append(f"{spec['claimRef']['namespace']}/{spec['claimRef']['name']}")
    return found


def stale_nodes(found: Sequence[Node], workers: Collection[str]) -> Iterator[Node]:
    """The Nodes of workers that left the configuration. K3s writes names of Nodes in lower case."""
    configured = {name.lower() for name in workers}
    for node in found:
        if node.machine and not node.is_server and node.name.lower() not in configured:
            yield node
