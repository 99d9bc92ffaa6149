"""stacks/training under mocks: what it puts on a cluster that passed, and that it refuses any other."""

from __future__ import annotations

import json
from typing import Any

import pulumi
from pulumi.runtime import mocks

from tests.program.answers import KUBECONFIG
from tests.program.harness import PROVIDER, ROOT, Run, run_program, texts
from tests.support.training import CLUSTER, configured, outputs
from tests.support.verdicts import failing

NAMESPACE = "kubernetes:core/v1:Namespace"


def up(verdict: dict[str, Any] | None = None, config: dict[str, Any] | None = None, **change: Any) -> Run:
    """Run the program against the outputs of a stack with this verdict."""
    of_stack = {**outputs(verdict), "kubeconfig": KUBECONFIG, **change}
    state = {"outputs": of_stack, "secretOutputNames": ["kubeconfig"]}

    def answer(args: mocks.MockResourceArgs) -> dict[str, Any]:
        return state if args.typ == "pulumi:pulumi:StackReference" else {}

    return run_program(
        {},
        answer,
        program=ROOT / "stacks" / "training" / "__main__.py",
        project="busbar-training",
        config={"busbar-training:training": json.dumps(configured() if config is None else config)},
    )


def created(run: Run) -> list[str]:
    """What was registered besides the stack and the reference."""
    return [each.type for each in run.custom if each.type != "pulumi:pulumi:StackReference"]


def test_a_cluster_that_passed_gets_a_namespace_whose_pods_may_lock_memory() -> None:
    run = up()
    assert run.error is None
    [namespace] = run.of_type(NAMESPACE)
    assert namespace.inputs["metadata"]["name"] == "busbar-training"
    assert namespace.inputs["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


def test_a_cluster_that_failed_is_refused_with_its_reasons_and_nothing_is_created() -> None:
    run = up(failing("GDRDMA is missing on 3 channels"))
    assert isinstance(run.error, pulumi.RunError)
    assert "GDRDMA is missing on 3 channels" in str(run.error)
    assert created(run) == []


def test_an_invalid_configuration_is_refused_before_the_cluster_is_asked() -> None:
    run = up(config={"cluster": "prod"})
    assert isinstance(run.error, pulumi.RunError)
    assert str(run.error).startswith("invalid configuration of stack test:\ncluster: 'prod' is not a stack")
    assert run.custom == []


def test_outputs_of_another_contract_are_refused_with_the_stack_s_name() -> None:
    run = up(contract_version=1)
    assert isinstance(run.error, pulumi.RunError)
    assert str(run.error).startswith(f"{CLUSTER}: unsupported contract_version 1")
    assert created(run) == []


def test_the_kubeconfig_of_the_cluster_stays_a_secret() -> None:
    [provider] = up().of_type(PROVIDER)
    assert all(secret for path, _, secret in texts(provider.raw) if path == "kubeconfig")
