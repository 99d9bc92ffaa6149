"""A renamed stack and cluster, beside a pod of others that holds a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.support.lab import PROJECT, UP_SECONDS, Lab, gpu_holder

pytestmark = pytest.mark.drill

NEW = "renamed"


def busbar_up(lab: Lab, stack: str) -> str:
    done = lab.run(sys.executable, "-m", "busbar", "up", stack, "--yes", "--skip-preview", seconds=UP_SECONDS)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def gpus(lab: Lab) -> dict[str, str]:
    nodes = json.loads(lab.kubectl("get nodes -o json"))["items"]
    return {
        node["metadata"]["name"]: node["status"]["allocatable"].get("nvidia.com/gpu", "0") for node in nodes
    }


def on_cluster(lab: Lab) -> dict[str, dict[str, str]]:
    """What an update that replaces anything would change. Pods that pull an image end on their own."""
    kinds = ("namespaces", "pods", "configmaps", "mpijobs", "nodes", "secrets -l owner=helm")
    found = {kind: lab.uids(kind) for kind in kinds}
    pods = {name: uid for name, uid in found["pods"].items() if "-image-" not in name}
    return {"gpus": gpus(lab), **found, "pods": pods}


def lost(before: dict[str, dict[str, str]], lab: Lab) -> dict[str, Any]:
    """By kind: what is not there any more, or is another one now."""
    now = on_cluster(lab)
    gone = {kind: before[kind].items() - now[kind].items() for kind in before}
    return {kind: names for kind, names in gone.items() if names}


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Lab]:
    """The lab with a pod of somebody else, and with a namespace of theirs."""
    lab.kubectl("create namespace theirs")
    lab.apply(gpu_holder("worker-1", namespace="theirs"))
    lab.kubectl("wait --for=condition=Ready pod/training -n theirs --timeout=60s")
    yield lab
    lab.kubectl("delete namespace theirs --ignore-not-found")
    assert lab.up().returncode == 0


@pytest.fixture
def renamed(site: Lab) -> Iterator[str]:
    """The name of the stack `dev` until the test has ended."""
    file = PROJECT / "Pulumi.dev.yaml"
    text = file.read_text(encoding="utf-8")
    assert site.pulumi("stack", "rename", NEW, "--stack", "dev").returncode == 0
    try:
        stack = yaml.safe_load(text)
        stack["config"]["busbar:cluster"]["name"] = NEW
        file.with_name(f"Pulumi.{NEW}.yaml").write_text(yaml.safe_dump(stack), encoding="utf-8")
        yield NEW
    finally:
        done = site.pulumi("stack", "rename", "dev", "--stack", NEW)
        file.with_name(f"Pulumi.{NEW}.yaml").unlink(missing_ok=True)
        file.write_text(text, encoding="utf-8")
        assert done.returncode == 0, done.stderr


def test_a_renamed_stack_and_cluster_touch_nothing_on_the_cluster(site: Lab, renamed: str) -> None:
    before = on_cluster(site)
    text = busbar_up(site, renamed)
    assert "PASS" in text
    assert lost(before, site) == {}
    done = site.run(sys.executable, "-m", "busbar", "verify", renamed, seconds=UP_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
