"""The objects of stacks/watch on the cluster as plain mappings, and the values of kube-prometheus-stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from busbar.manifests.operators import Operator
from busbar.models import parse_yaml
from stacks.watch.package import render
from stacks.watch.package.config import Watch

Manifest = dict[str, Any]

RAILS = "busbar-rails"
METRICS = "busbar-metrics"
PORT = 9100
DCGM = "busbar-dcgm"
DCGM_COUNTERS = "busbar-dcgm-counters"
MONITORING = "monitoring.coreos.com/v1"
CRDS = Operator(config_key="stack", release="prometheus-operator-crds", namespace="prometheus-operator-crds")
STACK = Operator(config_key="stack", release="kube-prometheus-stack", namespace="kube-prometheus-stack")
GRAFANA_SECRET = "busbar-grafana-admin"
_LABELS = {"app.kubernetes.io/managed-by": "busbar"}
_CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap"}
_HERE = Path(__file__).resolve().parent


def workloads(watch: Watch) -> list[Manifest]:
    """Both exporters with their Services."""
    found = [each for each in _objects(watch) if each["apiVersion"] != MONITORING]
    for manifest in found:
        if template := manifest["spec"].get("template"):
            [container] = template["spec"]["containers"]
            container["image"] = watch.image
            if watch.devices and manifest["metadata"]["name"] == RAILS:
                container["args"].append(f"--collector.infiniband.device-include=^({watch.devices})$")
    return found


def monitoring(watch: Watch) -> list[Manifest]:
    """The ServiceMonitors and the PrometheusRule."""
    found = [each for each in _objects(watch) if each["apiVersion"] == MONITORING]
    for manifest in found:
        name, spec = manifest["metadata"]["name"], manifest["spec"]
        spec["endpoints"][0] |= render.interval(watch)
        if name == DCGM:
            spec["namespaceSelector"] = {"matchNames": [watch.dcgm_namespace]}
        else:
            pattern = "busbar_.+" if name == METRICS else "|".join(render.read_of_ports())
            keep = {"action": "keep", "sourceLabels": ["__name__"], "regex": pattern}
            spec["endpoints"][0]["metricRelabelings"] = [keep]
    wanted = [each for each in found if watch.dcgm or each["metadata"]["name"] != DCGM]
    rule = {"apiVersion": MONITORING, "kind": "PrometheusRule", "metadata": {"name": "busbar"}}
    return [*wanted, _complete({**rule, "spec": {"groups": render.groups(watch)}}, watch)]


def dcgm_counters(watch: Watch) -> Manifest:
    """The ConfigMap with dcgm-exporter's counters, for the GPU Operator's dcgmExporter.config.name."""
    counters = {"dcgm-metrics.csv": render.dcgm_counters()}
    made = _complete({**_CONFIG_MAP, "metadata": {"name": DCGM_COUNTERS}, "data": counters}, watch)
    made["metadata"]["namespace"] = watch.dcgm_namespace
    # It stays at a destroy: a later update takes it over, whatever another release has written there.
    made["metadata"]["annotations"] = {"pulumi.com/patchForce": "true"}
    return made


def dashboards(watch: Watch) -> list[Manifest]:
    """A ConfigMap per dashboard, with the label by which Grafana's sidecar finds it."""
    found = []
    for file in sorted((_HERE / "dashboards").glob("*.json")):
        metadata = {"name": f"busbar-dashboard-{file.stem}", "labels": {"grafana_dashboard": "1"}}
        data = {f"busbar-{file.name}": file.read_text(encoding="utf-8")}
        found.append(_complete({**_CONFIG_MAP, "metadata": metadata, "data": data}, watch))
    return found


def _objects(watch: Watch) -> list[Manifest]:
    found = parse_yaml((_HERE / "objects.yaml").read_text(encoding="utf-8"))
    return [_complete(each, watch) for each in found]


def _complete(manifest: Manifest, watch: Watch) -> Manifest:
    """A manifest with namespace and labels: busbar's, and the one by which an existing Prometheus selects."""
    metadata = manifest["metadata"]
    labels = {**_LABELS, **metadata.get("labels", {})}
    if manifest.get("apiVersion") == MONITORING and watch.stack.release_label:
        labels["release"] = watch.stack.release_label
    return {**manifest, "metadata": {**metadata, "namespace": watch.namespace, "labels": labels}}
