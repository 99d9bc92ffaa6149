"""The order of an update: gres.conf, then the pods that leave, then the release, then all changed pods.

The NodeSets have the strategy OnDelete, so slurm-operator replaces no pod of slurmd. Every look reads the
state anew, so an update that was killed goes on where it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from busbar.exits import Failed
from busbar.kube import objects
from busbar.kube.client import ApiError, JsonObject
from busbar.kube.nodes import NODES
from busbar.kube.pods import issues_of, readiness
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.manifests.names import digest
from busbar.models import StrictModel
from busbar.text import listed
from stacks.slurm_k8s.package.config import Slurm
from stacks.slurm_k8s.package.pools import Pool, gres_conf
from stacks.slurm_k8s.package.rest import (
    NO_NODE,
    NOT_ENDED,
    POD_CORDON,
    UPDATE,
    WORKER,
    ProxyApi,
    SlurmApi,
    SlurmNode,
    pod_host,
    transient,
)
from stacks.slurm_k8s.package.values import API_VERSION, DATABASE_KEY, OPERATOR, RELEASE

KEPT = "busbar/slurm-held"
"""Annotation of a Node: the SlurmNode.held of its node while the pod is replaced."""
_PASSWORD = "busbar/database-password"
"""Annotation of the Accounting, and so of slurmdbd's pod: the version of the Secret with its password."""
_COST = "nodeset.slinky.slurm.net/pod-deletion-cost"
_HASH = "controller.kubernetes.io/hash"
_AWAY = {"DOWN", "NOT_RESPONDING", "UNKNOWN", "FUTURE", "INVALID_REG"}
_GRES = "gres.conf"
_SLURMCTLD = "app.kubernetes.io/component=controller"
# Annotation of the ConfigMap, until slurmctld has read gres.conf.
_UNREAD = "busbar/gres-conf-unread"
# Annotation of the same: the digest of the slurm.conf that slurmctld had read before the change.
_READ = "busbar/slurm-conf-read"
RECONFIGURE_SECONDS = 180
# Annotation of the same: partition -> its line in slurm.conf, and its limits; and when slurmctld read those.
_LIMITS = "busbar/slurm-limits"
LIMIT_SECONDS = 30
"""The time that slurmctld may take to read changed files, or to be stopped, after a change of the release."""
_OPERATOR_PODS = f"app.kubernetes.io/name={OPERATOR.release}"
OPERATOR_SECONDS = 60
"""How long the operator may take to make the first pod of a NodeSet, once slurmrestd is ready."""
REMOVAL_SECONDS = 120


class RollSpec(StrictModel):
    """The request of the steps of an update. `workers`: pool -> its Nodes then; `partitions`: those then."""

    namespace: str
    workers: dict[str, tuple[str, ...]]
    partitions: tuple[str, ...]
    gres_conf: str
    max_unavailable: int
    job_seconds: int
    timeout_seconds: int

    @classmethod
    def of(cls, slurm: Slurm, pools: Mapping[str, Pool]) -> RollSpec:
        """The request for a configuration."""
        added = (slurm.values.get("partitions") or {}).items()
        return cls(
            namespace=slurm.namespace,
            workers={name: pool.launch.workers for name, pool in pools.items()},
            partitions=(*pools, *(name for name, each in added if (each or {}).get("enabled"))),
            gres_conf=gres_conf(pools),
            max_unavailable=slurm.update.max_unavailable,
            job_seconds=slurm.update.job_seconds,
            timeout_seconds=slurm.timeout_seconds,
        )


def roll(api: ProxyApi, spec: RollSpec, clock: Clock, progress: ProgressCallback) -> list[str]:
    """The step `roll`, after a change of the release. Returns the pods that were replaced."""
    return Roll(api, spec, clock, progress).roll()


@dataclass(frozen=True)
class Worker:
    """A pod of slurmd, and its node of Slurm (NO_NODE). `on`: its Node, "" before it is scheduled.

    `issue`: why the pod is not ready. `outdated`: its template or its Node is not that of its NodeSet any
    more. `kept`: what is to be set again. `cordoned`: whether a new pod could not start there.
    """

    name: str
    uid: str
    on: str
    ending: bool
    ready: bool
    issue: str
    annotations: Mapping[str, str]
    nodeset: str
    host: str
    node: SlurmNode
    outdated: bool
    cordoned: bool
    kept: str


