"""The order of an update: gres.conf, then the pods that leave, then the release, then all changed pods.

The NodeSets have the strategy OnDelete, so slurm-operator replaces no pod of slurmd. Every look reads the
state anew, so an update that was killed goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from busbar.exits import Failed
from busbar.kube import objects
from busbar.kube.client import JsonObject
from busbar.kube.nodes import NODES
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.text import listed
from stacks.slurm_k8s.package.rest import BUSY, ProxyApi, SlurmApi, SlurmNode, pod_host, transient
from stacks.slurm_k8s.package.values import API_VERSION, RELEASE

REASON = "busbar: update"
"""The reason of busbar's own drains, by which a later run knows them."""
KEPT = "busbar/slurm-drain"
"""Annotation of a Node: the reason of a person's drain, while the pod is replaced that takes it along."""
_OPERATOR = "slurm-operator:"
_POD_CORDON = "nodeset.slinky.slurm.net/pod-cordon"
_COST = "nodeset.slinky.slurm.net/pod-deletion-cost"
# 1.0 labels pods with the first; the second is that of Kubernetes' own controllers.
_HASHES = ("controller.kubernetes.io/hash", "controller-revision-hash")
_GRES = "gres.conf"
_SLURMCTLD = "app.kubernetes.io/component=controller"
# Of the ConfigMap, until slurmctld has read gres.conf.
_UNREAD = "busbar/gres-conf-unread"
_AWAY = {"DOWN", "NOT_RESPONDING", "UNKNOWN", "FUTURE", "INVALID_REG"}
POLL_SECONDS = 1.0
RECONFIGURE_SECONDS = 180


@dataclass(frozen=True)
class Worker:
    """A pod of slurmd. `outdated`: its template or its Node is not that of its NodeSet any more.

    `kept`: the drain to be set again. `cordoned`: whether a new pod could not start on its Node.
    """

    pod: JsonObject
    nodeset: str
    node: SlurmNode | None
    outdated: bool
    cordoned: bool
    kept: str

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def on(self) -> str:
        return str(self.pod["spec"].get("nodeName") or "")

    @property
    def ending(self) -> bool:
        return "deletionTimestamp" in self.pod["metadata"]

    @property
    def busy(self) -> bool:
        """Whether jobs run there. Those of a node that is down have ended."""
        return bool(self.node and BUSY & {*self.node.states} and "DOWN" not in self.node.states)

    @property
    def drain(self) -> str:
        """The reason for which Slurm starts no jobs there; empty if it does."""
        return (self.node.reason or "no reason given") if self.node and "DRAIN" in self.node.states else ""

    @property
    def by_person(self) -> str:
        """The reason of a drain that busbar, a cordon or wrong GRES have not made."""
        others = self.drain.startswith((REASON, _OPERATOR)) or (
            self.node and "INVALID_REG" in self.node.states
        )
        return "" if others else self.drain


