"""A measurement on the Nodes of a cluster that can run it now, and that of a pool of a stack."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from busbar.collect.spec import CollectSpec, collect_spec
from busbar.config import Validation
from busbar.config.cluster import Taint
from busbar.exits import Misuse, NoVerdict
from busbar.hosts.inventory import Inventory
from busbar.hosts.k3s import QUARANTINE
from busbar.kube import nodes as kube_nodes
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.gpus import IDLE_LABEL, GpuNode, active_pods, held_by
from busbar.kube.nodes import NODES
from busbar.kube.objects import find
from busbar.manifests import mpijob, nccljob
from busbar.manifests.mpijob import API_VERSION
from busbar.manifests.names import render_namespace
from busbar.manifests.nccljob import NcclJob, TopologyFile
from busbar.manifests.scheduling import GPU_RESOURCE, PRIORITY_CLASSES, priority_class
from busbar.names import VALIDATION_NAMESPACE
from busbar.text import listed
from busbar.versions import MPI_OPERATOR_IMAGE

# One name or several, which are not a selector by its grammar.
_NAMES = re.compile(r"[a-z0-9.,-]+")


@dataclass(frozen=True)
class Facts:
    """A cluster. `runtime_classes` and the devices held by pods are None without permission to read them.

    `nodes`: those of the request, else all. `serves_mpijobs`: in the version of the job. `stopped_operators`:
    why nobody would run the job; empty also without permission to read Deployments.
    """

    nodes: tuple[GpuNode, ...]
    runtime_classes: frozenset[str] | None
    serves_mpijobs: bool
    pods_known: bool = True
    stopped_operators: tuple[str, ...] = ()


def is_selector(nodes: str) -> bool:
    """Whether `nodes` is a label selector and not a list of names."""
    return not _NAMES.fullmatch(nodes)


def read_facts(api: Api, nodes: str | None, *, idle: bool = False) -> Facts:
    """The facts of a cluster, of the Nodes that `nodes` selects or of all. Raises ApiError.

    `idle`: for a measurement that ends no pod, so those of another idle one hold their GPUs.
    """
    query = {"labelSelector": nodes} if nodes and is_selector(nodes) else {}
    found = api.list(NODES, **query)
    pods = _if_allowed(lambda: active_pods(api))
    classes = _if_allowed(lambda: api.list("/apis/node.k8s.io/v1/runtimeclasses"))
    held = held_by(pods or [], idle=idle)
    kinds = (find(api, f"/apis/{API_VERSION}") or {}).get("resources") or []
    return Facts(
        nodes=tuple(GpuNode.of(node, held) for node in found),
        runtime_classes=None if classes is None else frozenset(each["metadata"]["name"] for each in classes),
        serves_mpijobs=any(each["name"] == "mpijobs" for each in kinds),
        pods_known=pods is not None,
        stopped_operators=_stopped_operators(api),
    )


def _if_allowed(read: Callable[[], list[JsonObject]]) -> list[JsonObject] | None:
    try:
        return read()
    except ApiError as error:
        if error.status != 403:
            raise
        return None


def _stopped_operators(api: Api) -> tuple[str, ...]:
    """The Deployments of the MPI Operator, if none of them has a pod that is available."""
    found = [
        each
        for each in _if_allowed(lambda: api.list("/apis/apps/v1/deployments")) or []
        for container in each["spec"]["template"]["spec"]["containers"]
        if "mpi-operator" in str(container.get("image"))
    ]
    if any((each.get("status") or {}).get("availableReplicas") for each in found):
        return ()
    return tuple(
        f"Deployment {name} in {namespace} has no available pod, so no MPIJob runs. "
        f"Fix: kubectl -n {namespace} rollout status deployment {name}; where it is scaled to 0: "
        f"kubectl -n {namespace} scale deployment {name} --replicas 1"
        for name, namespace in ((each["metadata"]["name"], each["metadata"]["namespace"]) for each in found)
    )


RUN_LABEL = "busbar/nccl-run"
MAX_LINES = 12
MIN_IDLE_NODES = 2
NO_MPIJOBS = (
    f"the API serves no MPIJobs of {mpijob.API_VERSION}. Fix: install the MPI Operator: kubectl apply "
    "--server-side -f https://raw.githubusercontent.com/kubeflow/mpi-operator/"
    f"v{MPI_OPERATOR_IMAGE.rpartition(':')[2]}/deploy/v2beta1/mpi-operator.yaml. Where the Training Operator "
    "serves MPIJobs of v1, take them out of its --enable-scheme and delete the CRD mpijobs.kubeflow.org "
    "first, which deletes every MPIJob of the cluster"
)


class CannotMeasure(NoVerdict):
    """The cluster cannot run the requested measurement: one finding per line, each with a fix."""

    def __init__(self, findings: Sequence[str]) -> None:
        super().__init__("\n".join(_shortened(findings)))


def _shortened(lines: Sequence[str]) -> Sequence[str]:
    more = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], f"... and {more} more"] if more > 0 else lines


@dataclass(frozen=True)
class Plan:
    """A measurement that can run. `sources`: (name, value, source of the value). `notes`: for the user.

    `idle`: its pods end for any other pod. `missing`: why Nodes that should be measured are left out; a pass
    says nothing of these.
    """

    run: str
    job: NcclJob
    validation: Validation
    owns_namespace: bool
    sources: Sequence[tuple[str, str, str]]
    notes: Sequence[str]
    idle: bool = False
    missing: Sequence[str] = ()

    def objects(self, annotations: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
        """The objects to create, in this order: the collection in the API and the manifest."""
        job = self.job
        inside = f"namespaces/{job.namespace}"
        made: list[tuple[str, dict[str, Any]]] = []
        if self.idle:
            made.append((PRIORITY_CLASSES, priority_class(self.priority)))
        if self.owns_namespace:
            # Locked memory and folders of the host need the privileged level; sshd as root the baseline.
            is_plain = job.transport == "socket" and not job.host_paths
            level = render_namespace(job.namespace, "baseline" if is_plain else "privileged")
            made.append(("/api/v1/namespaces", level))
        if job.topology:
            made.append((f"/api/v1/{inside}/configmaps", job.topology.manifest))
        manifest = mpijob.render(job)
        for template in _templates(manifest) if self.idle else ():
            template["metadata"]["labels"][IDLE_LABEL] = "true"
            template["spec"]["priorityClassName"] = self.priority
        made.append((f"/apis/{mpijob.API_VERSION}/{inside}/mpijobs", manifest))
        return [(path, marked(manifest, self.run, annotations)) for path, manifest in made]

    @property
    def priority(self) -> str:
        return f"busbar-{self.run}"

    def collect_spec(self, folder: str) -> CollectSpec:
        name = mpijob.render(self.job)["metadata"]["name"]
        return CollectSpec.model_validate(collect_spec(self.validation, self.job, name, folder=folder))


def runnable(
    facts: Facts, plan: Plan, findings: Sequence[str] = (), *, partly: bool = False, by_name: bool = False
) -> Plan:
    """The plan on those of its Nodes that can run the job now.

    `findings`: other reasons why the job cannot run. `partly`: without Nodes that are `unusable`; an idle run
    may always leave out some. `by_name`: the Nodes are those of --nodes. Raises CannotMeasure.
    """
    why, known = unusable(facts, plan.job), {each.hostname: each for each in facts.nodes}
    held = {name for name in why if name in known and _busy(known[name], plan.job)}
    free, count = [name for name in plan.job.nodes if name not in why], len(plan.job.nodes)
    found = [*findings, *([] if facts.serves_mpijobs else [NO_MPIJOBS]), *facts.stopped_operators]
    if plan.idle and not facts.pods_known:
        found.append("the pods of all namespaces may not be listed, so no GPU is known to be free")
    if plan.idle and len(free) < MIN_IDLE_NODES:
        found.append(f"{len(free)} of {count} workers are idle, {MIN_IDLE_NODES} are needed")
    if by_name:
        wait = dict.fromkeys(held, ", or wait until these pods have ended")
        found += [f"{why[name]}. Fix: exclude it with --nodes{wait.get(name, '')}" for name in why]
    elif why and not (partly or plan.idle):
        found.append(
            f"{len(why)} of {count} workers cannot be measured now. Fix: repair them or put them in "
            "quarantine; where pods hold GPUs, wait for their end"
        )
    if found:
        raise CannotMeasure(found if by_name else [*found, *why.values()])
    left_out = _shortened([f"{text}; left out" for text in why.values()])
    alone = ["one Node: NVLink inside it is measured, and no fabric"] if len(free) == 1 else []
    return replace(
        plan,
        job=replace(plan.job, nodes=tuple(free)),
        notes=[*left_out, *plan.notes, *alone],
        # GPUs that pods hold are the only reason for leaving out a Node that `idle` intends.
        missing=tuple(text for name, text in why.items() if name not in held),
    )


def unusable(facts: Facts, job: NcclJob) -> dict[str, str]:
    """Node of the job -> why no worker can start on it now."""
    known = {each.hostname: each for each in facts.nodes}
    why = {
        name: _unusable(known[name], job) if name in known else f"{name}: no such Node" for name in job.nodes
    }
    return {name: text for name, text in why.items() if text}


def _unusable(node: GpuNode, job: NcclJob) -> str | None:
    """Why no worker of the job can start on the Node now; None if one can."""
    if node.unfit:
        return f"{node.node.name} is {node.unfit}"
    tolerated = {(each.key, each.value, each.effect) for each in job.taints}
    for taint in node.node.taints:
        is_known = (taint.key, taint.value, taint.effect) in tolerated or taint.key == GPU_RESOURCE
        if not is_known and taint.effect != "PreferNoSchedule":
            by = f" of {node.node.owner}" if node.node.owner else ""
            return f"{node.node.name} has the taint {taint}{by}, which is not one of its pool"
    few = (node.lacks(resource, units) for resource, units in _needs(job).items())
    return next(filter(None, few), None) or _busy(node, job)


def _busy(node: GpuNode, job: NcclJob) -> str | None:
    """The pods that hold the devices a worker of the job needs; None if these are free."""
    return next(filter(None, (node.busy(name, units) for name, units in _needs(job).items())), None)


def _needs(job: NcclJob) -> dict[str, int]:
    return {GPU_RESOURCE: job.gpus_per_node, **job.hca_resources}


def marked(manifest: dict[str, Any], run: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    """The manifest with the run's label, on its pods too."""
    for each in (manifest, *_templates(manifest)):
        each["metadata"]["labels"] = {**each["metadata"].get("labels", {}), RUN_LABEL: run}
    manifest["metadata"]["annotations"] = {**manifest["metadata"].get("annotations", {}), **annotations}
    return manifest


