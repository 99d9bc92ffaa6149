"""The stages of a diagnosis as MPIJobs in a stack of K3s."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from busbar.collect.jobwatch import JobWatch, is_worker
from busbar.collect.spec import GRACE_SECONDS, expectation
from busbar.collect.watch import phase
from busbar.config.cluster import Validation
from busbar.fabric.diagnosis.stages import (
    SILENT,
    Scope,
    StageCollector,
    StageLog,
    Work,
    places_of,
    with_rings,
)
from busbar.fabric.measure import read_facts
from busbar.fabric.measure.plan import plan_pool, unusable
from busbar.fabric.measure.run import IdleApi, raise_if_preempted, run
from busbar.hosts.inventory import Inventory
from busbar.judge.archive import JobOutcome
from busbar.judge.checks import Verdict
from busbar.judge.collector import JobNeverStarted
from busbar.kube import pods as kube_pods
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.nodes import NODES
from busbar.kube.wait import Clock, Deadline, ProgressCallback
from busbar.manifests import groups as script
from busbar.manifests import mpijob


def scope_of(
    inventory: Inventory, pool: str, nodes: Sequence[str], folder: Path, judged: Collection[str] = ()
) -> Scope:
    """The part of a stack of K3s that a diagnosis is about."""
    cluster = inventory.cluster
    validation = cluster.validation_of(pool)
    return Scope(
        pool=pool,
        nodes=tuple(nodes),
        hardware=cluster.pools[pool],
        validation=validation,
        places=places_of(cluster.hosts.workers),
        folder=folder,
        judged=frozenset(judged),
    )


class StageWatch(JobWatch):
    """The job of a stage: it starts without workers that cannot.

    `kept_waiting`: node -> why its worker does not run, where the launcher could not start and others run.
    """

    kept_waiting: Mapping[str, str] = MappingProxyType({})
    _workers_since: float | None = None

    def why_absent(self, nodes: list[str]) -> dict[str, str]:
        """Why each of these nodes has no worker that answers, from the pods as they are now."""
        try:
            workers = [pod for pod in self._pods() if is_worker(pod)]
            placed = {pod["spec"].get("nodeName"): pod for pod in workers}
            return {node: self._why(placed.get(node, placed.get(None))) for node in nodes}
        except ApiError as error:
            return dict.fromkeys(nodes, f"its worker is not responding, and its pod cannot be read: {error}")

    def _rejected(self, pods: Sequence[JsonObject]) -> list[JsonObject]:
        return [] if self._was_started_again else super()._rejected(pods)

    def _give_up(self, reason: str) -> None:
        self._was_started_again = True  # the stage starts without these workers

    def _why(self, pod: JsonObject | None) -> str:
        if pod is None:
            return "it has no worker"
        if phase(pod) == "Running" and kube_pods.readiness([pod])[0]:
            return SILENT
        return "; ".join(self.findings([pod])) or f"its pod is {phase(pod)} after {script.WORKER_SECONDS} s"

    def _check_can_start(self, job: JsonObject, pods: list[JsonObject], seen: list[JsonObject]) -> None:
        workers = [pod for pod in pods if is_worker(pod)]
        launchers = [pod for pod in pods if not is_worker(pod)]
        now = self.deadline.clock.now()
        if not kube_pods.readiness(workers)[0]:
            self._workers_since = None
        elif self._workers_since is None:
            self._workers_since = now
        try:
            super()._check_can_start(job, launchers, seen)
            # Where the runtime of its node hangs, no condition says that the launcher does not start.
            if self._workers_since is not None and now - self._workers_since >= script.WORKER_SECONDS:
                why = f"workers run, and the launcher has not started after {script.WORKER_SECONDS} s"
                raise JobNeverStarted([why, *self.findings(launchers)])
        except JobNeverStarted:
            reasons = {pod["spec"].get("nodeName"): self._why(pod) for pod in workers}
            missing = {node: reason for node, reason in reasons.items() if node and reason != SILENT}
            # If no pod runs, the nodes are not the cause.
            self.kept_waiting = missing if len(missing) < len(reasons) else {}
            raise


@dataclass
class InCluster:
    """Runs the stages in a stack of K3s. `project`: folder of the stack.

    `name`: the names of its runs begin with it. `own`: in place of the pool's validation.
    `idle`: with pods that end for any other pod. `options`: of `busbar nccl clean` for this cluster.
    `own_namespace`: each run in its own namespace.
    """

    api: Api
    inventory: Inventory
    pool: str
    project: Path
    clock: Clock
    progress: ProgressCallback
    name: str = "diagnose"
    own: Validation | None = None
    idle: bool = False
    options: str = ""
    own_namespace: bool = False

    def __post_init__(self) -> None:
        self._validation = with_rings(self.own or self.inventory.cluster.validation_of(self.pool))

    def machines(self, nodes: Sequence[str]) -> Mapping[str, Sequence[str | None]]:
        """Uid and boot of each Node."""
        found: dict[str, Sequence[str | None]] = {}
        for node in self.api.list(NODES):
            boot = ((node.get("status") or {}).get("nodeInfo") or {}).get("bootID")
            found[node["metadata"]["name"]] = [node["metadata"].get("uid"), boot]
        return {name: found.get(name, []) for name in nodes}

    def look(self, nodes: Sequence[str]) -> tuple[Mapping[str, str], Mapping[str, tuple[str, ...]]]:
        facts = read_facts(self.api, None, idle=self.idle)
        self._plan = plan_pool(
            facts,
            self.inventory,
            self.pool,
            f"{self.name}-{os.urandom(3).hex()}",
            nodes=nodes,
            idle=self.idle,
            partly=True,
            own_namespace=self.own_namespace,
            validation=self._validation,
            project=self.project,
        )
        absent = unusable(facts, replace(self._plan.job, nodes=tuple(nodes)))
        return absent, {each.hostname: each.node.reported for each in facts.nodes if each.node.reported}

    def run(self, work: Work, keep: Callable[[StageLog], None]) -> Verdict:
        """Run the groups. Raises as `busbar.fabric.measure.run.run`, and Preempted as `measure`."""
        api, job = self.api, replace(work.run(self._plan.job), stage=work.stage)
        plan = replace(self._plan, job=job)
        name, seconds = mpijob.render(job)["metadata"]["name"], job.deadline_seconds + GRACE_SECONDS
        watched = IdleApi(api, plan) if plan.idle else api
        watch = StageWatch(watched, job.namespace, name, Deadline(self.clock, seconds), self.progress)
        collector = StageCollector(watch, work, job, watch.why_absent, self.progress)

        def follow() -> Verdict:
            verdict = collector.run()
            if plan.idle:
                raise_if_preempted(api, plan)
            # The log can be read again from its folder alone.
            record = watch.record(
                expectation(self._validation, job, name),
                pool=self.pool,
                kind="diagnose",
                folder=str(work.folder),
                outcome=JobOutcome(verdict.passed or None, verdict.reasons),
                complete=True,
            )
            if record and collector.archive.complete_log_of == record.job_uid:
                collector.archive.mark_complete(record.job_uid, record.model_dump(mode="json"))
            return verdict

        try:
            return run(api, plan, seconds, follow, self.clock, self.progress, self.options)
        finally:
            log = collector.log
            log.absent = log.absent or {**watch.kept_waiting}
            keep(log)
