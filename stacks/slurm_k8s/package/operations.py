"""Measurements on a stack of slurm_k8s: `busbar measure`, and those of an update.

Hosts and login are those of the cluster's stack file, which is beside this project's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from busbar.cli.ending import when_interrupted
from busbar.cli.output import progress
from busbar.cli.stackfile import cluster_api, login_of
from busbar.collect.spec import expectation
from busbar.config import Cluster, stackfile
from busbar.config.stackfile import StackFile
from busbar.exits import Misuse, NoVerdict
from busbar.fabric import slurm as fabric
from busbar.fabric.commands.measure import asked, by_slurm
from busbar.finding import Finding
from busbar.hosts.inventory import Inventory
from busbar.kube.client import RestApi
from busbar.kube.wait import SystemClock
from busbar.manifests import sbatch
from busbar.manifests.names import job_name
from busbar.manifests.ncclrun import nccl_run
from busbar.models import StrictModel
from busbar.operations.verify import CLUSTER
from busbar.outputs import ClusterOutputs
from busbar.outputs.contract import summarize
from busbar.text import listed
from stacks.slurm_k8s.package import config, pools
from stacks.slurm_k8s.package.config import Slurm
from stacks.slurm_k8s.package.outputs import not_measured
from stacks.slurm_k8s.package.reach import in_pods
from stacks.slurm_k8s.package.ready import ReadySpec, works
from stacks.slurm_k8s.package.rest import SlurmApi


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
    slurm = config.read(path)
    file, cluster = _cluster_of(slurm, path.parent)
    inventory = Inventory.of(cluster)
    chosen = asked([*(slurm.pools or cluster.pools)], inventory.workers, pool, nodes)
    api = cluster_api(file, cluster)
    known = {node.on: node for node in SlurmApi(api, slurm.namespace).nodes().values() if node.on}
    names = {worker: node.name for worker, node in known.items()}
    workers = {
        name: only or [host.name for host in inventory.usable_of(name)] for name, only in chosen.items()
    }
    with (
        when_interrupted("; the job is cancelled"),
        in_pods(login_of(file, cluster.ssh), inventory.servers, api, slurm.namespace) as reach,
    ):

        def run(name: str, folder: Path) -> dict[str, Any]:
            spec = measure_spec(slurm, cluster, name, workers[name], names, minutes, folder)
            return fabric.measure(spec, name, list(spec.hostnames), reach, SystemClock(), progress)

        def absent(name: str, result: Mapping[str, Any]) -> list[str]:
            return not_measured(workers[name], names, result)

        return by_slurm(path, cluster.name, chosen, run, absent, as_json=as_json)


def ready(path: Path, outputs: Mapping[str, Any], api: RestApi) -> list[Finding]:
    """What keeps jobs from running on the stack (busbar.capability.Capability.ready)."""
    slurm = config.read(path)
    try:
        used = pools.pools_of(ClusterOutputs.from_dict(outputs), slurm)
    except ValueError as error:
        what = f"the nodes that Slurm needs are not known: {error}"
        return [Finding((CLUSTER,), what, f"busbar status of {slurm.cluster}", kind="unknown")]
    return works(api, ReadySpec.of(slurm, used))


class UpdateSpec(StrictModel):
    """Stdin of `busbar slurm_k8s measure`. `slurm`: fields of the configuration. `nodes`: worker -> node of
    Slurm. `measured_as`: a digest; with another one, or another `run`, the engine measures again."""

    slurm: dict[str, Any]
    pool: str
    nodes: dict[str, str]
    folder: str
    run: int
    measured_as: str


def measure_update(api: RestApi, spec: UpdateSpec) -> dict[str, Any]:
    """The verdict on a pool in short; nothing is judged without nodes. Raises as `measure`."""
    if not spec.nodes:
        return summarize({"verdict": "unknown", "reasons": ["no node of the pool is ready in Slurm"]})
    slurm, folder = Slurm.model_validate(spec.slurm), Path(spec.folder)
    file, cluster = _cluster_of(slurm, Path())
    made = measure_spec(slurm, cluster, spec.pool, [*spec.nodes], spec.nodes, None, folder)
    servers = Inventory.of(cluster).servers
    with in_pods(login_of(file, cluster.ssh), servers, api, slurm.namespace) as reach:
        found = fabric.measure(made, spec.pool, list(made.hostnames), reach, SystemClock(), progress)
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
        raise NoVerdict(f"no worker of pool {pool} is a node of Slurm: {listed(workers)}. Fix: busbar up")
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
