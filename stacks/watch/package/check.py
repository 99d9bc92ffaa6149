"""Checks that the monitoring works: series are served, all rails are read, Prometheus has rules and data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import Field

from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.models import StrictModel
from busbar.text import listed
from stacks.watch.package import render
from stacks.watch.package.config import Watch
from stacks.watch.package.manifests import METRICS, PORT, RAILS
from stacks.watch.package.series import CONFIG_MAP, FILE

Port = tuple[str, ...]
"""Device and port number, as node_exporter labels them."""

POLL_SECONDS = 5.0
PROMETHEUS_PORT = 9090
_IN_PARALLEL = 32
_WRITTEN = re.compile(r"^busbar_metrics_written_timestamp_seconds (\S+)$", re.MULTILINE)
_EXPECTED = re.compile(r'^busbar_node_rails_expected\{node="([^"]+)".*\} (\d+)$', re.MULTILINE)
_NAMED = re.compile(
    r'^busbar_node_rail_info\{node="([^"]+)",.*device="([^"]+)",port="([^"]+)"\}', re.MULTILINE
)
_STATE = re.compile(r'^node_infiniband_state_id\{device="([^"]+)",port="([^"]+)"\}', re.MULTILINE)


class CheckSpec(StrictModel):
    """Stdin of `busbar watch check`. `groups`: the groups of rules that a Prometheus must have loaded."""

    namespace: str
    groups: tuple[str, ...] = ()
    deadline_seconds: float = Field(gt=0)

    @classmethod
    def of(cls, watch: Watch) -> CheckSpec:
        """The request for a configuration."""
        groups = () if watch.stack.mode == "none" else tuple(each["name"] for each in render.groups(watch))
        return cls(namespace=watch.namespace, groups=groups, deadline_seconds=watch.stack.timeout_seconds)


def check(api: Api, spec: CheckSpec, clock: Clock, progress: ProgressCallback) -> dict[str, Any]:
    """Look until there are no problems, or until the deadline. Returns {"passed", "reasons", "nodes"}."""
    seen = _Look(api, spec)
    reasons: list[str] = []

    def look() -> int | Pending:
        reasons[:] = seen.problems()
        return Pending(reasons[0]) if reasons else len(seen.read)

    try:
        wait_until(look, Deadline(clock, spec.deadline_seconds), poll_seconds=POLL_SECONDS, progress=progress)
    except TimedOut as error:
        reasons = reasons or [error.state]
    return {"passed": not reasons, "reasons": reasons, "nodes": len(seen.read)}


class _Look:
    """Looks at the monitoring. `read`: the Nodes all of whose rails are read; they are queried only once."""

    def __init__(self, api: Api, spec: CheckSpec) -> None:
        self._api, self._spec = api, spec
        self.read: set[str] = set()

    def problems(self) -> list[str]:
        stored = self._api.get(f"/api/v1/namespaces/{self._spec.namespace}/configmaps/{CONFIG_MAP}")
        text = str((stored.get("data") or {}).get(FILE))
        expected = {node: int(rails) for node, rails in _EXPECTED.findall(text)}
        if not expected:
            return ["no node is expected to have rails: the cluster's outputs name no usable worker"]
        named: dict[str, set[Port]] = {}
        for node, *port in _NAMED.findall(text):
            named.setdefault(node, set()).add(tuple(port))
        return [*self._served(text), *self._rails(expected, named), *self._loaded(len(expected))]

    def _served(self, text: str) -> Iterator[str]:
        written = _WRITTEN.findall(text)
        served = [_WRITTEN.findall(self._metrics(pod)) for pod in self._pods(METRICS).values()]
        if not any([*map(float, each)] == [*map(float, written)] for each in served):
            yield f"{METRICS} does not serve what was written last (kubelet takes up to 90 s to mount it)"

    def _rails(self, expected: Mapping[str, int], named: Mapping[str, set[Port]]) -> Iterator[str]:
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
            yield (
                f"node_exporter does not read all rails: {listed(short)}. Fix: look at the pods of {RAILS}, "
                "at `devices`, and for files in /sys/class/infiniband/*/ports/* that cannot be read "
                "(node_exporter#3265); if an HCA was replaced or renamed, or none is named, let preflight "
                "ask the host again (busbar docs hosts Preflight)"
            )

    def _loaded(self, nodes: int) -> Iterator[str]:
        if not self._spec.groups:
            return
        services = self._api.list("/api/v1/services", labelSelector="operated-prometheus=true")
        problems = [_prometheus(self._api, each, self._spec.groups, nodes) for each in services]
        if not services:
            yield "no Prometheus runs: the operator has made no Service with the label operated-prometheus"
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


def _prometheus(api: Api, service: JsonObject, groups: tuple[str, ...], nodes: int) -> str | None:
    """The problem of one Prometheus; None if it has all rules and reads all nodes."""
    namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
    path = f"/api/v1/namespaces/{namespace}/services/{name}:{PROMETHEUS_PORT}/proxy/api/v1"
    try:
        loaded = {group["name"] for group in api.get(f"{path}/rules", type="alert")["data"]["groups"]}
        queries = (
            "busbar_node_rails_expected",
            f'count by (node) (node_infiniband_state_id{{job="{RAILS}"}})',
        )
        counts = [api.get(f"{path}/query", query=f"count({query}) or vector(0)") for query in queries]
        read = [int(each["data"]["result"][0]["value"][1]) for each in counts]
    except (ApiError, KeyError) as error:
        return f"Prometheus {namespace}/{name} is not responding: {error}"
    if missing := [group for group in groups if group not in loaded]:
        return (
            f"Prometheus {namespace}/{name} has not loaded {', '.join(missing)}. Fix: compare "
            "stack.release_label with its ruleSelector and serviceMonitorSelector"
        )
    if min(read) < nodes:
        return f"Prometheus {namespace}/{name} reads {min(read)} of {nodes} nodes"
    return None
