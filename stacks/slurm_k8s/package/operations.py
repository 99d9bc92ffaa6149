"""Measurements on a stack of slurm_k8s: `busbar measure`, and those of an update.

Hosts and login are those of the cluster's stack file, which is beside this project's folder. Slurm is
reached over SSH on a server of the cluster, by kubectl exec: its commands run in the login pod, and the log
is read in the pod of the batch host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from busbar.cli.ending import when_interrupted
from busbar.cli.engine import stop_on_sigterm
from busbar.cli.output import progress
from busbar.cli.stackfile import cluster_api, login_of
from busbar.collect.spec import expectation
from busbar.config import Cluster, stackfile
from busbar.config.stackfile import StackFile
from busbar.exits import Misuse, NoVerdict
from busbar.fabric import slurm as fabric
from busbar.fabric.commands.measure import asked, by_slurm
from busbar.fabric.slurm import SCRIPT, SCRIPT_SECONDS, opened
from busbar.finding import STACK, Fix
from busbar.hosts.inventory import Host, Inventory
from busbar.hosts.remote import Hosts, UnreachableError
from busbar.kube.client import Api, ApiError, RestApi
from busbar.kube.objects import find
from busbar.kube.pods import readiness
from busbar.kube.wait import Clock, ProgressCallback, SystemClock
from busbar.manifests import sbatch
from busbar.manifests.names import job_name
from busbar.manifests.ncclrun import nccl_run
from busbar.models import StrictModel
from busbar.outputs.contract import summarize
from busbar.text import listed
from stacks.slurm_k8s.package.config import CONFIG, Slurm
from stacks.slurm_k8s.package.outputs import not_measured
from stacks.slurm_k8s.package.rest import SlurmApi, pod_of
from stacks.slurm_k8s.package.values import LOGIN_SERVICE


def measure(
    path: Path,
    pool: str | None = None,
    nodes: str | None = None,
    *,
    idle: bool = False,
    minutes: int | None = None,
    as_json: bool = False,
) -> int:
    """Measure pools by jobs of Slurm, record and print the results. Returns the exit code."""
    if idle:
        raise Misuse("--idle is for K3s. Fix: leave it out: the job is pending while its nodes are busy")
    slurm = CONFIG.read(path)
    file, cluster = _cluster_of(slurm, path.parent)
    inventory = Inventory.of(cluster)
    chosen = asked([*(slurm.pools or cluster.pools)], inventory.workers, pool, nodes)
    api = cluster_api(file, cluster)
    known = SlurmApi(api, slurm.namespace).nodes_by_host()
    names = {worker: node.name for worker, node in known.items()}
    workers = {
        name: only or [host.name for host in inventory.usable_of(name)] for name, only in chosen.items()
    }
    with in_pods(file, cluster, api, slurm.namespace) as reach:

        def run(name: str, folder: Path) -> dict[str, Any]:
            spec = measure_spec(slurm, cluster, name, workers[name], names, minutes, folder)
            return fabric.measure(spec, name, list(spec.hostnames), reach, SystemClock(), progress)

        def absent(name: str, result: Mapping[str, Any]) -> list[str]:
            return not_measured(workers[name], names, result)

        return by_slurm(path, cluster.name, chosen, run, absent, as_json=as_json)


class UpdateSpec(StrictModel):
    """The request of the step `measure`. `slurm`: fields of the configuration. `nodes`: worker -> node of
    Slurm. `measured_as`: a digest; with another one, or another `run`, the engine measures again."""

    slurm: dict[str, Any]
    pool: str
    nodes: dict[str, str]
    folder: str
    run: int
    measured_as: str


def measure_update(
    api: RestApi, spec: UpdateSpec, clock: Clock, progress: ProgressCallback
) -> dict[str, Any]:
    """The step `measure`. Returns the verdict on a pool in short; nothing is judged without nodes.

    Log, verdict and report are in `folder`. Raises as `measure`.
    """
    if not spec.nodes:
        return summarize({"verdict": "unknown", "reasons": ["no node of the pool is ready in Slurm"]})
    slurm, folder = Slurm.model_validate(spec.slurm), Path(spec.folder)
    file, cluster = _cluster_of(slurm, Path())
    made = measure_spec(slurm, cluster, spec.pool, [*spec.nodes], spec.nodes, None, folder)
    stop_on_sigterm()
    with in_pods(file, cluster, api, slurm.namespace) as reach:
        found = fabric.measure(made, spec.pool, list(made.hostnames), reach, clock, progress)
    return fabric.keep(found, folder, progress)


def _cluster_of(slurm: Slurm, folder: Path) -> tuple[StackFile, Cluster]:
    """The cluster's stack file; `folder` is that of this project."""
    file = stackfile.read(stackfile.find(slurm.cluster, folder / slurm.cluster_folder, Path.cwd()))
    return file, file.cluster()


