"""`busbar measure` on a stack of slurm_k8s.

Hosts and login are those of the cluster's stack file, which is beside this project's folder.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group

from busbar.cli.ending import when_interrupted
from busbar.cli.output import print_text, progress
from busbar.cli.stackfile import cluster_api, login_of
from busbar.collect.spec import expectation
from busbar.config import Cluster, stackfile
from busbar.exits import DONE, FAILED, NO_VERDICT, Misuse, NoVerdict
from busbar.fabric import slurm as fabric
from busbar.fabric.commands.measure import asked
from busbar.hosts.inventory import Inventory
from busbar.judge.tables import notes
from busbar.kube.wait import SystemClock
from busbar.manifests import sbatch
from busbar.manifests.names import job_name
from busbar.manifests.ncclrun import nccl_run
from busbar.outputs.build import build_measured
from busbar.outputs.summary import pool_notes, pools_of, tables
from busbar.text import listed
from stacks.slurm_k8s.package import config
from stacks.slurm_k8s.package.config import Slurm
from stacks.slurm_k8s.package.reach import in_pods
from stacks.slurm_k8s.package.rest import SlurmApi, SlurmNode


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
    stack = stackfile.stack_of(path)
    file = stackfile.read(stackfile.find(slurm.cluster, path.parent / slurm.cluster_folder, Path.cwd()))
    cluster = file.cluster()
    inventory = Inventory.of(cluster)
    chosen = asked([*(slurm.pools or cluster.pools)], inventory.workers, pool, nodes)
    api = cluster_api(file, cluster)
    known = {node.on: node for node in SlurmApi(api, slurm.namespace).nodes().values() if node.on}
    results, too_few = {}, {}
    with (
        when_interrupted("; the job is cancelled"),
        in_pods(login_of(file, cluster), inventory.servers, api, slurm.namespace) as reach,
    ):
        for name, only in chosen.items():
            workers = only or [host.name for host in inventory.usable_of(name)]
            spec, missing = measure_spec(slurm, cluster, name, workers, known, minutes)
            folder = Path(".busbar") / stack / name
            of_pool = spec.model_copy(update={"folder": str(path.parent / folder / "measure")})
            found = fabric.measure(of_pool, name, list(of_pool.hostnames), reach, SystemClock(), progress)
            about = {"kind": "measure", "folder": str(folder / "measure")}
            results[name] = fabric.keep(found, path.parent / folder, progress, **about)
            too_few[name] = _not_measured(workers, known, results[name], missing)
    made = build_measured(cluster.name, results, too_few)
    if as_json:
        print_text(json.dumps({"stack": stack, "pools": results}))
    else:
        pools = pools_of(made)
        Console().print(Group(*tables(made, pools, None), *notes(pool_notes(pools, None))))
    verdicts = {each["verdict"] for each in results.values()}
    return FAILED if "fail" in verdicts else DONE if made["nccl_passed"] else NO_VERDICT


def measure_spec(
    slurm: Slurm,
    cluster: Cluster,
    pool: str,
    workers: list[str],
    known: dict[str, SlurmNode],
    minutes: int | None,
) -> tuple[fabric.MeasureSpec, list[str]]:
    """The job that measures a pool as the cluster's own validation does, and the workers without a node.

    `known`: by worker. Raises NoVerdict where no worker has a node.
    """
    missing = [worker for worker in workers if worker not in known]
    names = [known[worker].name for worker in workers if worker in known]
    if not names:
        raise NoVerdict(f"no worker of pool {pool} is a node of Slurm: {listed(missing)}. Fix: busbar up")
    validation = cluster.validation_of(pool)
    if minutes:
        seconds = min(validation.deadline_seconds, 60 * minutes)
        validation = validation.model_copy(update={"deadline_seconds": seconds})
    run = nccl_run(pool, names, cluster.pools[pool], validation)
    script = sbatch.script(run, validation.system, slurm.container_image)
    name = job_name(pool, {"script": script, "at": datetime.now(UTC).isoformat()})
    spec = fabric.MeasureSpec(
        partition=pool,
        job=name,
        script=script,
        deadline_seconds=run.deadline_seconds,
        pending_seconds=slurm.pending_seconds,
        min_nodes_fraction=validation.min_nodes_fraction,
        hostnames={node: node for node in names},
        folder="",
        expectation=expectation(validation, run, name),
    )
    return spec, missing


def _not_measured(
    workers: list[str], known: dict[str, SlurmNode], result: dict[str, Any], missing: list[str]
) -> list[str]:
    measured = result.get("nodes_measured")
    if measured is None:
        return []
    absent = [*missing, *(each for each in workers if each in known and known[each].name not in measured)]
    if not absent:
        return []
    return [f"{len(workers) - len(absent)} of {len(workers)} workers were measured; not: {listed(absent)}"]
