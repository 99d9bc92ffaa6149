"""`busbar verify` of a stack whose charts are on the cluster of another stack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from busbar.capability import Capability
from busbar.cli import charts
from busbar.finding import Finding
from busbar.helm import drift
from busbar.helm.drift import Difference
from busbar.kube.client import ApiError
from busbar.outputs import ClusterOutputs
from tests.support.measured import outputs

pytestmark = pytest.mark.usefixtures("stack_dev")

RELEASE = "kubernetes:helm.sh/v3:Release"
RESOURCES: list[dict[str, Any]] = [
    {"urn": "urn::a", "type": "pulumi:pulumi:StackReference", "id": "o/busbar/site"},
    {"urn": "urn::cluster-id", "type": "pulumi:index:Stash", "inputs": {"input": {"id": "11"}}},
    {"urn": "urn::b", "type": RELEASE, "inputs": {"namespace": "slurm", "name": "slurm"}},
]
OUTPUTS = {**outputs(), "cluster_id": "11", "kubeconfig": "text"}
PATCHED = Difference("/x", {}, "NodeSet slurm/lab: spec.replicas is 1, expected 2")
REFUSED = Difference("/y", {}, "Service slurm/x cannot be compared: no", refused=True)


def works(config: object, cluster: ClusterOutputs, api: object) -> list[Finding]:
    assert cluster.cluster_id == "11"
    return [Finding(("worker-1",), "no node of Slurm", "repair it", kind="site")]


class Config:
    """The configuration of a probe."""

    cluster = "o/busbar/site"

    @classmethod
    def read(cls, path: Path) -> type[Config]:
        return cls


PROBE = Capability(name="probe", help="", commands="", config=f"{__name__}:Config", ready=f"{__name__}:works")


def rows(
    monkeypatch: pytest.MonkeyPatch,
    *differences: Difference | ApiError,
    resources: list[dict[str, Any]] = RESOURCES,
    cluster: str = "11",
    status: str = "deployed",
    **change: Any,
) -> tuple[list[str], list[tuple[str, str]]]:
    """The fixes, and host and difference of each row."""

    def compared(_: object, releases: list[tuple[str, str]]) -> list[Difference]:
        assert releases == [("slurm", "slurm")]
        for each in differences:
            if isinstance(each, ApiError):
                raise each
        return [each for each in differences if isinstance(each, Difference)]

    state = json.dumps({"deployment": {"resources": resources}})
    monkeypatch.setattr(charts, "read_state", lambda *_: state)
    outputs = json.dumps({**OUTPUTS, **change, "cluster_id": cluster})
    monkeypatch.setattr(charts, "read_outputs", lambda *_: outputs)
    monkeypatch.setattr(charts, "RestApi", lambda _: object())
    monkeypatch.setattr(charts, "statuses", lambda _: {("slurm", "slurm"): status})
    monkeypatch.setattr(drift, "differences", compared)
    found = charts.verify(Path("Pulumi.dev.yaml"), PROBE)
    return [*found.fixes()], [(each.host, each.what) for each in found.drift]


def test_a_changed_object_is_converged_and_what_fails_has_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    fixes, found = rows(monkeypatch, PATCHED, REFUSED)
    assert found == [("cluster", PATCHED.what), ("cluster", REFUSED.what), ("worker-1", "no node of Slurm")]
    repairs = ["cluster: repair what the API server names", "worker-1: repair it"]
    assert fixes == ["busbar up dev --converge cluster", *repairs]


def test_a_release_that_is_not_deployed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _, [first, *_] = rows(monkeypatch, status="failed")
    assert first == ("cluster", "Helm release slurm/slurm is failed, expected deployed")


def test_outputs_of_the_cluster_that_cannot_be_read_are_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    fixes, [(_, what)] = rows(monkeypatch, contract_version=9)
    assert what.startswith("the outputs of o/busbar/site cannot be read: ")
    assert fixes == ["cluster: busbar up o/busbar/site"]


def test_without_an_answer_nothing_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    _, [(_, what)] = rows(monkeypatch, ApiError("GET /x", None, "connection refused"))
    assert what == "it cannot be compared: GET /x: connection refused"


def test_a_stack_without_releases_or_cluster_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = (["cluster: busbar up dev"], [("cluster", "this stack has installed nothing")])
    assert rows(monkeypatch, resources=[]) == nothing
    fixes, [(_, what)] = rows(monkeypatch, cluster="12")
    assert what == "o/busbar/site has another cluster now; 11, on which this stack was, is gone"
    assert fixes == ["cluster: busbar destroy dev"]
