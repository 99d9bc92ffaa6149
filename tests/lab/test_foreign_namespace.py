"""A namespace of others, beside a pod of theirs that holds a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.lab import Lab, gpu_holder

pytestmark = pytest.mark.drill


def on_cluster(lab: Lab) -> set[tuple[str, str]]:
    """What an update that replaces anything would change. Pods that pull an image end on their own."""
    kinds = ("namespaces", "pods", "configmaps", "mpijobs", "nodes", "secrets -l owner=helm")
    found = {item for kind in kinds for item in lab.uids(kind).items()}
    return {(name, uid) for name, uid in found if "-image-" not in name}


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Lab]:
    """The lab with a pod of somebody else, and with a namespace of theirs."""
    lab.kubectl("create namespace theirs")
    lab.apply(gpu_holder("worker-1", namespace="theirs"))
    lab.kubectl("wait --for=condition=Ready pod/training -n theirs --timeout=60s")
    yield lab
    lab.kubectl("delete namespace theirs --ignore-not-found")
    assert lab.up().returncode == 0


def test_a_namespace_of_others_is_refused_and_stays(site: Lab) -> None:
    def take(cluster: dict[str, Any]) -> None:
        cluster["validation"]["namespace"] = "theirs"

    before = on_cluster(site)
    done = site.up("--continue-on-error", "--config-file", str(site.config_with(take)))
    assert done.returncode != 0
    assert "namespace theirs exists and was not created by this stack" in done.stdout + done.stderr
    assert on_cluster(site) >= before
