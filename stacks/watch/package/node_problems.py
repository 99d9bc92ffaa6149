"""node-problem-detector: rules for the kernel's log, which become conditions of Nodes, and Events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, TypeAdapter

from busbar.manifests.names import digest
from busbar.models import ConfigModel, parse_yaml
from stacks.watch.package.config import Watch

NAME = "busbar-npd"
FILE = "kernel.json"
# Conditions of a Node without a fault: type, reason, message.
CONDITIONS = (
    ("BusbarGPU", "NoGPUFault", "the kernel's log of this boot has no fault of a GPU"),
    ("BusbarRail", "NoRailFault", "the kernel's log of this boot has no fault of an HCA"),
)
# A restarted pod reads the kernel's buffer from the boot on, so a condition lasts until a reboot.
_LOOKBACK = "87600h"
_HERE = Path(__file__).resolve().parent / "npd"


class Rule(ConfigModel):
    """One rule. `matches`, `leaves`: lines that its pattern must match, and lines that it must not match."""

    reason: str
    condition: Literal["BusbarGPU", "BusbarRail"] | None = Field(default=None)
    pattern: str
    matches: list[str] = Field(min_length=1)
    leaves: list[str] = Field(min_length=1)


def rules() -> list[Rule]:
    """All rules, in the order of their file."""
    text = (_HERE / "rules.yaml").read_text(encoding="utf-8")
    return TypeAdapter(list[Rule]).validate_python(parse_yaml(text))


def monitor() -> dict[str, Any]:
    """The configuration of the monitor of the kernel's log (pkg/systemlogmonitor/config.go)."""
    return {
        "plugin": "kmsg",
        "logPath": "/dev/kmsg",
        "lookback": _LOOKBACK,
        "bufferSize": 1,
        "source": "busbar",
        "conditions": [dict(zip(("type", "reason", "message"), each, strict=True)) for each in CONDITIONS],
        "rules": [_rule(each) for each in rules()],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    kind = {"type": "permanent", "condition": rule.condition} if rule.condition else {"type": "temporary"}
    return {**kind, "reason": rule.reason, "pattern": rule.pattern}


def manifests(watch: Watch) -> list[dict[str, Any]]:
    """The objects of node-problem-detector; a changed configuration of the monitor restarts the pods."""
    data = {FILE: json.dumps(monitor(), indent=1)}
    config: dict[str, Any] = {"kind": "ConfigMap", "metadata": {"name": NAME}, "data": data}
    found = [config, *yaml.safe_load_all((_HERE / "objects.yaml").read_text(encoding="utf-8"))]
    for manifest in found:
        manifest["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "busbar"}
        if manifest["kind"] != "ClusterRoleBinding":
            manifest["metadata"]["namespace"] = watch.namespace
        for subject in manifest.get("subjects", ()):
            subject["namespace"] = watch.namespace
        if manifest["kind"] == "DaemonSet":
            template = manifest["spec"]["template"]
            template["metadata"]["annotations"] = {"busbar/rules": digest(data)}
            template["spec"]["containers"][0]["image"] = watch.node_problem_detector.image
    return found
