"""The objects on the cluster."""

import re
from pathlib import Path
from typing import Any

import pytest

from stacks.watch.package import manifests
from stacks.watch.package.manifests import GRAFANA_SECRET, STACK
from stacks.watch.tests.support import EXISTING, samples, watch
from stacks.watch.tests.unit.cases import COUNTERS, ROCE

ROOT = Path(__file__).resolve().parents[4]
HELM_VALUES = ROOT / "stacks" / "watch" / "helm_values"


def values(**stack: Any) -> dict[str, Any]:
    return STACK.values(HELM_VALUES, watch(stack={"mode": "install", **stack}).stack.prometheus)


def of_kind(found: list[Any], kind: str) -> dict[str, Any]:
    return {each["metadata"]["name"]: each for each in found if each.get("kind") == kind}


# Kind and name of each exporter, and the option that names the folder which it reads.
EXPORTERS = [
    ("DaemonSet", "busbar-rails", "infiniband", "--path.sysfs"),
    ("Deployment", "busbar-metrics", "textfile", "--collector.textfile.directory"),
]


def pod(kind: str, name: str, **config: Any) -> dict[str, Any]:
    made: dict[str, Any] = of_kind(manifests.workloads(watch(**config)), kind)[name]["spec"]["template"][
        "spec"
    ]
    return made


@pytest.mark.parametrize(("kind", "name", "collector", "option"), EXPORTERS)
def test_an_exporter_has_its_own_collector_only_and_changes_nothing_on_a_node(
    kind: str, name: str, collector: str, option: str
) -> None:
    found = pod(kind, name, image="quay.io/x/node-exporter:v1", devices="mlx5_[0-7]")
    [its] = found["containers"]
    assert its["image"] == "quay.io/x/node-exporter:v1"
    chosen = [each for each in its["args"] if each.startswith("--collector.") and "=" not in each]
    assert chosen == ["--collector.disable-defaults", f"--collector.{collector}"]
    limited = [each for each in its["args"] if "infiniband.device-include" in each]
    assert limited == ["--collector.infiniband.device-include=^(mlx5_[0-7])$"] * (kind == "DaemonSet")
    assert "device-include" not in str(pod(kind, name))
    assert found["securityContext"]["runAsNonRoot"] and its["securityContext"]["readOnlyRootFilesystem"]
    assert found["automountServiceAccountToken"] is False


@pytest.mark.parametrize(("kind", "name", "collector", "option"), EXPORTERS)
def test_an_exporter_reads_what_is_mounted_and_is_ready_at_the_port_of_its_service(
    kind: str, name: str, collector: str, option: str
) -> None:
    found = pod(kind, name)
    [its], [volume] = found["containers"], found["volumes"]
    [mount] = its["volumeMounts"]
    assert f"{option}={mount['mountPath']}" in its["args"] and mount["readOnly"] is True
    # A device that is added later is seen.
    of_host = "hostPath" in volume, mount.get("mountPropagation") == "HostToContainer"
    assert of_host == (kind == "DaemonSet",) * 2
    service = of_kind(manifests.workloads(watch()), "Service")[name]
    [port] = service["spec"]["ports"]
    assert its["readinessProbe"]["httpGet"]["port"] == port["targetPort"] == its["ports"][0]["name"]
    assert port["port"] == its["ports"][0]["containerPort"] == manifests.PORT
    assert service["spec"]["selector"] == {"app": name}
    monitor = of_kind(manifests.monitoring(watch()), "ServiceMonitor")[name]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()


def test_rails_are_read_on_workers_whatever_their_taints_and_series_by_one_pod_at_a_time() -> None:
    found = pod("DaemonSet", "busbar-rails")
    assert found["tolerations"] == [{"operator": "Exists"}]
    workers = {"key": "node-role.kubernetes.io/control-plane", "operator": "DoesNotExist"}
    assert f"[{{'matchExpressions': [{workers}]}}]" in str(found["affinity"])
    deployment = of_kind(manifests.workloads(watch()), "Deployment")["busbar-metrics"]
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_everything_is_in_the_namespace_and_only_what_prometheus_selects_has_its_label() -> None:
    site = watch(namespace="watching", stack=EXISTING)
    made = [*manifests.workloads(site), *manifests.monitoring(site), *manifests.dashboards(site)]
    assert {each["metadata"]["namespace"] for each in made} == {"watching"}
    labelled = {each["kind"] for each in made if "release" in each["metadata"]["labels"]}
    assert labelled == {"ServiceMonitor", "PrometheusRule"}