def measure_spec(
    slurm: Slurm,
    cluster: Cluster,
    pool: str,
    workers: list[str],
    known: Mapping[str, str],
    minutes: int | None,
    folder: Path,
) -> fabric.MeasureSpec:
    """The job that measures a pool as the cluster's own validation does.

    `known`: worker -> node of Slurm. `folder`: of log and verdict. Raises NoVerdict where no worker has one.
    """
    names = [known[worker] for worker in workers if worker in known]
    if not names:
        what = f"no worker of pool {pool} is a node of Slurm: {listed(workers)}"
        raise NoVerdict(what, Fix(command=("verify", STACK)))
    validation = cluster.validation_of(pool)
    if minutes:
        seconds = min(validation.deadline_seconds, 60 * minutes)
        validation = validation.model_copy(update={"deadline_seconds": seconds})
    run = nccl_run(pool, names, cluster.pools[pool], validation)
    script = sbatch.script(run, validation.system, slurm.container_image)
    name = job_name(pool, {"at": datetime.now(UTC).isoformat()})
    return fabric.MeasureSpec(
        partition=pool,
        job=name,
        script=script,
        deadline_seconds=run.deadline_seconds,
        pending_seconds=slurm.pending_seconds,
        min_nodes_fraction=validation.min_nodes_fraction,
        hostnames={node: node for node in names},
        folder=str(folder),
        expectation=expectation(validation, run, name),
    )


class InPods:
    """Implements busbar.fabric.slurm.Reach. A server that is not responding is replaced by the next one."""

    # In the pods, whose files are lost with them: so is then the log, and there is no verdict.
    log_folder = "/tmp"

    def __init__(
        self, runner: asyncio.Runner, hosts: Hosts, servers: Sequence[Host], api: Api, namespace: str
    ) -> None:
        self._runner, self._hosts, self._servers = runner, hosts, [*servers]
        self._api, self._namespace = api, namespace

    def ask(
        self, verb: str, payload: Mapping[str, str] | None = None, *, node: str | None = None, **values: str
    ) -> dict[str, Any]:
        """Ask in the pod of a node, or in the login pod. Raises ScriptError, UnreachableError."""
        pod = f"{pod_of(node)} -c slurmd" if node else f"deploy/{LOGIN_SERVICE} -c login"
        within = f"k3s kubectl exec -i -n {self._namespace} {pod} --"
        given = {"VERB": verb, "WITHIN": within, **{key.upper(): text for key, text in values.items()}}
        while True:
            host = self._servers[0]
            about = {"NODE_NAME": host.name, **given}
            try:
                asked = self._hosts.run(host, SCRIPT, about, payload, seconds=SCRIPT_SECONDS)
                return self._runner.run(asked)
            except UnreachableError:
                if len(self._servers) == 1:
                    raise
                del self._servers[0]

    def gone(self, nodes: Sequence[str]) -> dict[str, str]:
        """Node -> reason, for the nodes whose pod is not Ready."""
        found = {}
        for name in nodes:
            try:
                pod = find(self._api, f"/api/v1/namespaces/{self._namespace}/pods/{pod_of(name)}")
            except ApiError:
                continue  # asked again at the next check
            if pod is None or readiness([pod]) != (1, 1):
                found[name] = f"has no ready pod {pod_of(name)}"
        return found


@contextmanager
def in_pods(file: StackFile, cluster: Cluster, api: Api, namespace: str) -> Iterator[InPods]:
    """The pods of Slurm by way of the servers. Raises ValueError (unusable key) and ScriptError (bastion)."""
    login, servers = login_of(file, cluster.ssh), Inventory.of(cluster).servers
    with when_interrupted("; the job is cancelled"), opened(login) as (runner, hosts):
        yield InPods(runner, hosts, servers, api, namespace)
