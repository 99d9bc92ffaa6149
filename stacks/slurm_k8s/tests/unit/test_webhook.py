"""The operator is installed when its webhook has accepted an object that is not stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from busbar.kube.client import ApiError, JsonObject
from busbar.kube.wait import TimedOut
from stacks.slurm_k8s.package.steps import StepSpec, await_webhook
from stacks.slurm_k8s.tests.support import SlurmCluster
from tests.support.kube_cluster import Clock

SLICES = "/apis/discovery.k8s.io/v1/namespaces/slinky/endpointslices"


class Webhook(SlurmCluster):
    """A cluster whose webhook refuses `refusals` times."""

    def __init__(self, ready: bool, refusals: int = 0) -> None:
        super().__init__()
        self.objects[SLICES] = [{"endpoints": [{"conditions": {"ready": ready}}]}]
        self.refusals, self.asked = refusals, list[str]()

    def create(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        self.asked.append(path)
        if len(self.asked) <= self.refusals:
            raise ApiError(f"POST {path}", 500, "x509: certificate signed by unknown authority")
        return dict(body)


def wait(cluster: Webhook) -> None:
    await_webhook(cluster, StepSpec(namespace="slurm"), Clock(), lambda _: None)


def test_a_webhook_with_a_new_certificate_is_waited_for_and_nothing_is_stored() -> None:
    cluster = Webhook(ready=True, refusals=3)
    wait(cluster)
    assert len(cluster.asked) == 4
    assert all(path.endswith("?dryRun=All") for path in cluster.asked)


def test_without_a_ready_endpoint_an_accepted_object_says_nothing() -> None:
    cluster = Webhook(ready=False)
    with pytest.raises(TimedOut, match="has no ready endpoint"):
        wait(cluster)
    assert cluster.asked == []