def _templates(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The pod templates of an MPIJob; empty for another object."""
    return [each["template"] for each in manifest.get("spec", {}).get("mpiReplicaSpecs", {}).values()]


def read_topology(validation: Validation, run: str, folder: Path) -> TopologyFile | None:
    """The file of `validation.topology_file`, for a run. Raises Misuse if it cannot be read."""
    if validation.topology_file is None:
        return None
    path = folder / validation.topology_file
    try:
        return TopologyFile.read(run, path)
    except OSError as error:
        raise Misuse(f"{path}: {error.strerror}") from None


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
    project: Path = Path(),
    own_namespace: bool = False,
) -> Plan:
    """The measurement `run` of a pool as in an update, in the namespace of the stack's validation.

    `facts`: None for a run that has begun, which holds the GPUs of `nodes` itself.
    `nodes`: names of workers, possibly in quarantine; by default those of the pool that are not. `idle`: only
    workers whose GPUs are free, at least two, with pods that end for any other pod. `partly`: without workers
    that are `unusable`. `deadline_seconds`: upper limit for the job. `validation`: in place of that of the
    pool. `project`: the folder in which `validation.topology_file` is. `own_namespace`: in a namespace of
    this run, where the cluster belongs to no stack.

    Raises CannotMeasure, as `read_topology`, and KeyError for a pool that the stack does not have.
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
    topology = read_topology(validation, run, project)
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
    return replace(found, sources=[("nodes", listed(found.job.nodes), f"pool {pool}")])
