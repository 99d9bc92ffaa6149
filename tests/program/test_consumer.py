"""examples/consumer under mocks: it uses a cluster that passed and refuses any other."""

from __future__ import annotations

from typing import Any

import pulumi
from pulumi.runtime import mocks

from busbar.config import load
from busbar.outputs import build_outputs
from busbar.outputs.contract import summarize
from tests.program.answers import KUBECONFIG
from tests.program.harness import PROVIDER, ROOT, Run, run_program, texts
from tests.support.clusters import site
from tests.support.verdicts import failing, passing

CONFIG_MAP = "kubernetes:core/v1:ConfigMap"


def consume(verdict: dict[str, Any], **change: Any) -> Run:
    """Run the consumer against the outputs of a stack with this verdict."""
    outputs = build_outputs(
        load(site()),
        versions={"k3s": "v1.35.6+k3s1"},
        facts={f"gpu-{i}": {"gpus": 8, "rails": 8} for i in (1, 2)},
        results={"h100": summarize(verdict)},
    )
    stack = {"outputs": {**outputs, "kubeconfig": KUBECONFIG, **change}, "secretOutputNames": ["kubeconfig"]}

    def answer(args: mocks.MockResourceArgs) -> dict[str, Any]:
        return stack if args.typ == "pulumi:pulumi:StackReference" else {}

    return run_program(
        {},
        answer,
        program=ROOT / "examples" / "consumer" / "__main__.py",
        project="busbar-consumer",
        config={"busbar-consumer:cluster": "organization/busbar/dev", "busbar-consumer:namespace": "jobs"},
    )


def test_a_cluster_that_passed_gets_a_config_map_with_its_measured_bandwidth() -> None:
    run = consume(passing())
    assert run.error is None
    [fabric] = run.of_type(CONFIG_MAP)
    assert fabric.inputs["data"] == {
        "busbw_gbps": "390.28", "expected_gbps": "400.00", "transport": "gpudirect-rdma", "simulated": "",
    }  # fmt: skip
    assert run.outputs["training_ready"] == {
        "cluster": "site", "nodes": 2, "gpus": 16, "busbw_gbps": 390.28, "config_map": "fabric",
    }  # fmt: skip


def test_the_cluster_is_identified_by_its_id_in_the_state_and_for_the_engine() -> None:
    run = consume(passing(), cluster_id="a1")
    [provider] = run.of_type(PROVIDER)
    assert run.named("cluster-id").inputs["input"]["id"] == provider.inputs["clusterIdentifier"] == "a1"


def test_the_kubeconfig_of_the_other_stack_stays_a_secret() -> None:
    [provider] = consume(passing()).of_type(PROVIDER)
    assert all(secret for path, _, secret in texts(provider.raw) if path == "kubeconfig")


def test_a_cluster_that_failed_is_refused_with_its_reasons_and_nothing_is_created() -> None:
    run = consume(failing("GDRDMA is missing on 3 channels"))
    assert isinstance(run.error, pulumi.RunError)
    assert "nccl_passed is false" in str(run.error)
    assert "GDRDMA is missing on 3 channels" in str(run.error)
    assert run.of_type(CONFIG_MAP) == []


def test_a_simulated_number_is_marked_in_the_config_map() -> None:
    [fabric] = consume({**passing(), "simulated": "nccl-tests on CPUs"}).of_type(CONFIG_MAP)
    assert fabric.inputs["data"]["simulated"] == "nccl-tests on CPUs"


def test_a_stack_of_contract_1_is_refused_with_what_to_do() -> None:
    run = consume(passing(), contract_version=1)
    assert isinstance(run.error, pulumi.RunError)
    assert "organization/busbar/dev: unsupported contract_version 1 (supported: 3). Fix: " in str(run.error)
    assert run.of_type(CONFIG_MAP) == []
