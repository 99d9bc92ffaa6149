"""A measurement of a pool of a stack, from the stack's configuration and what its cluster says now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from busbar.config.pools import Taint
from busbar.config.validation import Validation
from busbar.fabric.measure.facts import Facts
from busbar.fabric.measure.plan import NO_MPIJOBS, CannotMeasure, Plan
from busbar.hosts.inventory import Inventory
from busbar.hosts.k3s import QUARANTINE
from busbar.kube import nodes as kube_nodes
from busbar.kube.gpus import GpuNode
from busbar.manifests import nccljob
from busbar.manifests.nccljob import NcclJob, TopologyFile
from busbar.manifests.scheduling import GPU_RESOURCE
from busbar.text import listed

MIN_IDLE_NODES = 2
_QUARANTINE = Taint.model_validate(asdict(kube_nodes.NodeTaint.parse(QUARANTINE)))
_MAX_NOTES = 8


def plan_pool(
    facts: Facts,
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
) -> Plan:
    """The measurement `run` of a pool as an update measures it, in the namespace of the stack's validation.

    `nodes`: names of workers, also in quarantine; by default those of the pool that are not. `idle`: only
    those whose GPUs are free, at least two, with pods that end for any other one. `partly`: without those
    that are `unusable`. `deadline_seconds`: at most, of the job. `validation`: another one than
    that of the pool. `topology`: the file of `validation.topology_file`, read for this run.

    Raises CannotMeasure, and KeyError for a pool that the stack does not have.
    """
    validation = validation or inventory.cluster.validation_of(pool)
    if not validation.enabled:
        raise CannotMeasure(
            [
                f"validation.enabled is false: the stack has no namespace {validation.namespace}. Fix: set "
                "it to true and update, or measure with busbar nccl run"
            ]
        )
    named = [host.name for host in inventory.usable_of(pool)] if nodes is None else [*nodes]
    job = nccljob.resolve(inventory.cluster, pool, named, validation=validation, topology=topology)
    kept_away = inventory.unusable_of(pool)
    job = replace(
        job,
        pool=run,
        taints=(*job.taints, *([_QUARANTINE] if set(kept_away) & set(named) else [])),
        deadline_seconds=min(job.deadline_seconds, deadline_seconds or job.deadline_seconds),
    )
    why = unusable(facts, job)
    chosen, notes = _usable(facts, job, why, idle=idle, partly=partly or idle)
    held = {each.node.name for each in facts.nodes if _busy(each, job)}
    if left_out := [name for name in kept_away if name not in named]:
        notes.append(f"in quarantine, left out: {listed(left_out)}")
    job = replace(job, nodes=tuple(chosen))
    return Plan(
        run,
        job,
        validation,
        owns_namespace=False,
        sources=_sources(pool, job, idle=idle),
        notes=notes,
        idle=idle,
        # Only GPUs that pods hold are a reason to be left out that `idle` asks for.
        missing=tuple(text for name, text in why.items() if name not in held),
    )


def unusable(facts: Facts, job: NcclJob) -> dict[str, str]:
    """Node of the job -> why no worker can start on it now."""
    known = {each.node.name: each for each in facts.nodes}
    why = {name: _unusable(name, known.get(name), job) for name in job.nodes}
    return {name: text for name, text in why.items() if text}


def _usable(
    facts: Facts, job: NcclJob, why: Mapping[str, str], *, idle: bool, partly: bool
) -> tuple[list[str], list[str]]:
    """The Nodes of the job that can run it now, and notes. Raises CannotMeasure where that is not enough."""
    free = [name for name in job.nodes if name not in why]
    problems = [*why.values()]
    findings = [] if facts.serves_mpijobs else [NO_MPIJOBS]
    if idle and not facts.pods_known:
        findings.append("the pods of all namespaces may not be listed, so no GPU is known to be free")
    if idle and len(free) < MIN_IDLE_NODES:
        findings.append(f"{len(free)} of {len(job.nodes)} workers are idle, {MIN_IDLE_NODES} are needed")
    if problems and not partly:
        findings.append(
            f"{len(problems)} of {len(job.nodes)} workers cannot be measured now. Fix: repair them or put "
            "them in quarantine; where pods hold GPUs, wait for their end"
        )
    if findings:
        raise CannotMeasure([*findings, *problems])
    more = len(problems) - _MAX_NOTES
    notes = [f"{text}; left out" for text in problems[:_MAX_NOTES]]
    return free, [*notes, *([f"{more} more workers are left out"] if more > 0 else [])]


def _unusable(name: str, node: GpuNode | None, job: NcclJob) -> str | None:
    """Why no worker of the job can start on the Node now; None where one can."""
    if node is None:
        return f"{name}: no such Node"
    if node.unfit:
        return f"{name} is {node.unfit}"
    tolerated = {(each.key, each.value, each.effect) for each in job.taints}
    for taint in node.node.taints:
        is_known = (taint.key, taint.value, taint.effect) in tolerated or taint.key == GPU_RESOURCE
        if not is_known and taint.effect != "PreferNoSchedule":
            return f"{name} has the taint {taint}, which is not one of its pool"
    few = (node.lacks(resource, units) for resource, units in _needs(job).items())
    return next(filter(None, few), None) or _busy(node, job)


def _busy(node: GpuNode, job: NcclJob) -> str | None:
    """Which pods hold what a worker of the job needs; None where it is free."""
    return next(filter(None, (node.busy(name, units) for name, units in _needs(job).items())), None)


def _needs(job: NcclJob) -> dict[str, int]:
    return {GPU_RESOURCE: job.gpus_per_node, **job.hca_resources}


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
