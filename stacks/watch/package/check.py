"""Checks that nothing is in the way of the monitoring, and that it works: series are served, all rails are
read, Prometheus has rules and data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import Field

from busbar.finding import Finding
from busbar.frame import CheckResult, crds_of, not_of_release, refuse, unready, without_class
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.health import problem
from busbar.kube.objects import quantity
from busbar.kube.wait import Clock, ProgressCallback, lasting
from busbar.models import StrictModel
from busbar.outputs import ClusterOutputs
from busbar.text import listed
from stacks.watch.package import render
from stacks.watch.package.config import Stack, Watch
from stacks.watch.package.manifests import CRDS, METRICS, PORT, RAILS, STACK
from stacks.watch.package.series import CONFIG_MAP, FILE

Port = tuple[str, ...]
"""Device and port number, as node_exporter labels them."""

PROMETHEUS_PORT = 9090
POLL_SECONDS = 5
_PROMETHEUS = "app.kubernetes.io/name=prometheus"
_IN_PARALLEL = 32
_WRITTEN = re.compile(r"^busbar_metrics_written_timestamp_seconds (\S+)$", re.MULTILINE)
_EXPECTED = re.compile(r'^busbar_node_rails_expected\{node="([^"]+)".*\} (\d+)$', re.MULTILINE)
_NAMED = re.compile(
    r'^busbar_node_rail_info\{node="([^"]+)",.*device="([^"]+)",port="([^"]+)"\}', re.MULTILINE
)
_STATE = re.compile(r'^node_infiniband_state_id\{device="([^"]+)",port="([^"]+)"\}', re.MULTILINE)


# Queries whose numbers are those of the Nodes that are read, and one for the targets that are down.
_READ = ("busbar_node_rails_expected", f'count by (node) (node_infiniband_state_id{{job="{RAILS}"}})')
DOWN = f'up{{job="{METRICS}"}} == 0 or up{{job="{RAILS}"}} == 0 and on (node) busbar_node_rails_expected'
GROUP = "monitoring.coreos.com"
NEEDED = ("servicemonitors", "prometheusrules")


class SurveySpec(StrictModel):
    """The request of the step `survey`: the parts that will be installed."""

    install: bool
    storage_class: str | None = None

    @classmethod
    def of(cls, stack: Stack) -> SurveySpec:
        """The request for a configuration."""
        return cls(install=stack.enabled, storage_class=stack.storage_class)


def survey(api: Api, spec: SurveySpec, *_: object) -> None:
    """The step `survey`, before anything is installed. Raises Failed with every obstacle; ApiError."""
    refuse(obstacles(api, spec))


def obstacles(api: Api, spec: SurveySpec) -> Iterator[Finding]:
    """Find what is in the way on the cluster. Raises ApiError."""
    crds = crds_of(api, GROUP)
    if not spec.install:
        known = {each["metadata"]["name"] for each in crds}
        if missing := [name for kind in NEEDED if (name := f"{kind}.{GROUP}") not in known]:
            what = f"is existing, and the cluster has no CRD {', '.join(missing)}"
            fix = "install the Prometheus Operator, or set stack.mode: install"
            yield Finding(("stack", "mode"), what, fix)
        return
    if foreign := not_of_release(crds, CRDS.release):
        yield Finding(
            ("stack", "mode"),
            f"is install, and busbar did not install the CRDs of {GROUP}: {listed(foreign)}",
            "if their operator runs, set stack.mode: existing; if it is gone, delete them (kubectl delete "
            "crd ...), which deletes every object of these kinds",
        )
    yield from without_class(api, spec.storage_class, ("stack", "storage_class"))


class CheckSpec(StrictModel):
    """The request of the step `check`. `groups`: the groups of rules that a Prometheus must have loaded."""

    namespace: str
    groups: tuple[str, ...] = ()
    deadline_seconds: float = Field(gt=0)

    @classmethod
    def of(cls, watch: Watch) -> CheckSpec:
        """The request for a configuration."""
        groups = () if watch.stack.mode == "none" else tuple(each["name"] for each in render.groups(watch))
        return cls(namespace=watch.namespace, groups=groups, deadline_seconds=watch.stack.timeout_seconds)


class Result(CheckResult):
    """The result of the step `check`. `nodes`: the number of Nodes all of whose rails are read."""

    nodes: int = 0


def check(api: Api, spec: CheckSpec, clock: Clock, progress: ProgressCallback) -> dict[str, Any]:
    """The step `check`: look until there are no problems, or until the deadline. Returns a Result."""
    seen = _Look(api, spec)
    found = lasting(seen.problems, clock, spec.deadline_seconds, poll_seconds=POLL_SECONDS, progress=progress)
    return Result.of(found, nodes=len(seen.read)).model_dump()


def ready(watch: Watch, cluster: ClusterOutputs, api: Api) -> list[Finding]:
    """Find what of the monitoring does not work now (busbar.capability.Capability.ready)."""
    installed = [STACK.namespace] if watch.stack.enabled else []
    found = [*unready(api, [watch.namespace, *installed]), *_Look(api, CheckSpec.of(watch)).problems()]
    return [*found, *(_unlike(api, watch.stack) if installed else ())]


def _unlike(api: Api, stack: Stack) -> Iterator[Finding]:
    """Find volumes of Prometheus that are smaller than configured, or of another class: its operator changes
    no claim that is there."""
    own = (stack.values.get("prometheus") or {}).get("prometheusSpec") or {}
    path = f"/api/v1/namespaces/{STACK.namespace}/persistentvolumeclaims"
    claims = () if "storageSpec" in own else api.list(path, labelSelector=_PROMETHEUS)
    for claim in claims:
        name, size = claim["metadata"]["name"], (claim.get("status") or {}).get("capacity", {}).get("storage")
        what, kubectl = f"PersistentVolumeClaim {STACK.namespace}/{name}", f"kubectl -n {STACK.namespace}"
        if size and quantity(size) < quantity(stack.storage):
            request = f'{{"spec": {{"resources": {{"requests": {{"storage": "{stack.storage}"}}}}}}}}'
            fix = (
                f"write back stack.storage: {size}; or, where its class has allowVolumeExpansion: {kubectl} "
                f"patch pvc {name} -p '{request}'"
            )
            yield problem(f"{what} has {size}, expected {stack.storage}", fix)
        of_class = (claim.get("spec") or {}).get("storageClassName")
        if stack.storage_class not in (None, of_class):
            fix = (
                f"write back stack.storage_class: {of_class}; or, which deletes all series: {kubectl} delete "
                f"pvc {name} --wait=false && {kubectl} delete pods -l {_PROMETHEUS}"
            )
            yield problem(f"{what} is of class {of_class}, expected {stack.storage_class}", fix)


class _Look:
    """Looks at the monitoring. `read`: the Nodes all of whose rails are read; they are queried only once."""

    def __init__(self, api: Api, spec: CheckSpec) -> None:
        self._api, self._spec = api, spec
        self.read: set[str] = set()

    def problems(self) -> list[Finding]:
        stored = self._api.get(f"/api/v1/namespaces/{self._spec.namespace}/configmaps/{CONFIG_MAP}")
        text = str((stored.get("data") or {}).get(FILE))
        expected = {node: int(rails) for node, rails in _EXPECTED.findall(text)}
        if not expected:
            what = "no node is expected to have rails: the cluster's outputs name no usable worker"
            return [
                problem(
                    what, "repair the workers and update their stack, then run `busbar watch refresh STACK`"
                )
            ]
        named: dict[str, set[Port]] = {}
        for node, *port in _NAMED.findall(text):
            named.setdefault(node, set()).add(tuple(port))
        return [*self._served(text), *self._rails(expected, named), *self._loaded(len(expected))]

    def _served(self, text: str) -> Iterator[Finding]:
        written = _WRITTEN.findall(text)
        served = [_WRITTEN.findall(self._metrics(pod)) for pod in self._pods(METRICS).values()]
        if not any([*map(float, each)] == [*map(float, written)] for each in served):
            what = f"{METRICS} does not serve what was written last (kubelet takes up to 90 s to mount it)"
            yield problem(what, f"kubectl -n {self._spec.namespace} describe pods -l app={METRICS}")

    def _rails(self, expected: Mapping[str, int], named: Mapping[str, set[Port]]) -> Iterator[Finding]:
        """Nodes of which a rail is not read, as one problem."""
        pods = self._pods(RAILS)
        asked = [node for node in expected if node not in self.read]
        with ThreadPoolExecutor(_IN_PARALLEL) as pool:
            ports = dict(zip(asked, pool.map(lambda node: self._ports(pods.get(node)), asked), strict=True))
        found = {node: ports[node] & named.get(node, set()) for node in asked}
        self.read |= {node for node, rails in found.items() if len(rails) >= expected[node]}
        short = []
        for node in (each for each in asked if each not in self.read):
            missing = ", ".join(map(":".join, sorted(named.get(node, set()) - found[node])))
            short.append(f"{node} {len(found[node])}/{expected[node]} (missing: {missing or 'not named'})")
        if short:
            yield problem(
                f"node_exporter does not read all rails: {listed(short)}",
                f"look at the pods of {RAILS}, at `devices`, and for files in "
                "/sys/class/infiniband/*/ports/* that cannot be read (node_exporter#3265); if an HCA was "
                "replaced or renamed, or none is named, let preflight ask the host again "
                "(busbar docs hosts Preflight)",
            )

    def _loaded(self, nodes: int) -> Iterator[Finding]:
        if not self._spec.groups:
            return
        services = self._api.list("/api/v1/services", labelSelector="operated-prometheus=true")
        problems = [_prometheus(self._api, each, self._spec.groups, nodes) for each in services]
        if not services:
            what = "no Prometheus runs: the operator has made no Service with the label operated-prometheus"
            yield problem(what, "repair the Prometheus Operator and its object Prometheus")
        elif all(problems):
            yield from filter(None, problems)

    def _pods(self, app: str) -> dict[str, str]:
        """Node -> name of the pod there."""
        path = f"/api/v1/namespaces/{self._spec.namespace}/pods"
        found = self._api.list(path, labelSelector=f"app={app}")
        return {str(pod["spec"].get("nodeName")): pod["metadata"]["name"] for pod in found}

    def _ports(self, pod: str | None) -> set[Port]:
        return set(_STATE.findall(self._metrics(pod))) if pod else set()

    def _metrics(self, pod: str) -> str:
        path = f"/api/v1/namespaces/{self._spec.namespace}/pods/{pod}:{PORT}/proxy/metrics"
        try:
            return b"".join(self._api.stream(path)).decode()
        except ApiError:
            return ""  # it does not run yet


def _prometheus(api: Api, service: JsonObject, groups: tuple[str, ...], nodes: int) -> Finding | None:
    """The problem of one Prometheus; None if it has all rules, evaluates them, and reads all nodes."""
    namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
    what = f"Prometheus {namespace}/{name}"
    path = f"/api/v1/namespaces/{namespace}/services/{name}:{PROMETHEUS_PORT}/proxy/api/v1"

    def query(text: str) -> list[JsonObject]:
        found: list[JsonObject] = api.get(f"{path}/query", query=text)["data"]["result"]
        return found

    try:
        loaded = {
            group["name"]: group.get("rules") or () for group in api.get(f"{path}/rules")["data"]["groups"]
        }
        read = min(int(query(f"count({each}) or vector(0)")[0]["value"][1]) for each in _READ)
        down = [each["metric"].get("node", METRICS) for each in query(DOWN)] if read < nodes else []
    except (ApiError, KeyError) as error:
        return problem(f"{what} is not responding: {error}", f"kubectl -n {namespace} describe pods")
    if missing := [group for group in groups if group not in loaded]:
        fix = "compare stack.release_label with its ruleSelector and serviceMonitorSelector"
        return problem(f"{what} has not loaded {', '.join(missing)}", fix)
    broken = [rule for group in groups for rule in loaded[group] if rule.get("health") == "err"]
    if broken:
        texts = [f"{rule['name']} ({rule.get('lastError')})" for rule in broken]
        fix = "read each exporter once: by its ServiceMonitor, or by the annotations of its Service"
        return problem(f"{what} cannot evaluate {listed(texts)}", fix)
    if read < nodes:
        targets = f"; targets that are down: {listed(sorted(down))}" if down else ""
        fix = (
            "repair the pods of these targets; without one compare its serviceMonitorSelector with "
            "stack.release_label"
        )
        return problem(f"{what} reads {read} of {nodes} nodes{targets}", fix)
    return None
