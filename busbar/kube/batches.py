"""Which agents of a pool are updated together, from what the cluster says of their Nodes.

Asked in every update, so the answer is never an old one: that of preflight stays in the state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from busbar.kube import nodes
from busbar.kube.client import Api, RestApi
from busbar.kube.pods import is_of_job
from busbar.kube.wait import Deadline, Pending, SystemClock, wait_until

Answer = TypeVar("Answer")

# A load balancer sends nothing to a server for some seconds after its restart.
DEADLINE_SECONDS = 20
POLL_SECONDS = 1
# Leaves out most pods of a cluster: those of DaemonSets and StatefulSets, and those of Deployments.
NOT_OF_SERVICES = "!controller-revision-hash,!pod-template-hash"


@dataclass(frozen=True)
class Nodes:
    """Names of all Nodes; of those that are Ready, that busbar has cordoned, and that run pods of a job.

    `drained`: why, by the name of those that `busbar drain` has taken out.
    """

    names: frozenset[str]
    ready: frozenset[str]
    cordoned: frozenset[str] = frozenset()
    with_jobs: frozenset[str] = frozenset()
    drained: Mapping[str, str] = field(default_factory=dict)


def ask(kubeconfig: str, *, jobs: bool) -> Nodes:
    """The Nodes of the cluster; those with jobs only if `jobs`.

    Raises ApiError or TimedOut without an answer after 20 s, and ValueError for an unusable kubeconfig.
    """
    return answer(kubeconfig, lambda api: read(api, jobs=jobs))


def answer(kubeconfig: str, look: Callable[[RestApi], Answer | Pending]) -> Answer:
    """What `look` finds in a cluster. Raises as `ask`."""
    api, deadline = RestApi(kubeconfig), Deadline(SystemClock(), DEADLINE_SECONDS)
    return wait_until(lambda: look(api), deadline, poll_seconds=POLL_SECONDS)


def read(api: Api, *, jobs: bool) -> Nodes:
    """As `ask`, with one look. A pod of a job is one that something with a kind like Job, MPIJob owns."""
    found = nodes.read(api)
    running = {"fieldSelector": "status.phase=Running", "labelSelector": NOT_OF_SERVICES}
    pods = api.list("/api/v1/pods", **running) if jobs else []
    return Nodes(
        names=frozenset(node.name for node in found),
        ready=frozenset(node.name for node in found if node.ready),
        cordoned=frozenset(node.name for node in found if nodes.CORDONED in node.cordons),
        with_jobs=frozenset(pod["spec"]["nodeName"] for pod in pods if is_of_job(pod)),
        drained={node.name: node.drained for node in found if node.drained},
    )


def batches(
    workers: Sequence[str], limit: int, known: Nodes | None, unreachable: Collection[str] = ()
) -> list[list[str]]:
    """The workers whose agents are updated `limit` at a time, one batch after the other.

    Those that are in no batch wait for nobody: they have no Node yet, or it is not Ready. Agents that are not
    Ready count all the same: where `limit` of them are down already, they are the first batch. Workers that
    an interrupted update has cordoned come first, so that they take the pods of the others; those with jobs
    come late, and those that preflight did not reach (`unreachable`) last. If `known` is None, one has all.
    """
    if known is None:
        known = Nodes(names=frozenset(workers), ready=frozenset(workers))
    down = [name for name in workers if name in known.names - known.ready and name not in unreachable]
    running = [name for name in workers if name in known.ready]
    first = [name for name in running if name not in unreachable]
    first.sort(key=lambda name: (name not in known.cordoned, name in known.with_jobs))
    last = [name for name in running if name in unreachable]
    if len(down) >= limit:
        return [down, *_chunks(first, limit), *_chunks(last, limit)]
    return [*_chunks(first, limit - len(down)), *_chunks(last, limit)]


def _chunks(names: Sequence[str], size: int) -> list[list[str]]:
    return [list(names[start : start + size]) for start in range(0, len(names), size)]
