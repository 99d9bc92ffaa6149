"""A measurement of a stack's pool, from the stack's configuration and the current facts of its cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from busbar.config.cluster import Taint, Validation
from busbar.fabric.measure.facts import Facts
from busbar.fabric.measure.plan import CannotMeasure, Plan, runnable
from busbar.hosts.inventory import Inventory
from busbar.hosts.k3s import QUARANTINE
from busbar.kube import nodes as kube_nodes
from busbar.manifests import nccljob
from busbar.manifests.nccljob import NcclJob, TopologyFile
from busbar.names import VALIDATION_NAMESPACE
from busbar.text import listed

_QUARANTINE = Taint.model_validate(asdict(kube_nodes.NodeTaint.parse(QUARANTINE)))


def plan_pool(
    facts: Facts | None,
    inventory: Inventory,
    pool: str,
    run: str,
    *,
    nodes: Sequence[str] | None = None,
    idle: bool = False,
    partly: bool = False,
    deadline_seconds: int | None = None,
    validation: Validation | None = None,
    topology: TopologyFile | None = None,
    own_namespace: bool = False,
) -> Plan:
    """The measurement `run` of a pool as in an update, in the namespace of the stack's validation.

    `facts`: None for a run that has begun, which holds the GPUs of `nodes` itself.
    `nodes`: names of workers, possibly in quarantine; by default those of the pool that are not. `idle`: only
    workers whose GPUs are free, at least two, with pods that end for any other pod. `partly`: without workers
    that are `unusable`. `deadline_seconds`: upper limit for the job. `validation`: in place of that of the
    pool. `topology`: the file of `validation.topology_file`, read for this run. `own_namespace`: in a
    namespace of this run, where the cluster belongs to no stack.

    Raises CannotMeasure, and KeyError for a pool that the stack does not have.
    """
    validation = validation or inventory.cluster.validation_of(pool)
    if not validation.enabled:
        raise CannotMeasure(
            [
                f"validation.enabled is false: the stack has no namespace {VALIDATION_NAMESPACE}. Fix: set "
                "it to true and update, or measure with busbar nccl run"
            ]
        )
    named = [host.name for host in inventory.usable_of(pool)] if nodes is None else [*nodes]
    job = nccljob.resolve(inventory.cluster, pool, named, validation=validation, topology=topology)
    kept_away = inventory.unusable_of(pool)
    job = replace(
        job,
        namespace=f"busbar-{run}" if own_namespace else job.namespace,
        pool=run,
        taints=(*job.taints, *([_QUARANTINE] if set(kept_away) & set(named) else [])),
        deadline_seconds=min(job.deadline_seconds, deadline_seconds or job.deadline_seconds),
    )
    left_out = [name for name in kept_away if name not in named]
    notes = [f"in quarantine, left out: {listed(left_out)}"] if left_out else []
    asked = Plan(run, job, validation, owns_namespace=own_namespace, sources=(), notes=notes, idle=idle)
    found = runnable(facts, asked, partly=partly) if facts else asked
    return replace(found, sources=_sources(pool, found.job, idle=idle))


def _sources(pool: str, job: NcclJob, *, idle: bool) -> list[tuple[str, str, str]]:
    which = "whose GPUs are free" if idle else "that are not in quarantine"
    hcas = ", ".join(f"{name}={units}" for name, units in job.hca_resources.items())
    return [
        ("nodes", listed(job.nodes), f"workers of pool {pool} {which}"),
        ("gpus", str(job.gpus_per_node), f"pools.{pool}"),
        ("hcas", hcas or "none", f"pools.{pool}"),
        ("transport", job.transport, "validation"),
        ("image", job.image, "validation"),
        ("namespace", job.namespace, "validation"),
        ("deadline", f"{job.deadline_seconds} s", "validation" if not idle else "--minutes"),
    ]
