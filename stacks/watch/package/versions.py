"""Default versions of the software that stacks/watch installs or starts."""

from __future__ import annotations

from typing import Final

from busbar.versions import Default, split

PROMETHEUS_CHARTS: Final = "https://prometheus-community.github.io/helm-charts"
# This chart has prometheus-operator v0.93.1 (prometheus-community/helm-charts, charts/kube-prometheus-stack).
KUBE_PROMETHEUS_STACK: Final = "88.5.3"
# The CRDs of the same operator, in a chart of their own (release prometheus-operator-crds-31.0.1).
PROMETHEUS_OPERATOR_CRDS: Final = "31.0.1"

# This version was run on a made-up sysfs; 1.5 of Debian 12 has none of the hw_counters.
NODE_EXPORTER_IMAGE: Final = "quay.io/prometheus/node-exporter:v1.12.1"

# The first release with Kubernetes' number. Its own image; there is no official chart.
NODE_PROBLEM_DETECTOR_IMAGE: Final = "registry.k8s.io/node-problem-detector/node-problem-detector:v1.36.0"

_OPERATOR: Final = ("operator 0.85.0", "from its Go module, in the lab and on K3s v1.34.3, 2026-11-24")
DEFAULTS: Final = (
    Default("chart", "kube-prometheus-stack", KUBE_PROMETHEUS_STACK, *_OPERATOR),
    Default("chart", "prometheus-operator-crds", PROMETHEUS_OPERATOR_CRDS, *_OPERATOR),
    Default("image", *split(NODE_EXPORTER_IMAGE), "v1.12.1", "on a made-up sysfs, 2026-11-24"),
    Default(
        "image",
        *split(NODE_PROBLEM_DETECTOR_IMAGE),
        "v1.36.0",
        "built from its Go module, in the lab, 2026-11-26",
    ),
)
