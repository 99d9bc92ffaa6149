"""`busbar-watch:watch`: the whole configuration of one stack of stacks/watch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from busbar.config.project import ProjectConfig
from busbar.config.types import (
    ChartName,
    ChartVersion,
    DnsLabel,
    DnsSubdomain,
    Float,
    Image,
    Int,
    JsonObject,
    LabelValue,
    Matching,
    NonEmpty,
    Quantity,
    Seconds,
    Url,
    invalid,
    own_namespace,
)
from busbar.finding import Finding
from busbar.frame import GateConfig, InstalledChart, OnCluster
from busbar.manifests.operators import merge
from busbar.models import ConfigModel
from stacks.watch.package import versions

KEY = "watch"
OPERATOR_NAMESPACES = ("kube-prometheus-stack", "prometheus-operator-crds")
PROJECT = "busbar-watch"

_NOT_IN_GO = re.compile(r"\(\?(P?[=!>]|<[=!])|\\[1-9]|[*+?}]\+")


def _in_go(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise invalid(f"is not a regular expression: {error}") from None
    if _NOT_IN_GO.search(value):
        raise invalid("is not a regular expression: in a form that Go does not have")
    return value


Expression = Annotated[NonEmpty, AfterValidator(_in_go)]
Counter = Annotated[
    str, Matching(r"node_infiniband_[a-z0-9_]+", "a series of node_exporter's InfiniBand collector")
]


class Stack(ConfigModel):
    """The source of Prometheus, Alertmanager and Grafana."""

    mode: Literal["none", "existing", "install"] = "none"
    """none: the exporters only. existing: also ServiceMonitors, rules and dashboards, for a Prometheus
    Operator that is there. install: kube-prometheus-stack too."""
    release_label: LabelValue | None = None
    """Value of the label `release` by which an existing Prometheus selects its objects."""
    repository: Url | None = versions.PROMETHEUS_CHARTS
    """Helm repository; not used for a local chart or an oci:// URL."""
    version: ChartVersion = versions.KUBE_PROMETHEUS_STACK
    """Version of kube-prometheus-stack."""
    chart: ChartName = "kube-prometheus-stack"
    """Name of the chart, a local path, or an oci:// URL."""
    crds_version: ChartVersion = versions.PROMETHEUS_OPERATOR_CRDS
    """Version of the chart with the CRDs; it must be of the same operator."""
    crds_chart: ChartName = "prometheus-operator-crds"
    """The same for the CRDs, which are installed first."""
    values: JsonObject = Field(default={})
    """Values merged over stacks/watch/helm_values/; lists are replaced."""
    storage: Quantity = "200Gi"
    """Size of Prometheus' volume."""
    storage_class: DnsSubdomain | None = None
    """StorageClass of that volume; by default the cluster's default one."""
    retention_days: Annotated[Int, Field(ge=1)] = 10
    """Days that series are kept."""
    timeout_seconds: Seconds = 600
    """Time until Prometheus must have loaded the rules and read the exporters."""

    @property
    def enabled(self) -> bool:
        """True if kube-prometheus-stack is installed."""
        return self.mode == "install"

    @property
    def crds(self) -> InstalledChart:
        """The chart of the CRDs."""
        return self._chart(chart=self.crds_chart, version=self.crds_version)

    @property
    def prometheus(self) -> InstalledChart:
        """The chart of Prometheus, with the values that follow from these keys."""
        claim = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": self.storage}},
            **({"storageClassName": self.storage_class} if self.storage_class else {}),
        }
        derived = {
            "retention": f"{self.retention_days}d",
            "storageSpec": {"volumeClaimTemplate": {"spec": claim}},
        }
        values = merge({"prometheus": {"prometheusSpec": derived}}, self.values)
        return self._chart(chart=self.chart, version=self.version, values=values)

    def _chart(self, **more: Any) -> InstalledChart:
        more |= {"repository": self.repository, "timeout_seconds": self.timeout_seconds}
        return InstalledChart(enabled=self.enabled, **more)


class NodeProblemDetector(ConfigModel):
    """node-problem-detector on every worker, with busbar's rules for the kernel's log."""

    enabled: bool = False
    """Set the conditions BusbarGPU and BusbarRail of Nodes, and Events, by the kernel's log. busbar does not
    act on them."""
    image: Image = versions.NODE_PROBLEM_DETECTOR_IMAGE
    """Image with /node-problem-detector."""


class Watch(OnCluster):
    """The monitoring of one cluster."""

    namespace: Annotated[DnsLabel, own_namespace("busbar-watch", *OPERATOR_NAMESPACES)] = "busbar-watch"
    """Namespace of exporters and rules."""
    stack: Stack = Stack()
    """Prometheus: none, an existing one, or installed."""
    image: Image = versions.NODE_EXPORTER_IMAGE
    """Image with node_exporter as its entry point."""
    devices: Expression | None = None
    """Regular expression of the HCAs to read, such as mlx5_[0-7]; by default all."""
    missing_counters: list[Counter] = Field(default=[])
    """Counters that this site's HCAs do not have, such as virtual functions: no alert on their absence."""
    dcgm: bool = True
    """Counters for dcgm-exporter, its ServiceMonitor, and the rules on GPUs."""
    dcgm_namespace: DnsLabel = "gpu-operator"
    """Namespace in which dcgm-exporter runs."""
    hung_power_fraction: Annotated[Float, Field(gt=0, lt=1)] = 0.3
    """GPUs of a pod at 100 % utilization that draw less than this fraction of their power limit for ten
    minutes belong to a hung job. The default was never seen on a GPU."""
    node_problem_detector: NodeProblemDetector = NodeProblemDetector()
    """Faults in the kernel's log as conditions of Nodes."""
    max_age_hours: Annotated[Int, Field(ge=1)] | None = None
    """Alert when the last measurement of a pool is older; by default never."""
    check: GateConfig = GateConfig()
    """The check that ends an update, and its gate."""


def _findings(watch: Watch) -> Iterator[Finding]:
    """The checks that no value can make on its own."""
    stack = watch.stack
    if stack.mode == "existing" and stack.release_label is None:
        yield Finding(
            ("stack", "release_label"),
            "missing: an existing Prometheus selects its objects by a label",
            "take it from `kubectl get prometheus -A -o yaml`, serviceMonitorSelector; any value "
            "if that is empty",
        )
    if stack.mode != "existing" and stack.release_label is not None:
        text = f"is not used with stack.mode: {stack.mode}"
        yield Finding(("stack", "release_label"), text, found=repr(stack.release_label))
    yield from stack.prometheus.without_source("stack", "chart")
    yield from stack.crds.without_source("stack", "crds_chart")


CONFIG = ProjectConfig(project=PROJECT, key=KEY, model=Watch, what="the monitoring", checks=_findings)
read, load, stack_schema = CONFIG.read, CONFIG.load, CONFIG.schema