class Roll:
    """The pods of slurmd of one Slurm cluster. `workers`: pool -> the Nodes that it has after the update."""

    def __init__(
        self,
        api: ProxyApi,
        namespace: str,
        workers: Mapping[str, Collection[str]],
        clock: Clock,
        progress: ProgressCallback,
        *,
        max_unavailable: int,
        job_seconds: int,
        timeout_seconds: int,
    ) -> None:
        self._api, self._slurm, self._namespace = api, SlurmApi(api, namespace), namespace
        self._workers = {f"{RELEASE}-worker-{pool}": names for pool, names in workers.items()}
        self._clock, self._progress = clock, progress
        self._max, self._job_seconds, self._timeout = max_unavailable, job_seconds, timeout_seconds

    def gres(self, text: str) -> None:
        """Write gres.conf and wait until slurmctld has it. Raises Failed.

        A node whose GRES are not in it is invalid, and stays drained. The release writes the same text.
        """
        path = f"{self._path}/configmaps/{RELEASE}-config-extra"
        found = objects.find(self._api, path)
        if found is None:
            return
        if str((found.get("data") or {}).get(_GRES, "")).strip() != text.strip():
            unread = {"metadata": {"annotations": {_UNREAD: "true"}}, "data": {_GRES: text}}
            found = self._api.merge(path, unread)
            # The kubelet writes the file when it looks at the pod: at a change of it, or within a minute.
            for pod in self._api.list(f"{self._path}/pods", labelSelector=_SLURMCTLD):
                stamp = {_UNREAD: found["metadata"]["resourceVersion"]}
                self._annotate(f"{self._path}/pods/{pod['metadata']['name']}", stamp)
        if _UNREAD not in (found["metadata"].get("annotations") or {}):
            return
        fields = found["metadata"].get("managedFields") or []
        changed = max(datetime.fromisoformat(each["time"]).timestamp() for each in fields)

        def look() -> bool | Pending:
            return self._slurm.read_at() >= changed or Pending("slurmctld has not read the new gres.conf yet")

        try:
            self._wait(look, Deadline(self._clock, RECONFIGURE_SECONDS))
        except TimedOut as timeout:
            raise Failed(
                f"{timeout}; no NodeSet was changed. Fix: kubectl -n {self._namespace} logs "
                f"{RELEASE}-controller-0 -c reconfigure"
            ) from timeout
        self._annotate(path, {_UNREAD: None})

    def release_leaving(self) -> list[str]:
        """Drain the nodes that leave with fewer workers or with a pool, and wait for their jobs.

        The operator then deletes these pods, which have the lowest cost, and no others. Raises Failed.
        """
        leaving = [worker.name for worker in self._leaving(self._read())]
        self._refuse_jobs(leaving)

        def look() -> bool | Pending:
            states = [self._drained(each) for each in self._read() if each.name in leaving]
            return next((each for each in states if each), True)

        self._wait_for_jobs(look, leaving)
        for worker in self._leaving(self._read()):
            self._annotate(f"{self._path}/pods/{worker.name}", {_COST: "-1"})
        return leaving

    def roll(self) -> list[str]:
        """Replace every outdated pod, at most `max_unavailable` at once. Raises Failed."""
        deadline = Deadline(self._clock, self._timeout)
        self._wait(self._settled_nodesets, deadline)
        self._put_back()
        outdated = sorted(
            (each for each in self._read() if each.outdated and not each.ending),
            key=lambda each: (bool(each.by_person), each.busy, each.drain != REASON, each.name),
        )
        names = [each.name for each in outdated]
        self._refuse_jobs(names)
        for first in range(0, len(names), self._max):
            self._progress(f"slurmd: {first} of {len(names)} pods are replaced")
            self._replace(names[first : first + self._max])
        return names

    def _replace(self, names: list[str]) -> None:
        back = Deadline(self._clock, self._timeout)

        def look() -> bool | Pending:
            nonlocal back
            found = {each.name: each for each in self._read()}
            states = [self._advance(found.get(name), name) for name in names]
            waiting = [each for each in states if each]
            if any(each and each.busy for name in names if (each := found.get(name))):
                back = Deadline(self._clock, self._timeout)
            elif waiting and back.passed:
                raise TimedOut(self._timeout, waiting[0].state, None)
            return waiting[0] if waiting else True

        self._wait_for_jobs(look, names)

    def _advance(self, worker: Worker | None, name: str) -> Pending | None:
        """The next step of a pod on its way; None when it is there."""
        if worker is None or worker.ending:
            return Pending(f"pod {name} is being replaced")
        if not worker.outdated:
            return self._restore(worker)
        if worker.on and (state := self._drained(worker)):
            return state
        if worker.on and worker.by_person != worker.kept:
            self._annotate(f"{NODES}/{worker.on}", {KEPT: worker.by_person or None})
        objects.delete(self._api, f"{self._path}/pods/{name}", worker.pod["metadata"]["uid"])
        return Pending(f"pod {name} is being replaced")

    def _restore(self, worker: Worker) -> Pending | None:
        """Put the node of a new pod into service, or set the drain again that its predecessor had."""
        if worker.cordoned:
            return None
        node = worker.node
        if node is None or not worker.on or _AWAY & {*node.states}:
            state = f"is {'+'.join(node.states)}" if node else "is not in Slurm yet"
            return Pending(f"node {pod_host(worker.pod)} {state}")
        if worker.kept:
            if not worker.by_person:
                self._slurm.drain(node.name, worker.kept)
            self._annotate(f"{NODES}/{worker.on}", {KEPT: None})
        elif worker.drain == REASON:
            self._slurm.undrain(node.name)
            return Pending(f"node {node.name} is drained")
        return None

    def _put_back(self) -> None:
        """End what an interrupted update, or an uncordon, has left on pods that stay."""
        found = [each for each in self._read() if not each.outdated and not each.ending]
        for worker in found:
            annotations = worker.pod["metadata"].get("annotations") or {}
            # The operator leaves it with OnDelete, and the node drained, after its Node was uncordoned.
            stale = {_COST} | (set() if worker.cordoned else {_POD_CORDON})
            if left := stale & {*annotations}:
                self._annotate(f"{self._path}/pods/{worker.name}", dict.fromkeys(left))
        held = [each.name for each in found if each.kept or each.drain == REASON]
        if held:
            self._replace(held)

    def _drained(self, worker: Worker) -> Pending | None:
        """Drain a node; None when it is and no job runs there."""
        if worker.node is None or "DOWN" in worker.node.states:
            return None
        if not worker.drain:
            self._slurm.drain(worker.node.name, REASON)
            return Pending(f"node {worker.node.name} is drained")
        if worker.busy:
            return Pending(f"remaining jobs on {worker.node.name}: squeue -w {worker.node.name}")
        return None

    def _refuse_jobs(self, names: list[str]) -> None:
        busy = [each.node.name for each in self._read() if each.name in names and each.busy and each.node]
        if busy and not self._job_seconds:
            raise Failed(
                f"jobs of Slurm run on {listed(busy)}, whose pods must be replaced; none was. Fix: wait for "
                "their end, or raise update.job_seconds, and run `busbar up` again"
            )

    def _wait_for_jobs(self, look: Any, names: list[str]) -> None:
        try:
            self._wait(look, Deadline(self._clock, self._job_seconds + self._timeout))
        except TimedOut as timeout:
            for worker in self._read():
                if worker.name in names and worker.drain == REASON and worker.node:
                    self._slurm.undrain(worker.node.name)
            raise Failed(
                f"{timeout}; no other node was taken out of service. Fix: wait for the end of its jobs, or "
                f"raise update.job_seconds; if it is a new pod, kubectl -n {self._namespace} describe pod. "
                "Then run `busbar up` again"
            ) from timeout

    def _settled_nodesets(self) -> bool | Pending:
        """Whether the operator has read the NodeSets, and made or removed pods for them."""
        found = [each for each in self._read() if not each.ending]
        for nodeset in self._nodesets():
            name, status = nodeset["metadata"]["name"], nodeset.get("status") or {}
            if status.get("observedGeneration") != nodeset["metadata"]["generation"]:
                return Pending(f"slurm-operator has not read NodeSet {name} yet")
            pods, wanted = [each for each in found if each.nodeset == name], nodeset["spec"].get("replicas")
            if len(pods) != wanted:
                return Pending(f"NodeSet {name} has {len(pods)} pods, expected {wanted}")
        return True

    def _leaving(self, found: list[Worker]) -> Iterator[Worker]:
        for nodeset in {each.nodeset for each in found}:
            wanted = self._workers.get(nodeset, ())
            pods = [each for each in found if each.nodeset == nodeset and not each.ending]
            unwanted = sorted(pods, key=lambda each: (each.on in wanted, each.busy, each.name))
            yield from unwanted[: max(0, len(pods) - len(wanted))]

    def _read(self) -> list[Worker]:
        hashes = {
            each["metadata"]["name"]: (each.get("status") or {}).get("nodeSetHash", "")
            for each in self._nodesets()
        }
        revisions = {
            _hash(each): _template(each)
            for each in self._api.list(f"/apis/apps/v1/namespaces/{self._namespace}/controllerrevisions")
        }
        on = {each["metadata"]["name"]: each for each in self._api.list(NODES)}
        cordoned = {name for name, each in on.items() if (each.get("spec") or {}).get("unschedulable")}
        pods, nodes = self._slurm.worker_pods(), self._slurm.nodes()
        taken = {pod["spec"].get("nodeName") for pod in pods}
        found = []
        for pod in pods:
            nodeset = pod["metadata"]["ownerReferences"][0]["name"]
            if nodeset not in hashes:
                continue  # its pool was removed, and so is the pod
            where, wanted = pod["spec"].get("nodeName") or "", {*self._workers.get(nodeset, ())}
            mine, newest = _hash(pod), hashes[nodeset]
            same = mine == newest or (mine in revisions and revisions[mine] == revisions.get(newest))
            annotations = on[where]["metadata"].get("annotations") if where in on else None
            found.append(
                Worker(
                    pod,
                    nodeset,
                    nodes.get(pod_host(pod)),
                    outdated=not same or bool(where and where not in wanted),
                    cordoned=where in cordoned if where else wanted - taken <= cordoned,
                    kept=(annotations or {}).get(KEPT) or "",
                )
            )
        return found

    def _nodesets(self) -> list[JsonObject]:
        return self._api.list(f"/apis/{API_VERSION}/namespaces/{self._namespace}/nodesets")

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._namespace}"

    def _annotate(self, path: str, annotations: Mapping[str, str | None]) -> None:
        self._api.merge(path, {"metadata": {"annotations": annotations}})

    def _wait(self, look: Any, deadline: Deadline) -> Any:
        return wait_until(
            look, deadline, poll_seconds=POLL_SECONDS, progress=self._progress, retry_on=transient
        )


def _hash(each: JsonObject) -> str:
    labels = each["metadata"].get("labels") or {}
    return next((labels[name] for name in _HASHES if name in labels), "")


def _template(revision: JsonObject) -> str:
    """A revision of a NodeSet, without the list of Nodes: another list alone replaces no pod."""
    found = json.loads(json.dumps(revision.get("data") or {}))
    affinity = ((found.get("spec") or {}).get("template") or {}).get("spec") or {}
    (affinity.get("affinity") or {}).pop("nodeAffinity", None)
    return json.dumps(found, sort_keys=True)
