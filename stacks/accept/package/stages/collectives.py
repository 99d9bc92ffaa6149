"""The stages over all healthy nodes: the first run of each collective with full proof, then the repeats."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from busbar.hosts.inventory import Inventory as HostInventory
from busbar.kube.wait import Deadline, Pending, wait_until
from busbar.text import counted
from stacks.accept.package.evidence import LOG_FILES, SEGMENT
from stacks.accept.package.rows.collectives import RUNS
from stacks.accept.package.site import COLLECTIVES, validation_of
from stacks.accept.package.stages.running import Planned, Running

if TYPE_CHECKING:
    from busbar.config.cluster import Validation
    from busbar.fabric.measure import Plan

# Seconds of the start of all pods, at 440 nodes that have the image; and of one collective with the start of
# its ranks, at 3,520.
START_SECONDS, RUN_SECONDS = 60, 45
# How long a stage waits for GPUs that pods hold, unless validation.when_busy is `wait`.
PATIENCE_SECONDS = 180


def fabric(stage: str, runs: Sequence[str], env: Mapping[str, str], on: Running) -> dict[str, str]:
    """Measure over all healthy nodes, in one job per pool, and keep its log. Raises NoVerdict."""
    from busbar.fabric.measure import LeftBehind, measure

    pools = on.site.pools
    notes = {
        name: "every worker fails alone" if pool.workers else "every worker is in quarantine"
        for name, pool in pools.items()
        if not on.good(name)
    }
    jobs = {name: f"{on.run}-{stage[0]}{number}" for number, name in enumerate(pools) if name not in notes}
    clean_up(on, jobs.values())
    for pool, job in jobs.items():
        on.say(f"pool {pool}: {counted(len(runs), 'run')} of nccl-tests")
        folder = on.at(stage) / pool
        validation = validation_of(on.cluster.validation_of(pool), runs, NCCL_RUN_DIAGNOSTICS="1", **env)
        # Events of a former job, as that it made room for others, stay for an hour.
        planned = plan_when_free(on, pool, f"{job}-{os.urandom(2).hex()}", validation)
        try:
            measure(on.api, planned, str(folder), on.clock, on.say, options=on.options)
        except LeftBehind as left:
            on.say(f"warning: {left}")
        keep_logs(folder)
    return notes


def clean_up(on: Running, jobs: Iterable[str]) -> None:
    """Remove the jobs that a killed process may have left, by the begin of their names."""
    from busbar.fabric.measure.run import find, remove

    begins, limit = tuple(f"{job}-" for job in jobs), Deadline(on.clock, PATIENCE_SECONDS)
    found = wait_until(lambda: find(on.api), limit, poll_seconds=2)
    remove(on.api, [each for each in found if each.run.startswith(begins)], limit, on.say)


def keep_logs(folder: Path) -> None:
    """Remove whatever is made again from the logs, such as a verdict and its page."""
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in (*LOG_FILES, SEGMENT):
            path.unlink()


def free_nodes(on: Running, pool: str, *, wait: bool = True) -> tuple[str, ...]:
    """The nodes of the pool whose GPUs are free; with WAIT as a measurement waits for them."""
    validation = validation_of(on.cluster.validation_of(pool))
    return tuple(plan_when_free(on, pool, f"{on.run}-free", validation, wait=wait).job.nodes)


def plan_when_free(
    on: Running,
    pool: str,
    job: str,
    validation: Validation,
    *,
    wait: bool = True,
    begun_on: Sequence[str] = (),
    nodes: Sequence[str] | None = None,
) -> Plan:
    """The job on these nodes, else on all good ones of the pool, as soon as they are free.

    BEGUN_ON: the nodes of a job that has begun.
    """
    from busbar.fabric.measure import CannotMeasure, plan_pool, read_facts
    from busbar.manifests.nccljob import TopologyFile

    file = validation.topology_file and on.file.project / validation.topology_file
    more: dict[str, Any] = {
        "validation": validation,
        "own_namespace": on.kubeconfig is not None,
        "topology": TopologyFile.read(job, file) if file else None,
    }
    inventory, asked = HostInventory.of(on.cluster), on.good(pool) if nodes is None else nodes
    if begun_on:
        return plan_pool(None, inventory, pool, job, nodes=begun_on, idle=on.idle, **more)

    def look() -> Plan | Pending:
        facts = read_facts(on.api, None, idle=on.idle)
        found = plan_pool(facts, inventory, pool, job, nodes=asked, idle=on.idle, partly=True, **more)
        held = len(asked) - len(found.job.nodes) - len(found.missing)
        if not wait:
            return found
        if held and not on.idle:
            return Pending(f"pods hold GPUs of {counted(held, 'node')}: {'; '.join(found.notes)}")
        if not found.job.nodes:
            raise CannotMeasure([f"pool {pool}: no node can run the job", *found.missing])
        return found

    seconds = validation.busy_deadline_seconds if validation.when_busy == "wait" else PATIENCE_SECONDS
    return wait_until(look, Deadline(on.clock, seconds), poll_seconds=10, progress=on.say)


def _measuring(stage: str, runs: Sequence[str], **env: str) -> Planned:
    seconds = START_SECONDS + RUN_SECONDS * len(runs)
    return Planned(stage, partial(fabric, stage, runs, env), True, lambda nodes: seconds)


# The first run of each has full proof; the others have warnings only, or the logs would have GB.
FIRST = _measuring("collectives", COLLECTIVES)
REPEATS = _measuring(
    "repeats", [name for name in COLLECTIVES for _ in range(RUNS[name] - 1)], NCCL_DEBUG="WARN"
)
