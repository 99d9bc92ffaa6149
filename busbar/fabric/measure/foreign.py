"""A measurement on a cluster that busbar did not create: its rights, and the plan that is read from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from busbar.config import Validation, section
from busbar.config.cluster import DEFAULT_TRANSPORT, HCA_RESOURCE, Gpus, Hardware
from busbar.fabric.measure.plan import (
    MAX_LINES,
    CannotMeasure,
    Facts,
    Plan,
    is_selector,
    read_topology,
    runnable,
)
from busbar.judge.nccl.expected import profiles
from busbar.judge.nccl.expected.profiles import Profile
from busbar.judge.nccl.expected.system import gpu_name, is_gpu, models
from busbar.judge.nccl.units import exact
from busbar.kube.client import Api
from busbar.kube.gpus import GpuNode
from busbar.manifests import nccljob
from busbar.manifests.scheduling import GPU_RESOURCE, read_taints
from busbar.text import counted, listed

# A resource of the shared device plugin: a unit is a pod's access to all HCAs, not one HCA.
_SHARED = "rdma/"
_DEFAULT = "default of busbar"

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_REVIEW = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
_Rights = Mapping[str, Sequence[str]]
"""RESOURCE or RESOURCE/SUBRESOURCE, with .GROUP -> verbs. docs/measuring.md has them as roles."""

_IN_CLUSTER: _Rights = {"nodes": ("list",)}
_IN_NAMESPACE: _Rights = {
    "mpijobs.kubeflow.org": ("create", "get", "list", "patch", "delete"),
    "configmaps": ("create", "get", "list", "delete"),
    "pods": ("create", "get", "list"),
    "pods/log": ("get",),
    "events": ("list",),
}
_OWN_NAMESPACE: _Rights = {"namespaces": ("create", "get", "list", "delete")}


def require_rights(api: Api, namespace: str | None) -> None:
    """Raise CannotMeasure with all missing permissions of a run in `namespace`; None: in its own namespace.

    Raises ApiError if the API does not tell the permissions.
    """
    inside = _IN_NAMESPACE if namespace else {**_OWN_NAMESPACE, **_IN_NAMESPACE}
    missing = ""
    for rights, where in ((_IN_CLUSTER, ""), (inside, namespace or "")):
        for name, verb in ((name, verb) for name, verbs in rights.items() for verb in verbs):
            resource, _, group = name.partition(".")
            kind, _, subresource = resource.partition("/")
            asked = {"verb": verb, "group": group, "resource": kind, "namespace": where}
            spec = {"resourceAttributes": {**asked, "subresource": subresource}}
            if not api.create(_REVIEWS, {**_REVIEW, "spec": spec})["status"]["allowed"]:
                missing += f"\n  {name}: {verb}"
    if missing:
        where = f"in namespace {namespace}" if namespace else "in all namespaces"
        roles = "Role and ClusterRole of `busbar docs measuring Rights`"
        fix = f"apply the {roles}" if namespace else f"--namespace NAME, one with the {roles}"
        found = f"rights of a run {where} are missing; nothing was created:{missing}\nFix: {fix}"
        raise CannotMeasure([found])


@dataclass(frozen=True, kw_only=True)
class Request:
    """The requested measurement. Unset fields are read from the cluster, then defaulted.

    `nodes`: a label selector, or names with commas. `expect_nodes`: number that must be measured. `hcas`:
    extended resource -> units of a worker pod. `rate_gbps`: of one rail. `namespace`: an existing one.
    `validation`: keys of `validation` in `busbar:cluster`. `project`: the folder in which
    `validation.topology_file` is.
    """

    nodes: str | None = None
    expect_nodes: int | None = None
    gpus: int | None = None
    hcas: Mapping[str, int] | None = None
    rails: int | None = None
    rate_gbps: float | None = None
    namespace: str | None = None
    validation: Mapping[str, Any] = field(default_factory=dict)
    project: Path = Path()


def plan(facts: Facts, request: Request, run: str) -> Plan:
    """The requested measurement `run`.

    Raises CannotMeasure, ConfigError for settings that are not valid, UnknownProfileError, and as
    `read_topology`.
    """
    return _Reader(facts, request).plan(run)


class _Reader:
    """Reads the values of a request one by one from an unknown cluster, and notes their sources."""

    def __init__(self, facts: Facts, request: Request) -> None:
        self._facts, self._request = facts, request
        self._given = dict(request.validation)
        self._sources: list[tuple[str, str, str]] = []
        self._notes: list[str] = []
        self._findings: list[str] = []
        self._nodes = self._chosen()
        names = {HCA_RESOURCE, *(profiles.load(name).hca_resource for name in profiles.names())}
        offered = ({name for name, units in node.offered.items() if units} for node in self._nodes)
        # HCA resource that every Node offers -> units of a pod that uses all of a Node's HCAs.
        self._known_hcas = {
            name: 1 if name.startswith(_SHARED) else max(node.offered[name] for node in self._nodes)
            for name in sorted(set.intersection(*offered))
            if name in names or name.startswith(_SHARED)
        }

    def plan(self, run: str) -> Plan:
        asked = self._request.namespace
        gpus = self._gpus()
        profile = self._profile(gpus)
        transport = self._first(
            "transport",
            (self._given.get("transport"), "given"),
            (profile and profile.transport, "profile"),
            (DEFAULT_TRANSPORT, _DEFAULT),
        )
        hcas = self._hcas(profile, transport)
        hardware = self._hardware(gpus, profile, transport, hcas)
        taints = {taint for node in self._nodes for taint in node.node.taints}
        self._first("tolerations", (", ".join(sorted(map(str, taints))), "cluster: taints of the Nodes"))
        namespace = self._first(
            "namespace", (asked, "--namespace"), (f"busbar-{run}", "created for this run")
        )
        validation = self._validation()
        if not self._facts.pods_known:
            self._notes.append("pods of other namespaces may not be listed: which GPUs are held is not known")
        job = nccljob.nccl_job(
            run,
            [node.hostname for node in self._nodes],
            hardware,
            validation,
            taints=read_taints(map(asdict, taints)),
            hca_resources=hcas,
            topology=read_topology(validation, run, self._request.project),
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

    def _chosen(self) -> list[GpuNode]:
        """The Nodes to measure. Raises CannotMeasure without any."""
        asked, known = self._request.nodes, {each.node.name: each for each in self._facts.nodes}
        out: dict[str, str] = {}
        if asked and not is_selector(asked):
            names = list(dict.fromkeys(asked.strip(",").split(",")))
            self._findings += [f"{name}: no such Node" for name in names if name not in known]
            chosen = [known[name] for name in names if name in known]
        else:
            having = [
                node for node in known.values() if asked or GPU_RESOURCE in node.offered or node.product
            ]
            out = {each.node.name: why for each in having if (why := _left_out(each))}
            chosen = [each for each in having if each.node.name not in out]
        self._notes += [f"{name} is left out: {why}" for name, why in out.items()]
        # A quarantine means that a Node is to be left out. A cordon, or a gone kubelet, does not.
        missing = [f"{name} ({why})" for name, why in out.items() if not known[name].node.quarantine]
        source = "--nodes" if asked else f"cluster: all Nodes with {GPU_RESOURCE}"
        if not chosen:
            where = f"Node of --nodes {asked}" if asked else f"usable Node with {GPU_RESOURCE}"
            raise CannotMeasure([*self._findings, *self._notes, f"no {where}. Fix: see kubectl get nodes"])
        self._first("nodes", (listed([each.node.name for each in chosen]), source))
        self._findings += self._wrong_number([each.node.name for each in chosen], missing)
        return chosen

    def _wrong_number(self, chosen: Sequence[str], missing: Sequence[str]) -> list[str]:
        """Why a pass on the chosen Nodes would not be about the requested ones."""
        asked, expected, count = self._request.nodes, self._request.expect_nodes, len(chosen)
        allow = f"--nodes {','.join(chosen) if count <= MAX_LINES else 'NAMES'}, or --expect-nodes {count}"
        if count == expected:
            return []
        if expected:
            found = f"{counted(count, 'Node')} can be measured ({listed(chosen)})"
            fix = f"Fix: see kubectl get nodes, or --expect-nodes {count}"
            return [f"{found}, --expect-nodes is {expected}. {fix}"]
        if missing:
            found = f"{len(missing)} of {count + len(missing)} Nodes with GPUs cannot be measured"
            return [f"{found}: {listed(missing)}. Fix: repair them, or measure without them: {allow}"]
        if count == 1 and (not asked or is_selector(asked)):
            return [f"one Node, {chosen[0]}, has no fabric to measure. Fix: for NVLink inside it, {allow}"]
        return []

    def _gpus(self) -> int:
        """GPUs per Node. Raises CannotMeasure if the Nodes differ."""
        asked = self._request.gpus
        kinds: dict[tuple[int, str], list[str]] = {}
        for node in self._nodes:
            count = asked or node.offered.get(GPU_RESOURCE, 0)
            kinds.setdefault((count, node.product), []).append(node.node.name)
        if len(kinds) > 1:
            found = "; ".join(f"{n} x {gpu or 'GPU'}: {listed(of)}" for (n, gpu), of in kinds.items())
            fix = "Fix: select Nodes of one kind with --nodes"
            raise CannotMeasure([*self._findings, f"the Nodes differ ({found}). {fix}"])
        [(count, _)] = kinds
        return int(self._first("gpus", (asked, "--gpus"), (count, f"cluster: allocatable {GPU_RESOURCE}")))

    def _profile(self, gpus: int) -> Profile | None:
        product, known = self._nodes[0].product, map(profiles.load, profiles.names())
        fitting = [each.name for each in known if self._fits(each, product, gpus)]
        name = self._first(
            "profile",
            (self._given.get("profile"), "given"),
            (fitting[0] if len(fitting) == 1 else None, "cluster: the only profile that fits"),
        )
        if name is None:
            if fitting:
                several = f"several profiles fit ({', '.join(fitting)}): select one with --profile"
                self._notes.append(several)
            return None
        self._given["profile"] = name
        profile, hcas = profiles.load(name), ", ".join(self._known_hcas)
        if product and is_gpu(product, profile.gpu) is False:
            self._findings.append(
                f"profile {name} is for {profile.gpu}, the Nodes have {product}. Fix: another --profile"
            )
        if profile.transport == "socket" and "transport" not in self._given and hcas:
            fix = "Fix: another --profile, or --transport socket"
            self._findings.append(f"profile {name} is for TCP, the Nodes offer {hcas}. {fix}")
        return profile

    def _fits(self, profile: Profile, product: str, gpus: int) -> bool:
        """Whether the Nodes match a profile. Never one with SHARP or host files, which they do not show.

        Nor does one of TCP: HCAs that no device plugin offers must not become a gate without a floor.
        """
        hidden = profile.algorithm == "sharp" or profile.topology_file or profile.host_paths
        hcas = self._known_hcas if self._request.hcas is None else self._request.hcas
        same_gpus = profile.gpus_per_node == gpus and is_gpu(product, profile.gpu) is True
        same_hcas = hcas == {profile.hca_resource: profile.hca_count}
        return same_gpus and same_hcas and profile.transport != "socket" and not hidden

    def _hcas(self, profile: Profile | None, transport: str) -> dict[str, int]:
        known = self._known_hcas
        of_profile = profile and profile.hca_resource in known and {profile.hca_resource: profile.hca_count}
        found = self._first(
            "hcas",
            (self._request.hcas, "--hca"),
            ({} if transport == "socket" else None, "transport socket"),
            (of_profile or None, "profile"),
            (known if len(known) == 1 else None, "cluster: allocatable, a known name"),
        )
        if found is None:
            offered = sorted({name for node in self._nodes for name in node.offered} - {GPU_RESOURCE})
            why = f"several resources are HCAs: {', '.join(known)}" if known else "no known HCA resource"
            self._findings.append(
                f"{why} (the Nodes offer: {', '.join(offered) or 'none'}). Fix: --hca NAME=UNITS, or "
                "--transport socket for TCP"
            )
        return dict(found or {})

    def _hardware(self, gpus: int, profile: Profile | None, transport: str, hcas: Mapping[str, int]) -> Gpus:
        units = sum(units for name, units in hcas.items() if not name.startswith(_SHARED))
        rails = self._first(
            "rails",
            (self._request.rails, "--rails"),
            ((profile and profile.rails) or None, "profile"),
            (units or None, "the number of HCAs"),
        )
        rate = self._first(
            "rate_gbps",
            (self._request.rate_gbps, "--rate-gbps"),
            ((profile and profile.rate_gbps) or None, "profile"),
        )
        product = self._nodes[0].product
        model = gpu_name(product) if models(product) else None
        # Over TCP neither rails nor their rate count.
        if transport != "socket" and rails and rate:
            return Hardware(gpus=gpus, gpu_model=model, rails=rails, rate_gbps=rate)
        if transport != "socket":
            self._findings.append(
                "rails per Node and their rate are not known: the API does not tell them. Fix: --profile "
                "(busbar nccl profiles lists them), or --rails and --rate-gbps"
            )
        return Gpus(gpus=gpus, gpu_model=model)

    def _validation(self) -> Validation:
        given, classes = self._given, self._facts.runtime_classes
        if "runtime_class" not in given and classes is not None:
            found = "nvidia" if "nvidia" in classes else ""
            given["runtime_class"] = self._first("runtimeClass", (found, "cluster"))
        validation = section(Validation, "validation", given)
        for key in ("image", "min_bytes", "max_bytes"):
            is_of_profile = getattr(validation.system, key, None) is not None
            source = "given" if key in given else "profile" if is_of_profile else _DEFAULT
            found = validation.chosen(key)
            self._first(key, (found if key == "image" else exact(found), source))
        self._first(
            "expected",
            (validation.expected_busbw_gbps, "given, GB/s"),
            # TCP has no line rate.
            (None if validation.required_transport == "socket" else "computed", "rails, rate and GPUs"),
        )
        return validation


def _left_out(node: GpuNode) -> str | None:
    """Why a Node is only measured if it is named; None if it is always measured."""
    if node.node.quarantine:
        return f"in quarantine: {node.node.quarantine}"
    return node.unfit or (None if node.offered.get(GPU_RESOURCE) else f"0 {GPU_RESOURCE} allocatable")