def test_rules_find_the_job_and_the_node_of_a_rail_by_the_labels_that_its_monitor_sets() -> None:
    [endpoint] = of_kind(manifests.monitoring(watch()), "ServiceMonitor")["busbar-rails"]["spec"]["endpoints"]
    assert {"targetLabel": "job", "replacement": "busbar-rails"} in endpoint["relabelings"]
    for label in ("node", "instance"):
        of_node = {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": label}
        assert of_node in endpoint["relabelings"]


def test_dcgm_exporter_is_read_for_what_a_rule_or_a_panel_reads_or_not_at_all() -> None:
    monitors = of_kind(manifests.monitoring(watch(dcgm_namespace="gpus")), "ServiceMonitor")
    assert monitors["busbar-dcgm"]["spec"]["namespaceSelector"] == {"matchNames": ["gpus"]}
    node = {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}
    assert monitors["busbar-dcgm"]["spec"]["endpoints"] == [{"port": "gpu-metrics", "relabelings": [node]}]
    assert "busbar-dcgm" not in of_kind(manifests.monitoring(watch(dcgm=False)), "ServiceMonitor")
    made = manifests.dcgm_counters(watch(dcgm_namespace="gpus"))
    assert made["metadata"]["namespace"] == "gpus"
    lines = [line for line in made["data"]["dcgm-metrics.csv"].splitlines() if not line.startswith("#")]
    assert all(line.count(",") == 2 for line in lines)
    counted = {line.partition(",")[0] for line in lines}
    text = f"{manifests.monitoring(watch())} {manifests.dashboards(watch())}"
    read = set(re.findall(r"DCGM_(?:FI|EXP)_\w+", text.replace("(GET_)?", "GET_")))
    assert read == counted


def test_a_prometheus_that_asks_seldom_by_default_has_enough_samples_for_each_rule() -> None:
    """With less than two in its window rate() and increase() say nothing, and some scrapes fail."""
    made = manifests.monitoring(watch(stack=EXISTING))
    minutes = min(int(window) for window in re.findall(r"\[(\d+)m\]", str(made)))
    [rules] = of_kind(made, "PrometheusRule").values()
    parts = list(rules["spec"]["groups"])
    for monitor in of_kind(made, "ServiceMonitor").values():
        parts += monitor["spec"]["endpoints"]
    assert [each for each in parts if int(each["interval"].removesuffix("s")) * 4 > 60 * minutes] == []


def test_of_a_port_and_of_busbar_only_what_a_rule_or_a_panel_reads_is_stored() -> None:
    """Whatever an exporter serves beside it: of a port of mlx5 some 60 series."""
    monitors = of_kind(manifests.monitoring(watch()), "ServiceMonitor")
    kept = {}
    for name in ("busbar-rails", "busbar-metrics"):
        [endpoint] = monitors[name]["spec"]["endpoints"]
        [keep] = endpoint["metricRelabelings"]
        assert (keep["action"], keep["sourceLabels"]) == ("keep", ["__name__"])
        kept[name] = re.compile(keep["regex"])
    for name in (*COUNTERS, *ROCE, "port_data_received_bytes_total", "info"):
        assert kept["busbar-rails"].fullmatch(f"node_infiniband_{name}"), name
    for name in ("node_infiniband_port_packets_received_total", "node_scrape_collector_success"):
        assert not kept["busbar-rails"].fullmatch(name)
        assert not kept["busbar-metrics"].fullmatch(name)
    text = f"{manifests.monitoring(watch())} {manifests.dashboards(watch())}"
    for name in {each.name for each in samples(max_age_hours=1)}:
        assert kept["busbar-metrics"].fullmatch(name)
        assert re.search(rf"\b{name}\b", text), f"nothing reads {name}"


def test_values_of_prometheus_follow_from_the_configuration_and_the_stack_s_own_come_last() -> None:
    own = {"prometheus": {"prometheusSpec": {"retention": "4d"}}}
    given = {"storage": "500Gi", "storage_class": "fast", "retention_days": 3}
    spec = values(**given)["prometheus"]["prometheusSpec"]
    claim = spec["storageSpec"]["volumeClaimTemplate"]["spec"]
    assert (spec["retention"], claim["storageClassName"]) == ("3d", "fast")
    assert claim["resources"] == {"requests": {"storage": "500Gi"}}
    assert values(**given, values=own)["prometheus"]["prometheusSpec"]["retention"] == "4d"
    assert "storageClassName" not in str(values())


def test_grafana_finds_the_dashboards_and_the_password_that_busbar_makes() -> None:
    assert values()["grafana"]["admin"] == {"existingSecret": GRAFANA_SECRET}
    for each in manifests.dashboards(watch()):
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
