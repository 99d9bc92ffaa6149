"""The step `bind-claim` as the engine runs it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from busbar.kube import wait
from tests.support import cli
from tests.support.kube_cluster import Clock, Cluster

CLAIM = "/api/v1/namespaces/team/persistentvolumeclaims/shared-1"
QUESTION = {"namespace": "team", "claim": "shared-1", "worker": "w1", "deadline_seconds": 60}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The command finds this cluster, and time that only passes while it waits."""
    volume = {
        "metadata": {"name": "pv-1"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Ti"},
            "persistentVolumeReclaimPolicy": "Delete",
        },
    }
    claim = {
        "metadata": {"name": "shared-1"}, "spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"},
    }  # fmt: skip
    api = Cluster(
        {
            CLAIM: claim,
            "/api/v1/persistentvolumes/pv-1": volume,
            "/api/v1/namespaces/team/events": [],
        }
    )
    api.server = "https://10.0.0.1:6443"  # type: ignore[attr-defined]
    monkeypatch.setattr("busbar.kube.client.connect", lambda: api)
    monkeypatch.setattr(wait, "SystemClock", Clock)
    return api


def bind(**request: Any) -> Any:
    return cli.busbar("step", "training", "bind-claim", stdin=json.dumps({**QUESTION, **request}))


@pytest.mark.usefixtures("cluster")
def test_a_bound_claim_is_printed_and_what_was_changed_goes_to_stderr() -> None:
    done = bind()
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"claim": "shared-1", "volume": "pv-1", "capacity": "1Ti"}
    assert "reclaim policy Delete changed to Retain" in done.stderr


def test_a_claim_that_is_not_bound_in_time_ends_it_with_1_and_its_state(cluster: Cluster) -> None:
    cluster.objects[CLAIM]["status"]["phase"] = "Pending"
    done = bind()
    assert (done.exit_code, done.stdout) == (1, "")
    assert "timed out after 60 s: PersistentVolumeClaim team/shared-1 is Pending" in done.stderr


@pytest.mark.usefixtures("cluster")
def test_a_question_that_is_not_valid_is_bad_usage() -> None:
    assert bind(worker="").exit_code == 64
