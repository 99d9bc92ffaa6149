"""The lab's charts read the values that busbar sets."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from stacks.watch.lab import images, tools
from stacks.watch.package.manifests import STACK
from stacks.watch.package.versions import NODE_PROBLEM_DETECTOR_IMAGE
from stacks.watch.tests.support import watch
from tests.unit.charts.published import helm

HERE = Path(__file__).resolve().parents[3]
CHART = HERE / "lab" / "charts" / "kube-prometheus-stack"


def rendered() -> dict[str, Any]:
    chart = watch(stack={"mode": "install"}).stack.prometheus
    given = yaml.safe_dump(STACK.values(HERE / "helm_values", chart))
    done = subprocess.run(
        [helm(), "template", STACK.release, str(CHART), "-n", STACK.namespace, "-f", "-"],
        input=given, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {each["kind"]: each for each in yaml.safe_load_all(done.stdout) if each}


def test_prometheus_selects_objects_of_all_namespaces_and_labels_as_the_values_say() -> None:
    spec = rendered()["Prometheus"]["spec"]
    for name in ("serviceMonitor", "rule"):
        assert (spec[f"{name}Selector"], spec[f"{name}NamespaceSelector"]) == ({}, {})
    assert (spec["retention"], spec["resources"]) == ("10d", {"requests": {"memory": "4Gi"}})


def test_the_charts_name_the_images_that_the_lab_builds() -> None:
    named = {
        word for word in str(rendered()).replace("'", " ").replace("=", " ").split() if "busbar-lab/" in word
    }
    built = {images.PROMETHEUS_IMAGE, images.ALERTMANAGER, images.OPERATOR_IMAGE, images.RELOADER_IMAGE}
    assert {f"docker.io/{name}" for name in named} == built


def test_the_lab_builds_the_node_problem_detector_that_is_installed_by_default() -> None:
    _, _, version = NODE_PROBLEM_DETECTOR_IMAGE.partition(":")
    pinned = (tools.NODE_PROBLEM_DETECTOR.module / "go.mod").read_text(encoding="utf-8")
    assert f"k8s.io/node-problem-detector {version}" in pinned
