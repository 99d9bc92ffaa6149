"""The monitoring counts as working only when series, rails, rules and data are all seen."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.frame import CLASSES, CRDS
from busbar.kube.client import ApiError
from busbar.kube.wait import TimedOut
from stacks.watch.package import check as check_of
from stacks.watch.package.check import CheckSpec, SurveySpec, check, obstacles, ready
from stacks.watch.tests.support import EXISTING, INSTALL, Served, cluster, watch
from tests.support.kube_cluster import Clock

SPACE = "/api/v1/namespaces/busbar-watch"
PROXY = "/api/v1/namespaces/monitoring/services/prometheus-operated:9090/proxy/api/v1"
EXPECTED = "\n".join(
    f'busbar_node_rails_expected{{node="{node}",pool="h100",link_layer="infiniband"}} 2'
    for node in ("gpu-1", "gpu-2")
)
NAMED = "\n".join(
    f'busbar_node_rail_info{{node="{node}",pool="h100",device="{device}",port="1"}} 1'
    for node in ("gpu-1", "gpu-2")
    for device in ("mlx5_0", "mlx5_1")
)
TEXT = f"busbar_metrics_written_timestamp_seconds 1795500000\n{EXPECTED}\n{NAMED}\n"
PORTS = "".join(f'node_infiniband_state_id{{device="mlx5_{n}",port="1"}} 4\n' for n in (0, 1))
READ = 'count by (node) (node_infiniband_state_id{job="busbar-rails"})'


def pod(name: str, node: str) -> Any:
    return {"metadata": {"name": name}, "spec": {"nodeName": node}}


class Site(Served):
    """Everything works; a test takes something away. Pods are listed by their label."""

    def __init__(self) -> None:
        super().__init__({f"{SPACE}/configmaps/busbar-metrics": {"data": {"busbar.prom": TEXT}}})
        self.pods = {
            "app=busbar-metrics": [pod("metrics", "server-1")],
            "app=busbar-rails": [pod("rails-1", "gpu-1"), pod("rails-2", "gpu-2")],
            "app.kubernetes.io/name=prometheus": [],
        }
        # As node_exporter prints the number.
        self.texts[self.of("metrics")] = TEXT.replace("1795500000", "1.7955e+09")
        self.texts |= {self.of("rails-1"): PORTS, self.of("rails-2"): PORTS}
        self.workloads: dict[str, Any] = {}
        self.prometheus = [{"metadata": {"namespace": "monitoring", "name": "prometheus-operated"}}]
        groups = [{"name": f"busbar-{name}"} for name in ("cluster", "rails", "gpus")]
        self.objects[f"{PROXY}/rules"] = {"data": {"groups": groups}}
        for query in ("busbar_node_rails_expected", READ):
            self.queries[f"count({query}) or vector(0)"] = {"data": {"result": [{"value": [0, "2"]}]}}

    def list(self, path: str, **query: str) -> list[Any]:
        if path == "/api/v1/services":
            return self.prometheus
        return self.pods[query["labelSelector"]] if query else self.workloads.get(path, [])

    @staticmethod
    def of(name: str) -> str:
        return f"{SPACE}/pods/{name}:9100/proxy/metrics"


def result(site: Site, clock: Clock | None = None, **config: Any) -> dict[str, Any]:
    spec = CheckSpec.of(watch(stack=EXISTING, **config))
    return check(site, spec, clock or Clock(), lambda _: None)


def test_what_is_checked_follows_from_the_configuration() -> None:
    site = watch(namespace="watching", dcgm=False, stack={**EXISTING, "timeout_seconds": 77})
    groups = ("busbar-cluster", "busbar-rails")
    assert CheckSpec.of(site) == CheckSpec(namespace="watching", groups=groups, deadline_seconds=77)


def test_without_a_prometheus_the_exporters_alone_are_checked_and_one_of_several_is_enough() -> None:
    site = Site()
    assert result(site) == {"passed": True, "reasons": [], "nodes": 2}
    site.prometheus = [{"metadata": {"namespace": "other", "name": "prometheus-operated"}}, *site.prometheus]
    assert result(site)["passed"] is True
    site.prometheus = []
    assert result(site)["passed"] is False
    spec = CheckSpec.of(watch())
    assert check(site, spec, Clock(), lambda _: None)["passed"] is True


SAID = "Prometheus monitoring/prometheus-operated"
UNREAD = "node_exporter does not read all rails:"
BOTH = "(missing: mlx5_0:1, mlx5_1:1)"
DOWN = [{"metric": {"job": "busbar-rails", "node": "gpu-2"}}, {"metric": {"job": "busbar-metrics"}}]
STORED = f"{SPACE}/configmaps/busbar-metrics"
LAST = 'node="gpu-2",pool="h100"'
UNNAMED = TEXT.replace('busbar_node_rail_info{node="gpu-2"', 'busbar_node_rail_info{node="gpu-3"')


# As Prometheus tells it where a series is read twice.
FAILED = {"name": "BusbarGpusMissing", "health": "err", "lastError": "many-to-many matching not allowed"}
BROKEN = [
    {"name": "busbar-cluster", "rules": [{"name": "busbar:node", "health": "ok"}]},
    {"name": "busbar-gpus", "rules": [FAILED]},
    {"name": "busbar-rails", "rules": [{"name": "BusbarRailDown", "health": "unknown"}]},
    {"name": "others", "rules": [{"name": "Foreign", "health": "err", "lastError": "x"}]},
]


def read_of(nodes: int) -> dict[str, Any]:
    """Prometheus has series of so many nodes."""
    return {f"count({READ}) or vector(0)": {"data": {"result": [{"value": [0, str(nodes)]}]}}}


# The part of the site, what is changed there (None: taken away), the beginning of the reason, and the number
# of nodes that are read.
FAULTS: list[tuple[str, dict[str, Any], str, int]] = [
    ("texts", {Site.of("rails-2"): PORTS.splitlines()[0]},
     f"{UNREAD} gpu-2 1/2 (missing: mlx5_1:1). Fix:", 1),
    ("objects", {STORED: {"data": {"busbar.prom": UNNAMED}}},
     f"{UNREAD} gpu-2 0/2 (missing: not named). Fix:", 1),
    ("texts", {Site.of("rails-1"): None, Site.of("rails-2"): None},
     f"{UNREAD} gpu-1 0/2 {BOTH}, gpu-2 0/2 {BOTH}", 0),
    ("pods", {"app=busbar-rails": [pod("rails-1", "gpu-1")]}, f"{UNREAD} gpu-2 0/2 {BOTH}", 1),
    ("objects", {f"{PROXY}/rules": {"data": {"groups": [{"name": "busbar-rails"}]}}},
     f"{SAID} has not loaded busbar-cluster, busbar-gpus. Fix: ", 2),
    ("queries", read_of(0) | {check_of.DOWN: {"data": {"result": []}}},
     f"{SAID} reads 0 of 2 nodes. Fix: ", 2),
    ("queries", read_of(1) | {check_of.DOWN: {"data": {"result": DOWN}}},
     f"{SAID} reads 1 of 2 nodes; targets that are down: busbar-metrics, gpu-2. Fix: ", 2),
    ("objects", {f"{PROXY}/rules": {"data": {"groups": BROKEN}}},
     f"{SAID} cannot evaluate BusbarGpusMissing (many-to-many matching not allowed). Fix:", 2),
    ("objects", {f"{PROXY}/rules": {"status": "error"}}, f"{SAID} is not responding:", 2),
    ("objects", {STORED: {"data": {}}},
     "no node is expected to have rails: the cluster's outputs name no usable worker. Fix: ", 0),
]  # fmt: skip


@pytest.mark.parametrize(("part", "changes", "reason", "nodes"), FAULTS, ids=[row[2][:60] for row in FAULTS])
def test_what_is_missing_is_named_with_what_was_found(
    part: str, changes: dict[str, Any], reason: str, nodes: int
) -> None:
    site = Site()
    for key, value in changes.items():
        getattr(site, part)[key] = value
        if value is None:
            del getattr(site, part)[key]
    found = result(site)
    assert (found["passed"], found["nodes"]) == (False, nodes)
    assert found["reasons"][0].startswith(reason)
    assert "has not loaded" not in reason or "stack.release_label" in found["reasons"][0]


def test_only_rails_are_counted() -> None:
    site, device = Site(), 'device="mlx5_3",port="2"'
    stored = site.objects[STORED]["data"]
    stored["busbar.prom"] = TEXT.replace(f'{LAST},device="mlx5_1",port="1"', f"{LAST},{device}")
    # Two ports are read, as many as it has rails, and a third one of another name.
    read = PORTS + 'node_infiniband_state_id{device="mlx5_3",port="1"} 4\n'
    site.texts[site.of("rails-2")] = read
    found = result(site)
    assert (found["passed"], found["nodes"]) == (False, 1)
    assert found["reasons"][0].startswith(f"{UNREAD} gpu-2 1/2 (missing: mlx5_3:2). Fix:")
    site.texts[site.of("rails-2")] = f"{read}node_infiniband_state_id{{{device}}} 1\n"
    assert result(site)["passed"] is True


def test_rails_that_appear_before_the_deadline_are_waited_for_and_those_of_others_not_read_again() -> None:
    site, clock = Site(), Clock()
    site.texts.pop(site.of("rails-1"))
    clock.at(30, lambda: site.texts.update({site.of("rails-2"): ""}))
    clock.at(60, lambda: site.texts.update({site.of("rails-1"): PORTS}))
    assert result(site, clock) == {"passed": True, "reasons": [], "nodes": 2}
    assert clock.time < 70


def test_series_of_an_earlier_writing_are_not_those_of_the_last_one() -> None:
    site = Site()
    site.texts[site.of("metrics")] = TEXT.replace("1795500000", "1.7954e+09")
    [reason] = result(site)["reasons"]
    assert reason.startswith("busbar-metrics does not serve what was written last")
    site.pods["app=busbar-metrics"] = []
    assert result(site)["reasons"] == [reason]


def test_a_pod_that_still_serves_the_former_series_beside_the_new_one_is_no_obstacle() -> None:
    site = Site()
    site.pods["app=busbar-metrics"].append(pod("former", "server-2"))
    site.texts[site.of("former")] = TEXT.replace("1795500000", "1.7954e+09")
    assert result(site)["passed"] is True


def test_an_api_that_does_not_answer_until_the_deadline_fails_the_step() -> None:
    site = Site()
    site.failures = [ApiError("GET", None, "refused")] * 1000
    with pytest.raises(TimedOut, match="waiting for the API: GET: refused"):
        result(site)


def test_verify_names_what_the_check_would_and_workloads_without_their_pods() -> None:
    given, site = watch(stack=INSTALL), Site()
    assert ready(given, cluster(), site) == []
    operator = {"metadata": {"name": "operator"}, "spec": {"replicas": 1}, "status": {}}
    site.workloads = {"/apis/apps/v1/namespaces/kube-prometheus-stack/deployments": [operator]}
    site.prometheus = []
    assert [(each.path, each.kind) for each in ready(given, cluster(), site)] == [(("cluster",), "site")] * 2
    unready, without = ready(given, cluster(), site)
    assert unready.what == "Deployment kube-prometheus-stack/operator has 0 of 1 pods ready"
    assert without.what.startswith("no Prometheus runs")


@pytest.mark.parametrize(
    ("capacity", "values", "is_small"),
    [
        pytest.param("200Gi", {}, True, id="smaller"),
        pytest.param("500Gi", {}, False, id="as configured"),
        pytest.param("1Ti", {}, False, id="expanded by an administrator"),
        pytest.param(None, {}, False, id="not bound yet, which its pod says"),
        pytest.param("200Gi", {"prometheus": {"prometheusSpec": {"storageSpec": None}}}, False, id="own"),
    ],
)
def test_a_volume_of_prometheus_that_is_smaller_than_configured_is_named(
    capacity: str | None, values: dict[str, Any], is_small: bool
) -> None:
    """Prometheus Operator changes no claim that is there."""
    site = Site()
    status = {"capacity": {"storage": capacity}} if capacity else {}
    claim = {"metadata": {"name": "data-0"}, "status": status}
    site.pods["app.kubernetes.io/name=prometheus"] = [claim]
    given = watch(stack={**INSTALL, "storage": "500Gi", "values": values})
    said = "PersistentVolumeClaim kube-prometheus-stack/data-0 has 200Gi, expected 500Gi"
    assert [each.what for each in ready(given, cluster(), site)] == [said] * is_small


@pytest.mark.parametrize(("wanted", "is_other"), [("fast", True), ("local-path", False), (None, False)])
def test_a_volume_of_prometheus_of_another_class_than_configured_is_named(
    wanted: str | None, is_other: bool
) -> None:
    """A claim keeps its class; without a configured one the default may have changed since."""
    site, spec = Site(), {"storageClassName": "local-path"}
    site.pods["app.kubernetes.io/name=prometheus"] = [{"metadata": {"name": "data-0"}, "spec": spec}]
    found = ready(watch(stack={**INSTALL, "storage_class": wanted}), cluster(), site)
    assert len(found) == is_other
    for each in found:
        assert "data-0 is of class local-path, expected fast" in each.what
        assert str(each.fix).startswith(
            "write back stack.storage_class: local-path; or, which deletes all series: kubectl"
        )


OURS = {"meta.helm.sh/release-name": "prometheus-operator-crds"}
DEFAULT = {
    "metadata": {"name": "local-path", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
}


def crd(kind: str, annotations: dict[str, str] | None = None, group: str = "monitoring.coreos.com") -> Any:
    return {"metadata": {"name": f"{kind}.{group}", "annotations": annotations}, "spec": {"group": group}}


THEIRS = {"meta.helm.sh/release-name": "monitoring"}
# CRDs and StorageClasses of the cluster, the configured class, and the finding.
FOUND: list[tuple[list[Any], list[Any], str | None, str]] = [
    ([crd("jobs", group="other.io")], [DEFAULT], None, ""),
    ([crd("prometheuses", OURS)], [DEFAULT], None, ""),
    ([crd("prometheuses"), crd("probes", OURS), crd("rules", THEIRS)], [DEFAULT], None,
     "stack.mode: is install, and busbar did not install the CRDs of monitoring.coreos.com: "
     "prometheuses.monitoring.coreos.com, rules.monitoring.coreos.com. Fix: "),
    ([], [DEFAULT], "fast",
     "stack.storage_class: there is no StorageClass fast; the cluster has local-path. Fix: "),
    ([], [], None, "stack.storage_class: no StorageClass is the default one; the cluster has none"),
]  # fmt: skip


@pytest.mark.parametrize(("crds", "classes", "chosen", "says"), FOUND)
def test_what_is_in_the_way_of_an_installation_is_named(
    crds: list[Any], classes: list[Any], chosen: str | None, says: str
) -> None:
    stack = watch(stack={**INSTALL, "storage_class": chosen}).stack
    found = [*obstacles(Served({CRDS: crds, CLASSES: classes}), SurveySpec.of(stack))]
    assert len(found) == bool(says) and "".join(map(str, found)).startswith(says)


def test_an_existing_operator_must_have_its_crds_and_nothing_else_is_asked() -> None:
    spec = SurveySpec.of(watch(stack=EXISTING).stack)
    [found] = obstacles(Served({CRDS: [crd("servicemonitors")]}), spec)
    assert str(found).startswith(
        "stack.mode: is existing, and the cluster has no CRD prometheusrules.monitoring.coreos.com."
    )
    assert [*obstacles(Served({CRDS: [crd("servicemonitors"), crd("prometheusrules")]}), spec)] == []
