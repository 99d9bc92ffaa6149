"""The program of each capability on another stack's cluster: what the frame does for all of them."""

from typing import Any

import pulumi
import pytest

from busbar.capability import Capability, Gate, capabilities
from tests.program.answers import CLIENT_KEY
from tests.program.harness import PROVIDER, Answers, Run, texts
from tests.program.on_cluster import CLUSTER, NAMESPACE, REFERENCE, created, run_on_cluster
from tests.support.measured import outputs
from tests.support.verdicts import failing

ON_A_CLUSTER = [each for each in capabilities() if each.gate and not each.host_roles]
pytestmark = pytest.mark.parametrize("capability", ON_A_CLUSTER, ids=lambda each: each.name)


def up(capability: Capability, config: dict[str, Any] | None = None, **given: Any) -> Run:
    """Run its program; its steps print {}, which is the result of none."""
    return run_on_cluster(capability.name, {"cluster": CLUSTER, **(config or {})}, {}, **given)


def gate_of(capability: Capability) -> Gate:
    assert capability.gate
    return capability.gate


def test_a_cluster_that_failed_is_refused_with_its_reasons(capability: Capability) -> None:
    run = up(capability, of_cluster=outputs(failing("GDRDMA is missing on 3 channels")))
    assert isinstance(run.error, pulumi.RunError)
    assert "GDRDMA is missing on 3 channels" in str(run.error)
    assert f"raise validation.run of {CLUSTER} and update it" in str(run.error), "else nothing is measured"
    assert created(run) == []


def test_outputs_of_another_contract_are_refused_with_the_stack_s_name(capability: Capability) -> None:
    run = up(capability, of_cluster={**outputs(), "contract_version": 1})
    assert str(run.error).startswith(f"{CLUSTER}: unsupported contract_version 1")
    assert created(run) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [({"config": {"cluster": "prod"}}, "\ncluster: 'prod' is not a stack"), ({}, "{}:stack: unknown key")],
    ids=["value", "key"],
)
def test_an_invalid_configuration_is_refused_before_the_cluster_is_asked(
    capability: Capability, given: dict[str, Any], said: str
) -> None:
    project = f"busbar-{capability.name}"
    run = up(capability, **(given or {"more": {f"{project}:stack": "x"}}))
    assert isinstance(run.error, pulumi.RunError) and said.format(project) in str(run.error)
    assert run.custom == []


def test_a_preview_of_a_new_stack_needs_nothing_of_the_cluster(capability: Capability) -> None:
    assert up(capability, preview=True).error is None


def test_the_cluster_is_identified_by_its_id_and_a_namespace_claimed_first(capability: Capability) -> None:
    run = up(capability, of_cluster={**outputs(), "cluster_id": "a1"})
    [provider] = run.of_type(PROVIDER)
    assert run.named("cluster-id").inputs["input"]["id"] == provider.inputs["clusterIdentifier"] == "a1"
    # It adopts what an interrupted update has made.
    assert provider.inputs["upsertExistingObjects"] == "true"
    assert run.of_type(NAMESPACE)
    for namespace in run.of_type(NAMESPACE):
        assert list(namespace.request.hooks.before_create) == [f"{namespace.name}-claim"]


def test_a_targeted_update_on_another_cluster_is_refused(
    capability: Capability, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pulumi up --target` runs no hook of the other resources, and answers with what their state has."""
    answer = Answers.new_resource

    def known(self: Answers, args: Any) -> Any:
        is_id = args.name == "cluster-id"
        return ("id", {**args.inputs, "output": {"id": "a1"}}) if is_id else answer(self, args)

    monkeypatch.setattr(Answers, "new_resource", known)
    run = up(capability, of_cluster={**outputs(), "cluster_id": "another"})
    assert "is another one than before: its id is another, expected a1." in str(run.error)
    assert created(run) == []


def test_a_targeted_update_exports_nothing_of_steps_that_it_leaves_out(
    capability: Capability, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Answers.new_resource

    def left_out(self: Answers, args: Any) -> Any:
        name, outputs = answer(self, args)
        is_step = f"step {capability.name}" in str(args.inputs.get("create"))
        return name, {**outputs, "stdin": "{}"} if is_step else outputs

    monkeypatch.setattr(Answers, "new_resource", left_out)
    run = up(capability, of_cluster={**outputs(), "cluster_id": "targeted"})
    assert str(run.error).startswith("the outputs stay as they were: this update leaves out ")
    assert gate_of(capability).passed not in str(run.registered_outputs)


def test_the_kubeconfig_is_secret_wherever_it_is(capability: Capability) -> None:
    found = [
        (each.name, path, secret)
        for each in up(capability).custom
        if each.type != REFERENCE
        for path, text, secret in texts(each.raw)
        if CLIENT_KEY in text
    ]
    assert found and [each for each in found if not each[2]] == []


def test_what_is_no_pass_is_exported_and_fails_the_update_if_it_is_a_gate(capability: Capability) -> None:
    gate, run = gate_of(capability), up(capability)
    assert isinstance(run.error, pulumi.RunError)
    assert f"{gate.title} for cluster site:\n  - " in str(run.error)
    without = up(capability, {gate.raised.partition(".")[0]: {"enforce": False}})
    assert without.error is None
    for each in (run, without):
        assert each.outputs[gate.passed] is False and each.outputs[gate.reasons]


def test_a_result_is_asked_for_again_when_its_contract_changes(capability: Capability) -> None:
    asked = [each.inputs.get("triggers") or [] for each in up(capability).custom]
    assert any(f"contract {gate_of(capability).contract}" in triggers for triggers in asked)
