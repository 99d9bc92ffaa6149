"""What another program reads from the outputs of a busbar stack."""

import asyncio
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from busbar import __version__
from busbar.config import load
from busbar.outputs import ClusterOutputs, ContractError, Node, build_outputs
from busbar.outputs.contract import summarize
from tests.support.clusters import site
from tests.support.verdicts import failing, passing


def exported(verdict: dict[str, Any] | None = None) -> dict[str, Any]:
    """Outputs after their way through the engine: every number a float, and what is None is gone."""
    out = build_outputs(
        load(site()),
        versions={"k3s": "v1.35.6+k3s1"},
        facts={"gpu-1": {"gpus": 8, "rails": 8}},
        results={"h100": summarize(verdict or passing())},
    )
    known = {key: value for key, value in out.items() if value is not None}
    return json.loads(json.dumps(known), parse_int=float)


@dataclass
class Reference:
    """As pulumi.StackReference behaves: missing outputs have neither value, and secrets come apart."""

    outputs: dict[str, Any]
    secrets: frozenset[str] = frozenset()

    async def get_output_details(self, name: str) -> Any:
        value, is_secret = self.outputs.get(name), name in self.secrets
        return SimpleNamespace(value=None if is_secret else value, secret_value=value if is_secret else None)

    def require_output(self, key: str) -> Any:
        return f"secret output {key}"


def read(reference: Reference) -> ClusterOutputs:
    return asyncio.run(ClusterOutputs.from_stack(reference))


@pytest.mark.parametrize(("outputs", "identifier"), [({"cluster_id": "a1"}, "a1"), ({}, "busbar/site")])
def test_a_cluster_is_identified_by_its_id_else_by_its_name(outputs: dict[str, str], identifier: str) -> None:
    assert ClusterOutputs.from_dict({**exported(), **outputs}).identifier == identifier


def test_a_passing_cluster_is_read_typed_and_not_refused() -> None:
    cluster = ClusterOutputs.from_dict(exported())
    assert (cluster.refusal, cluster.nccl_passed, cluster.nccl_busbw_gbps) == (None, True, 390.28)
    assert (type(cluster.contract_version), cluster.busbar_version) == (int, __version__)
    assert cluster.nccl["h100"].transport == "gpudirect-rdma"
    assert cluster.nodes[4] == Node(name="gpu-1", role="worker", address="198.18.0.2", gpus=8, rails=8)


def test_a_failing_cluster_is_refused_with_its_reasons() -> None:
    outputs = exported(failing("GDRDMA is missing on 3 channels", busbw_gbps=None, fraction=None))
    cluster = ClusterOutputs.from_dict(outputs)
    assert ("nccl_busbw_gbps" in outputs, cluster.nccl_busbw_gbps) == (False, None)
    assert cluster.refusal == (
        "cluster site has not passed its NCCL validation (nccl_passed is false):\n"
        "  - GDRDMA is missing on 3 channels"
    )


@pytest.mark.parametrize(
    ("version", "fix"),
    [
        (2.0, "run `pulumi up` on that stack with a busbar that"),
        (4.0, "use a busbar package that reads contract 4"),
    ],
)
def test_another_contract_is_refused_before_anything_else_is_read(version: float, fix: str) -> None:
    with pytest.raises(ContractError) as refused:
        ClusterOutputs.from_dict({"contract_version": version})
    assert str(refused.value).startswith(
        f"unsupported contract_version {version:g} (supported: 3). Fix: {fix}"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"contract_version": None}, "this is not a busbar stack, or its first `pulumi up` has not ended"),
        ({"contract_version": "1"}, "contract_version is '1': this is not a busbar stack"),
        ({"nccl_passed": "false"}, "nccl_passed: Input should be a valid boolean, got 'false'"),
        ({"nccl_passed": 1.0}, "nccl_passed: Input should be a valid boolean, got 1.0"),
        ({"nccl_busbw_gbps": "390"}, "nccl_busbw_gbps: Input should be a valid number, got '390'"),
        ({"details": 7.0}, "details is not a JSON object in a JSON string: "),
        ({"details": '{"nodes": []}'}, "details is not a JSON object in a JSON string: "),
        ({"details": '"[]"'}, "details is not a JSON object in a JSON string: "),
        (
            {"details": json.dumps('{"nodes": [{"name": "gpu-1"}], "nccl": {}}')},
            "nodes.0.role: Field required",
        ),
    ],
)
def test_outputs_that_are_not_the_contract_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        ClusterOutputs.from_dict({**exported(), **change})


def test_every_missing_output_is_named() -> None:
    outputs = {key: each for key, each in exported().items() if key not in ("nccl_passed", "details")}
    with pytest.raises(ContractError, match="missing outputs: nccl_passed, details"):
        ClusterOutputs.from_dict(outputs)


def test_a_stack_reference_gives_the_same_and_keeps_the_kubeconfig_a_secret_output() -> None:
    cluster = read(Reference(exported()))
    assert cluster.nodes == ClusterOutputs.from_dict(exported()).nodes
    assert cluster.kubeconfig == "secret output kubeconfig"


def test_evidence_that_a_producer_marked_as_secret_is_still_read() -> None:
    assert read(Reference(exported(), secrets=frozenset({"details"}))).nccl["h100"].verdict == "pass"


def test_the_kubeconfig_is_not_in_the_text_of_the_outputs() -> None:
    cluster = ClusterOutputs.from_dict({**exported(), "kubeconfig": "apiVersion: v1 SECRET"})
    assert cluster.kubeconfig == "apiVersion: v1 SECRET"
    assert "SECRET" not in repr(cluster)
