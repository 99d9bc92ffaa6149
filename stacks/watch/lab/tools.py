"""The programs that watch needs, from the modules that pin their versions (go/*/go.mod)."""

from __future__ import annotations

from pathlib import Path

from lab.build.go import Tool

MODULE = "github.com/prometheus-operator/prometheus-operator"
_MODULES = Path(__file__).resolve().parent / "go"
_OF_OPERATOR = _MODULES / "prometheus-operator"

OPERATOR = Tool("prometheus-operator", f"{MODULE}/cmd/operator", _OF_OPERATOR)
RELOADER = Tool("prometheus-config-reloader", f"{MODULE}/cmd/prometheus-config-reloader", _OF_OPERATOR)
# Debian's has no kubernetes_sd_configs, which every configuration of the operator has. The other discoveries
# are left out: their SDKs are most of the build.
PROMETHEUS = Tool(
    "prometheus",
    "github.com/prometheus/prometheus/cmd/prometheus",
    _MODULES / "prometheus",
    tags=("remove_all_sd", "enable_kubernetes_sd"),
)
MONITORING = (OPERATOR, RELOADER, PROMETHEUS)
# Without parts that busbar does not use: export to Google, checks by programs, statistics.
NODE_PROBLEM_DETECTOR = Tool(
    "node-problem-detector",
    "k8s.io/node-problem-detector/cmd/nodeproblemdetector",
    _MODULES / "node-problem-detector",
    tags=("disable_stackdriver_exporter", "disable_custom_plugin_monitor", "disable_system_stats_monitor"),
)
KMSG = Tool("kmsg", ".", _MODULES / "kmsg")
TOOLS = (*MONITORING, NODE_PROBLEM_DETECTOR, KMSG)
