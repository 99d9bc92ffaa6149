"""From the facts of a cluster and a request to the job, with the source of each value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from busbar.collect.spec import CollectSpec, collect_spec
from busbar.config import Validation, section
from busbar.config.cluster import DEFAULT_TRANSPORT, HCA_RESOURCE, Gpus, Hardware, Taint
from busbar.exits import NoVerdict
from busbar.hosts.inventory import Inventory
from busbar.hosts.k3s import QUARANTINE
from busbar.judge.nccl.expected import profiles
from busbar.judge.nccl.expected.profiles import Profile
from busbar.judge.nccl.expected.system import gpu_name, is_gpu, models
from busbar.judge.nccl.units import exact
from busbar.kube import nodes as kube_nodes
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.gpus import IDLE_LABEL, GpuNode, active_pods, held_by
from busbar.kube.nodes import NODES
from busbar.kube.objects import find
from busbar.manifests import mpijob, nccljob
from busbar.manifests.mpijob import API_VERSION
from busbar.manifests.names import render_namespace
from busbar.manifests.nccljob import NcclJob, TopologyFile
from busbar.manifests.scheduling import GPU_RESOURCE, PRIORITY_CLASSES, priority_class, read_taints
from busbar.names import VALIDATION_NAMESPACE
from busbar.text import counted, listed
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
    return Facts(
        nodes=tuple(GpuNode.of(node, held) for node in found),
        runtime_classes=None if classes is None else frozenset(each["metadata"]["name"] for each in classes),
        serves_mpijobs=_serves_mpijobs(api),
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
    listed = _if_allowed(lambda: api.list("/apis/apps/v1/deployments")) or []
    found = [each for each in listed if _is_operator(each)]
    if any((each.get("status") or {}).get("availableReplicas") for each in found):
        return ()
    return tuple(
        f"Deployment {name} in {namespace} has no available pod, so no MPIJob runs. "
        f"Fix: kubectl -n {namespace} rollout status deployment {name}; where it is scaled to 0: "
        f"kubectl -n {namespace} scale deployment {name} --replicas 1"
        for name, namespace in ((each["metadata"]["name"], each["metadata"]["namespace"]) for each in found)
    )


def _is_operator(deployment: JsonObject) -> bool:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return any("mpi-operator" in str(each.get("image")) for each in containers)


def _serves_mpijobs(api: Api) -> bool:
    kinds = (find(api, f"/apis/{API_VERSION}") or {}).get("resources") or []
    return any(each["name"] == "mpijobs" for each in kinds)


RUN_LABEL = "busbar/nccl-run"
# A resource of the shared device plugin: a unit is a pod's access to all HCAs, not one HCA.
_SHARED = "rdma/"
_MAX_FINDINGS = 12
_MAX_NAMES = 8
MIN_IDLE_NODES = 2
_DEFAULT = "default of busbar"
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
        more = len(findings) - _MAX_FINDINGS
        shown = [*findings[:_MAX_FINDINGS], f"... and {more} more"] if more > 0 else findings
        super().__init__("\n".join(shown))


@dataclass(frozen=True, kw_only=True)
class Request:
    """The requested measurement. Unset fields are read from the cluster, then defaulted.

    `nodes`: a label selector, or names with commas. `expect_nodes`: number that must be measured. `hcas`:
    extended resource -> units of a worker pod. `rate_gbps`: of one rail. `namespace`: an existing one.
    `validation`: keys of `validation` in `busbar:cluster`. `of_file`: key of these -> the file that has it.
    """

    nodes: str | None = None
    expect_nodes: int | None = None
    gpus: int | None = None
    hcas: Mapping[str, int] | None = None
    rails: int | None = None
    rate_gbps: float | None = None
    namespace: str | None = None
    validation: Mapping[str, Any] = field(default_factory=dict)
    of_file: Mapping[str, str] = field(default_factory=dict)


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
        """Name of the PriorityClass of an idle run."""
        return f"busbar-{self.run}"

    def collect_spec(self, folder: str) -> CollectSpec:
        """The spec for collecting and judging the log of the job."""
        name = mpijob.render(self.job)["metadata"]["name"]
        return CollectSpec.model_validate(collect_spec(self.validation, self.job, name, folder=folder))


def plan(facts: Facts, request: Request, run: str, topology: TopologyFile | None = None) -> Plan:
    """The requested measurement `run`. `topology`: the file of `validation.topology_file`.

    Raises CannotMeasure, ConfigError for settings that are not valid, and UnknownProfileError.
    """
    return _Reader(facts, request).plan(run, topology)


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
    notes, more = [f"{text}; left out" for text in why.values()], len(why) - _MAX_NAMES
    shown = [*notes[:_MAX_NAMES], f"{more} more workers are left out"] if more > 0 else notes
    return replace(
        plan,
        job=replace(plan.job, nodes=tuple(free)),
        notes=[*shown, *plan.notes],
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


class _Reader:
    """Reads the values of a request one by one from an unknown cluster, and notes their sources."""

    def __init__(self, facts: Facts, request: Request) -> None:
        self._facts = facts
        self._request = request
        self._given = dict(request.validation)
        self._sources: list[tuple[str, str, str]] = []
        self._notes: list[str] = []
        self._findings: list[str] = []

    def plan(self, run: str, topology: TopologyFile | None) -> Plan:
        nodes = self._nodes()
        gpus = self._gpus(nodes)
        profile = self._profile(nodes, gpus)
        transport = self._first(
            "transport",
            (self._given.get("transport"), self._source("transport", "--transport")),
            (profile and profile.transport, "profile"),
            (DEFAULT_TRANSPORT, _DEFAULT),
        )
        hcas = self._hcas(nodes, profile, transport)
        hardware = self._hardware(nodes, gpus, profile, transport, hcas)
        taints = self._taints(nodes)
        own, asked = f"busbar-{run}", self._request.namespace
        namespace = self._first("namespace", (asked, "--namespace"), (own, "created for this run"))
        validation = self._validation()
        if len(nodes) == 1:
            self._notes.append("one Node: NVLink inside it is measured, and no fabric")
        if not self._facts.pods_known:
            self._notes.append("pods of other namespaces may not be listed: which GPUs are held is not known")
        job = nccljob.nccl_job(
            run,
            [node.hostname for node in nodes],
            hardware,
            validation,
            taints=taints,
            hca_resources=hcas,
            topology=topology,
            namespace=namespace,
        )
        made = Plan(run, job, validation, asked is None, self._sources, self._notes)
        return runnable(self._facts, made, self._findings, by_name=True)

    def _first(self, name: str, *choices: tuple[Any, str]) -> Any:
        """The first known value, whose source is noted; None without one."""
        for value, source in choices:
            if value is not None:
                pairs = [f"{k}={v}" for k, v in value.items()] if isinstance(value, Mapping) else [value]
                texts = (f"{each:g}" if isinstance(each, float) else str(each) for each in pairs)
                self._sources.append((name, ", ".join(texts) or "none", source))
                return value
        return None

    def _source(self, key: str, otherwise: str) -> str:
        """The file of settings that has a key of `validation`, else `otherwise`."""
        return self._request.of_file.get(key, otherwise)

    def _nodes(self) -> list[GpuNode]:
        """The Nodes to measure. Raises CannotMeasure without any."""
        asked, known = self._request.nodes, {each.node.name: each for each in self._facts.nodes}
        missing: list[str] = []
        if not asked:
            having = [each for each in known.values() if GPU_RESOURCE in each.offered or each.product]
            out = {each.node.name: why for each in having if (why := _left_out(each))}
            chosen = [each for each in having if each.node.name not in out]
            self._notes += [f"{name} is left out: {why}" for name, why in out.items()]
            # A quarantine means that a Node is to be left out. A cordon, or a gone kubelet, does not.
            missing = [f"{name} ({why})" for name, why in out.items() if not known[name].node.quarantine]
            source = f"cluster: all Nodes with {GPU_RESOURCE}"
        else:
            names = list(known) if is_selector(asked) else list(dict.fromkeys(asked.strip(",").split(",")))
            self._findings += [f"{name}: no such Node" for name in names if name not in known]
            chosen = [known[name] for name in names if name in known]
            source = "--nodes"
        if not chosen:
            where = f"Node of --nodes {asked}" if asked else f"usable Node with {GPU_RESOURCE}"
            raise CannotMeasure([*self._findings, *self._notes, f"no {where}. Fix: see kubectl get nodes"])
        self._first("nodes", (listed([each.node.name for each in chosen]), source))
        self._findings += self._wrong_number([each.node.name for each in chosen], missing)
        return chosen

    def _wrong_number(self, chosen: Sequence[str], missing: Sequence[str]) -> list[str]:
        """Why a pass on the chosen Nodes would not be about the requested ones."""
        asked, expected, count = self._request.nodes, self._request.expect_nodes, len(chosen)
        allow = f"--nodes {','.join(chosen) if count <= _MAX_NAMES else 'NAMES'}, or --expect-nodes {count}"
        if count == expected:
            return []
        if expected:
            found = (
                f"{counted(count, 'Node')} can be measured ({listed(chosen)}), --expect-nodes is {expected}"
            )
            return [f"{found}. Fix: see kubectl get nodes, or --expect-nodes {count}"]
        if missing:
            found = f"{len(missing)} of {count + len(missing)} Nodes with GPUs cannot be measured"
            return [f"{found}: {listed(missing)}. Fix: repair them, or measure without them: {allow}"]
        if count == 1 and (not asked or is_selector(asked)):
            return [f"one Node, {chosen[0]}, has no fabric to measure. Fix: for NVLink inside it, {allow}"]
        return []

    def _gpus(self, nodes: Sequence[GpuNode]) -> int:
        """GPUs per Node. Raises CannotMeasure if the Nodes differ."""
        asked = self._request.gpus
        kinds: dict[tuple[int, str], list[str]] = {}
        for node in nodes:
            count = asked or node.offered.get(GPU_RESOURCE, 0)
            kinds.setdefault((count, node.product), []).append(node.node.name)
        if len(kinds) > 1:
            found = "; ".join(f"{n} x {gpu or 'GPU'}: {listed(of)}" for (n, gpu), of in kinds.items())
            raise CannotMeasure(
                [*self._findings, f"the Nodes differ ({found}). Fix: select Nodes of one kind with --nodes"]
            )
        [(count, _)] = kinds
        return int(self._first("gpus", (asked, "--gpus"), (count, f"cluster: allocatable {GPU_RESOURCE}")))

    def _profile(self, nodes: Sequence[GpuNode], gpus: int) -> Profile | None:
        known = [profiles.load(name) for name in profiles.names()]
        fitting = [each.name for each in known if self._fits(each, nodes, gpus)]
        only = fitting[0] if len(fitting) == 1 else None
        asked = self._given.get("profile")
        given = (asked, self._source("profile", "--profile"))
        name = self._first("profile", given, (only, "cluster: the only profile that fits"))
        if name is None:
            self._notes += (
                [f"several profiles fit ({', '.join(fitting)}): select one with --profile"] if fitting else []
            )
            return None
        self._given["profile"] = name
        profile, product = profiles.load(name), nodes[0].product
        if product and is_gpu(product, profile.gpu) is False:
            self._findings.append(
                f"profile {name} is for {profile.gpu}, the Nodes have {product}. Fix: another --profile"
            )
        if profile.transport == "socket" and "transport" not in self._given and (hcas := _known_hcas(nodes)):
            self._findings.append(
                f"profile {name} is for TCP, the Nodes offer {', '.join(hcas)}. Fix: another --profile, or "
                "--transport socket"
            )
        return profile

    def _fits(self, profile: Profile, nodes: Sequence[GpuNode], gpus: int) -> bool:
        """Whether the Nodes match a profile. Never one with SHARP or host files, which they do not show.

        Nor does one of TCP: HCAs that no device plugin offers must not become a gate without a floor.
        """
        hidden = profile.algorithm == "sharp" or profile.topology_file or profile.host_paths
        hcas = _known_hcas(nodes) if self._request.hcas is None else self._request.hcas
        same_gpus = profile.gpus_per_node == gpus and is_gpu(nodes[0].product, profile.gpu) is True
        same_hcas = hcas == {profile.hca_resource: profile.hca_count}
        return same_gpus and same_hcas and profile.transport != "socket" and not hidden

    def _hcas(self, nodes: Sequence[GpuNode], profile: Profile | None, transport: str) -> dict[str, int]:
        """The HCAs of a worker pod."""
        known = _known_hcas(nodes)
        of_profile = profile and profile.hca_resource in known and {profile.hca_resource: profile.hca_count}
        found = self._first(
            "hcas",
            (self._request.hcas, "--hca"),
            ({} if transport == "socket" else None, "transport socket"),
            (of_profile or None, "profile"),
            (known if len(known) == 1 else None, "cluster: allocatable, a known name"),
        )
        if found is None:
            offered = sorted({name for node in nodes for name in node.offered} - {GPU_RESOURCE})
            why = f"several resources are HCAs: {', '.join(known)}" if known else "no known HCA resource"
            self._findings.append(
                f"{why} (the Nodes offer: {', '.join(offered) or 'none'}). Fix: --hca NAME=UNITS, or "
                "--transport socket for TCP"
            )
        return dict(found or {})

    def _hardware(
        self,
        nodes: Sequence[GpuNode],
        gpus: int,
        profile: Profile | None,
        transport: str,
        hcas: Mapping[str, int],
    ) -> Gpus:
        counted = sum(units for name, units in hcas.items() if not name.startswith(_SHARED))
        rails = self._first(
            "rails",
            (self._request.rails, "--rails"),
            ((profile and profile.rails) or None, "profile"),
            (counted or None, "the number of HCAs"),
        )
        rate = self._first(
            "rate_gbps",
            (self._request.rate_gbps, "--rate-gbps"),
            ((profile and profile.rate_gbps) or None, "profile"),
        )
        model = gpu_name(nodes[0].product) if models(nodes[0].product) else None
        # Over TCP neither rails nor their rate count.
        if transport != "socket" and rails and rate:
            return Hardware(gpus=gpus, gpu_model=model, rails=rails, rate_gbps=rate)
        if transport != "socket":
            self._findings.append(
                "rails per Node and their rate are not known: the API does not tell them. Fix: --profile "
                "(busbar nccl profiles lists them), or --rails and --rate-gbps"
            )
        return Gpus(gpus=gpus, gpu_model=model)

    def _taints(self, nodes: Sequence[GpuNode]) -> list[Taint]:
        taints = {taint for node in nodes for taint in node.node.taints}
        self._first("tolerations", (", ".join(sorted(map(str, taints))), "cluster: taints of the Nodes"))
        return read_taints(map(asdict, taints))

    def _validation(self) -> Validation:
        given, classes = self._given, self._facts.runtime_classes
        if "runtime_class" not in given and classes is not None:
            found = "nvidia" if "nvidia" in classes else ""
            given["runtime_class"] = self._first("runtimeClass", (found, "cluster"))
        validation = section(Validation, "validation", given)
        for key in ("image", "min_bytes", "max_bytes"):
            is_of_profile = getattr(validation.system, key, None) is not None
            source = self._source(key, "given") if key in given else "profile" if is_of_profile else _DEFAULT
            found = validation.chosen(key)
            self._first(key, (found if key == "image" else exact(found), source))
        self._first(
            "expected",
            (
                validation.expected_busbw_gbps,
                f"{self._source('expected_busbw_gbps', '--expected-busbw')}, GB/s",
            ),
            # TCP has no line rate.
            (None if validation.required_transport == "socket" else "computed", "rails, rate and GPUs"),
        )
        return validation


def _left_out(node: GpuNode) -> str | None:
    """Why a Node is only measured if it is named; None if it is always measured."""
    if node.node.quarantine:
        return f"in quarantine: {node.node.quarantine}"
    return node.unfit or (None if node.offered.get(GPU_RESOURCE) else f"0 {GPU_RESOURCE} allocatable")


def _known_hcas(nodes: Sequence[GpuNode]) -> dict[str, int]:
    """HCA resource that every Node offers -> units of a pod that uses all of a Node's HCAs."""
    names = {HCA_RESOURCE, *(profiles.load(name).hca_resource for name in profiles.names())}
    common = set.intersection(*({name for name, units in node.offered.items() if units} for node in nodes))
    return {
        name: 1 if name.startswith(_SHARED) else max(node.offered[name] for node in nodes)
        for name in sorted(common)
        if name in names or name.startswith(_SHARED)
    }


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