class Roll:
    """The pods of slurmd of one Slurm cluster. Every method raises Failed, TimedOut and ApiError."""

    def __init__(self, api: ProxyApi, spec: RollSpec, clock: Clock, progress: ProgressCallback) -> None:
        self.api, self.spec, self.clock, self.progress = api, spec, clock, progress
        self.slurm = SlurmApi(api, spec.namespace)
        self._path = f"/api/v1/namespaces/{spec.namespace}"
        # The ConfigMaps with slurm.conf, which the operator writes, and with the files that the chart writes.
        self._conf_path = f"{self._path}/configmaps/{RELEASE}-config"
        self._files_path = f"{self._conf_path}-extra"
        self._nodesets_path = f"/apis/{API_VERSION}/namespaces/{spec.namespace}/nodesets"
        self._workers = {f"{WORKER}{pool}": {*names} for pool, names in spec.workers.items()}

    def prepare(self) -> list[str]:
        """Do what comes before a change of the release. Returns the pods that leave with it."""
        # No job that waits starts on a drained node, and slurmctld reads its files for gres.conf too.
        self._refuse_lost({"PENDING"})
        if objects.find(self.api, self._files_path):
            self._note_limits()
            self._note_conf()
            self._write_gres()
        return self._release_leaving()

    def _note_limits(self) -> None:
        """Note the limits of partitions: slurmctld that reads its files forgets what somebody has set."""
        lines, read_at = self._lines(), self.slurm.read_at()
        limits = {
            name: each
            for name, each in self.slurm.limits().items()
            if name in lines and (any(each.values()) or not all(_same(key, lines[name], "") for key in each))
        }
        # An earlier update may have let slurmctld forget them.
        if limits and json.loads(self._marks().get(_LIMITS, "{}")).get("read_at", read_at) == read_at:
            noted = {"read_at": read_at, "lines": lines, "limits": limits}
            self._annotate(self._files_path, {_LIMITS: json.dumps(noted)})

    def _put_back_limits(self) -> None:
        """Set these until slurmctld has read its files, or has started again, and forget them."""
        if limits := self._noted_limits():
            self._touch_slurmctld(str(self.clock.now()))
            reading = Deadline(self.clock, LIMIT_SECONDS)

            def look() -> bool | Pending:
                is_done = not self._set_limits(limits) or reading.passed
                return is_done or Pending("slurmctld may not have read its files yet")

            self._wait(look, self.spec.timeout_seconds)
        if _LIMITS in self._marks():
            self._annotate(self._files_path, {_LIMITS: None})

    def _noted_limits(self) -> dict[str, dict[str, str]]:
        """Partition -> the limits that were noted, without those that the stack file has changed since."""
        noted, lines = json.loads(self._marks().get(_LIMITS, "{}")), self._lines()
        return {
            name: {key: text for key, text in each.items() if _same(key, noted["lines"][name], lines[name])}
            for name, each in noted.get("limits", {}).items()
            if name in lines
        }

    def _lines(self) -> dict[str, str]:
        """Partition -> its line in slurm.conf."""
        found = {each["metadata"]["name"]: each["spec"].get("partition") or {} for each in self._nodesets()}
        return {name.removeprefix(WORKER): each.get("config") or "" for name, each in found.items()}

    def _set_limits(self, limits: Mapping[str, Mapping[str, str]]) -> bool:
        """Set limits of partitions that have others. Returns whether Slurm can be told."""
        found, fixes = self.slurm.limits() if limits else {}, []
        for name in {*limits} & {*found}:
            other = {key: text for key, text in limits[name].items() if found[name].get(key, text) != text}
            try:
                if other:
                    self.slurm.limit(name, other)
            except ApiError as error:
                if not error.not_found:
                    raise
                words = (f"{key}={text or 'UNLIMITED'}" for key, text in other.items())
                fixes.append(f"scontrol update partitionname={name} {' '.join(words)}; ")
        if fixes:
            what = "warning: limits of partitions were set by hand and are lost"
            self.progress(f"{what}. Fix: {''.join(fixes)}with Slurm 26.05 they stay")
        return not fixes

    def _touch_slurmctld(self, stamp: str) -> None:
        """Make the kubelet write changed files now: it looks at a pod when that changes, or every minute."""
        for pod in self.api.list(f"{self._path}/pods", labelSelector=_SLURMCTLD):
            self._annotate(f"{self._path}/pods/{pod['metadata']['name']}", {_UNREAD: stamp})

    def _write_gres(self) -> None:
        """Write gres.conf and wait until slurmctld has it; the release writes the same text.

        A node whose GRES are not in it is invalid, and stays drained.
        """
        found = self.api.get(self._files_path)
        if str((found.get("data") or {}).get(_GRES, "")).strip() != self.spec.gres_conf.strip():
            body = {"metadata": {"annotations": {_UNREAD: "true"}}, "data": {_GRES: self.spec.gres_conf}}
            found = self.api.merge(self._files_path, body)
            self._touch_slurmctld(found["metadata"]["resourceVersion"])
        if _UNREAD not in (found["metadata"].get("annotations") or {}):
            return
        self._await_reading(found, _GRES, "no NodeSet was changed")
        self._annotate(self._files_path, {_UNREAD: None})
        self._set_limits(self._noted_limits())

    def _note_conf(self) -> None:
        """Note which slurm.conf slurmctld has read, unless a later one was not read in an earlier update."""
        conf = objects.find(self.api, self._conf_path)
        if conf and _READ not in self._marks():
            self._annotate(self._files_path, {_READ: digest(conf["data"])})

    def _await_conf(self) -> None:
        """Wait until slurmctld has read a changed slurm.conf: where it refuses that, it keeps the former."""
        conf, noted = objects.find(self.api, self._conf_path), self._marks().get(_READ)
        if not (conf and noted):
            return
        if digest(conf["data"]) != noted:
            self._touch_slurmctld(conf["metadata"]["resourceVersion"])
            self._await_reading(conf, "slurm.conf", "slurmctld may refuse it: correct slurm_conf or values")
        self._annotate(self._files_path, {_READ: None})

    def _await_reading(self, config_map: JsonObject, file: str, then: str) -> None:
        times = [datetime.fromisoformat(each["time"]) for each in config_map["metadata"]["managedFields"]]
        changed = max(times).timestamp()

        def look() -> bool | Pending:
            return self.slurm.read_at() >= changed or Pending(f"slurmctld has not read the new {file} yet")

        try:
            self._wait(look, RECONFIGURE_SECONDS)
        except TimedOut as timeout:
            fix = f"kubectl -n {self.spec.namespace} logs {RELEASE}-controller-0 -c reconfigure"
            raise Failed(f"{timeout}; {then}", fix) from timeout

    def _release_leaving(self) -> list[str]:
        """Drain the nodes that leave with fewer workers or with a pool, and wait for their jobs.

        The operator then deletes these pods, which have the lowest cost, and no others.
        """
        leaving = [each.name for each in self._leaving()]
        self._refuse_jobs(leaving)

        def look() -> bool | Pending:
            states = [self._drain(each) for each in self._read() if each.name in leaving]
            return next((each for each in states if each), True)

        self._wait_for_jobs(look, leaving)
        self._refuse_lost(NOT_ENDED, leaving)
        for name in leaving:
            self._annotate(f"{self._path}/pods/{name}", {_COST: "-1"})
        return leaving

    def _refuse_lost(self, states: Set[str], drained: Sequence[str] = ()) -> None:
        """Refuse the loss of a partition with such jobs or a reservation, or of one that was made by hand."""
        conf = objects.find(self.api, self._conf_path) or {"data": {}}
        written = re.findall(r"^PartitionName=(\S+)", str(conf["data"].get("slurm.conf")), re.MULTILINE)
        for name in sorted({*self.slurm.limits()} - {*self.spec.partitions}):
            jobs = " ".join(map(str, self.slurm.active_jobs(name, states)))
            what, fix = f"partition {name} is not configured, and slurmctld would forget it", ""
            if jobs:
                what, fix = f"{what} and end its jobs {jobs}", f"wait for its jobs or scancel {jobs}; "
            for each in self.slurm.reservations(name):
                what += f" and delete the reservation {each}"
                fix += f"scontrol update reservationname={each} partition=OTHER; "
            if name not in written:
                fix += f"scontrol delete partitionname={name}; "
            if fix:
                self._undrain(drained)
                back = "list its pool, or it in values.partitions"
                raise Failed(f"{what}; it stays. Fix: {back}; or {fix}then retry")

    def roll(self) -> list[str]:
        """Replace every outdated pod, at most `max_unavailable` at once."""
        self._restart_idle_operator()
        self._renew_password()
        self._wait(self._settled, self.spec.timeout_seconds)
        self._await_conf()
        self._put_back_limits()
        self._forget_removed()
        self._put_back()
        outdated = [each for each in self._read() if each.outdated and not each.ending]
        # The pod of a dead host does not end, and a node that is drained already costs nothing.
        order = [
            (each.node.is_down, bool(each.node.held), each.node.is_busy, not each.node.of_update, each.name)
            for each in outdated
        ]
        names, at_once = [name for *_, name in sorted(order)], self.spec.max_unavailable
        self._refuse_jobs(names)
        for first in range(0, len(names), at_once):
            self.progress(f"slurmd: {first} of {len(names)} pods are replaced")
            self._replace(names[first : first + at_once])
        return names

    def _restart_idle_operator(self) -> None:
        """Restart the operator once if it makes no pod for a NodeSet: 1.2 keeps the error of its first list.

        It has that error if it was there before slurmrestd, as in a first installation.
        """

        def has_pods() -> bool | Pending:
            owners = {_owner(pod) for pod in self.slurm.worker_pods()}
            empty = sorted({each["metadata"]["name"] for each in self._nodesets()} - owners)
            return Pending(f"NodeSet {empty[0]} has no pod") if empty else True

        self._wait(lambda: self.slurm.read_at() > 0, self.spec.timeout_seconds)
        try:
            self._wait(has_pods, OPERATOR_SECONDS)
        except TimedOut as timeout:
            self.progress(f"{timeout}; {OPERATOR.release} is restarted")
            pods = f"/api/v1/namespaces/{OPERATOR.namespace}/pods"
            for pod in self.api.list(pods, labelSelector=_OPERATOR_PODS):
                objects.delete(self.api, f"{pods}/{pod['metadata']['name']}", pod["metadata"]["uid"])

    def _renew_password(self) -> None:
        """Have slurmdbd started with its password: of a changed one the operator is not told."""
        accounting = f"/apis/{API_VERSION}/namespaces/{self.spec.namespace}/accountings/{RELEASE}"
        secret = objects.find(self.api, f"{self._path}/secrets/{DATABASE_KEY}")
        if secret and objects.find(self.api, accounting):
            self._annotate(accounting, {_PASSWORD: secret["metadata"]["resourceVersion"]})

    def _forget_removed(self) -> None:
        """Delete the records of nodes whose pods were removed: Slurm would start jobs there.

        The pod of a dead host does not end; no job is started there, and a later update deletes its record.
        """

        def look() -> bool | Pending:
            # In this order: a pod is there before its record.
            nodes, pods = self.slurm.nodes(), self.slurm.worker_pods()
            hosts = {pod_host(pod) for pod in pods}
            for node in nodes.values():
                if node.of_pod and node.name not in hosts:
                    self.slurm.forget(node.name)
            stay = {each["metadata"]["name"] for each in self._nodesets()}
            leave = [pod for pod in pods if "deletionTimestamp" in pod["metadata"] or _owner(pod) not in stay]
            return Pending(f"pod {leave[0]['metadata']['name']} is ending") if leave else True

        try:
            self._wait(look, REMOVAL_SECONDS)
        except TimedOut as timeout:
            self.progress(f"{timeout}; its record stays in Slurm until the next update")

    def _settled(self) -> bool | Pending:
        """True if the operator has read the NodeSets, and made or removed pods for them."""
        pods = [each.nodeset for each in self._read() if not each.ending]
        for each in self._nodesets():
            name, wanted = each["metadata"]["name"], each["spec"].get("replicas")
            if (each.get("status") or {}).get("observedGeneration") != each["metadata"]["generation"]:
                return Pending(f"slurm-operator has not read NodeSet {name} yet")
            if pods.count(name) != wanted and each["spec"].get("scalingMode") != "DaemonSet":
                return Pending(f"NodeSet {name} has {pods.count(name)} pods, expected {wanted}")
        return True

    def _put_back(self) -> None:
        """End what an interrupted update, or an uncordon, has left on pods that stay."""
        found = [each for each in self._read() if not each.outdated and not each.ending]
        for each in found:
            if _COST in each.annotations:
                self._annotate(f"{self._path}/pods/{each.name}", {_COST: None})
            if POD_CORDON in each.annotations and not each.cordoned:
                self.slurm.forget_cordon(each.on)
        if held := [each.name for each in found if each.kept or each.node.of_update]:
            self._replace(held)

    def _replace(self, names: list[str]) -> None:
        """Bring pods to the newest template. A new one must be back in `timeout_seconds`."""
        deadline = partial(Deadline, self.clock, self.spec.timeout_seconds)
        back = deadline()

        def look() -> bool | Pending:
            nonlocal back
            found = {each.name: each for each in self._read()}
            states = [state for name in names if (state := self._advance(found.get(name), name))]
            if any(found[name].node.is_busy for name in names if name in found):
                back = deadline()
            elif states and back.passed:
                raise TimedOut(back.seconds, states[0].state, None)
            return states[0] if states else True

        self._wait_for_jobs(look, names)

    def _advance(self, worker: Worker | None, name: str) -> Pending | None:
        """Take the next step with a pod; None when it is there."""
        if worker and not worker.ending:
            if not worker.outdated:
                return self._restore(worker)
            if worker.on and (state := self._drain(worker)):
                return state
            if worker.on and worker.node.held != worker.kept:
                self._annotate(f"{NODES}/{worker.on}", {KEPT: worker.node.held or None})
            objects.delete(self.api, f"{self._path}/pods/{name}", worker.uid)
        return Pending(f"pod {name} is being replaced")

    def _restore(self, worker: Worker) -> Pending | None:
        """Put the node of a new pod into service, or set again what somebody had set on its predecessor."""
        node = worker.node
        if worker.cordoned:
            return None
        if not worker.ready:
            return Pending(f"pod {worker.name} is not ready yet{worker.issue}")
        if node is NO_NODE or (_AWAY & {*node.states} and not node.held.startswith("DOWN ")):
            return Pending(f"node {worker.host} is {'+'.join(sorted(node.states)) or 'not in Slurm yet'}")
        if worker.kept and not node.held:
            state, _, reason = worker.kept.partition(" ")
            self.slurm.drain(node.name, reason, state)
            return Pending(f"node {node.name} is not {state} again yet")
        if worker.kept:
            self._annotate(f"{NODES}/{worker.on}", {KEPT: None})
        elif node.of_program and "DRAIN" in node.states:
            # The record outlives the pod, with the reason of the operator for its end.
            self.slurm.undrain(node.name)
            return Pending(f"node {node.name} is drained")
        return None

    def _drain(self, worker: Worker) -> Pending | None:
        """Drain a node; None when it is and no job runs there."""
        node = worker.node
        if node is NO_NODE or node.is_down:
            return None
        if "DRAIN" not in node.states and not node.held:
            self.slurm.drain(worker.host, UPDATE)
            return Pending(f"node {worker.host} is not drained yet")
        has_jobs = node.is_busy or node.name in self.slurm.suspended()
        return Pending(f"remaining jobs: squeue -w {worker.host}", 5) if has_jobs else None

    def _refuse_jobs(self, names: list[str]) -> None:
        busy = [each.host for each in self._read() if each.name in names and each.node.is_busy]
        if busy and not self.spec.job_seconds:
            self._undrain(names)
            what = f"jobs of Slurm run on {listed(busy)}, whose pods must be replaced; none was"
            raise Failed(what, "wait for their end, or raise update.job_seconds, then retry")

    def _wait_for_jobs(self, look: Callable[[], bool | Pending], names: list[str]) -> None:
        try:
            self._wait(look, self.spec.job_seconds + self.spec.timeout_seconds)
        except TimedOut as timeout:
            self._undrain(names)
            raise Failed(
                f"{timeout}; no other node was taken out of service. Fix: wait for the end of jobs, or raise "
                f"update.job_seconds (of a pod: kubectl -n {self.spec.namespace} describe pods), then retry"
            ) from timeout

    def _undrain(self, names: Sequence[str]) -> None:
        for each in self._read():
            if each.name in names and each.node.of_update:
                self.slurm.undrain(each.host)

    def _leaving(self) -> Iterator[Worker]:
        found = [each for each in self._read() if not each.ending]
        for nodeset in {each.nodeset for each in found}:
            pods = [each for each in found if each.nodeset == nodeset]
            wanted = self._workers.get(nodeset, set())
            pods.sort(key=lambda each: (each.on in wanted, each.node.is_busy, each.name))
            yield from pods[: max(0, len(pods) - len(wanted))]

    def _read(self) -> list[Worker]:
        newest = {
            each["metadata"]["name"]: (each.get("status") or {}).get("nodeSetHash", "")
            for each in self._nodesets()
        }
        revisions = f"/apis/apps/v1/namespaces/{self.spec.namespace}/controllerrevisions"
        templates = {_hash(each): _template(each) for each in self.api.list(revisions)}
        on = {each["metadata"]["name"]: each for each in self.api.list(NODES)}
        cordoned = {name for name, each in on.items() if (each.get("spec") or {}).get("unschedulable")}
        pods, nodes = self.slurm.worker_pods(), self.slurm.nodes()
        free = {*on} - {pod["spec"].get("nodeName") for pod in pods} - cordoned
        found = []
        for pod in pods:
            metadata, where = pod["metadata"], pod["spec"].get("nodeName") or ""
            nodeset = _owner(pod)
            wanted, host = self._workers.get(nodeset, set()), on.get(where, {"metadata": {}})
            if nodeset not in newest:
                continue  # its pool was removed, and so is the pod
            mine, new = _hash(pod), newest[nodeset]
            same = mine == new or (mine in templates and templates[mine] == templates.get(new))
            found.append(
                Worker(
                    name=metadata["name"],
                    uid=metadata.get("uid", ""),
                    on=where,
                    ending="deletionTimestamp" in metadata,
                    ready=readiness([pod]) == (1, 1),
                    issue=next((f": {each.what}" for each in issues_of(pod)), ""),
                    annotations=metadata.get("annotations") or {},
                    nodeset=nodeset,
                    host=pod_host(pod),
                    node=nodes.get(pod_host(pod), NO_NODE),
                    outdated=not same or bool(where and where not in wanted),
                    cordoned=where in cordoned if where else not wanted & free,
                    kept=(host["metadata"].get("annotations") or {}).get(KEPT, ""),
                )
            )
        return found

    def _nodesets(self) -> list[JsonObject]:
        return self.api.list(self._nodesets_path)

    def _marks(self) -> Mapping[str, str]:
        """The annotations by which an interrupted update goes on: those of the ConfigMap with the files."""
        found = objects.find(self.api, self._files_path) or {"metadata": {}}
        return found["metadata"].get("annotations") or {}

    def _annotate(self, path: str, annotations: Mapping[str, str | None]) -> None:
        self.api.merge(path, {"metadata": {"annotations": annotations}})

    def _wait(self, look: Callable[[], bool | Pending], seconds: float) -> None:
        deadline = Deadline(self.clock, seconds)
        wait_until(look, deadline, poll_seconds=1, progress=self.progress, retry_on=transient)


def _same(key: str, *lines: str) -> bool:
    """Return whether lines of slurm.conf all have the same value of a key, or all have none."""
    return len({str(re.findall(rf"\b{key}=(\S+)", line, re.IGNORECASE)) for line in lines}) == 1


def _owner(pod: JsonObject) -> str:
    """The NodeSet of a pod."""
    return str(pod["metadata"]["ownerReferences"][0]["name"])


def _hash(each: JsonObject) -> str:
    return str((each["metadata"].get("labels") or {}).get(_HASH, ""))


def _template(revision: JsonObject) -> Any:
    """A revision of a NodeSet, without the list of Nodes: another list alone replaces no pod."""
    found = deepcopy(revision.get("data") or {})
    pod = ((found.get("spec") or {}).get("template") or {}).get("spec") or {}
    (pod.get("affinity") or {}).pop("nodeAffinity", None)
    return found
