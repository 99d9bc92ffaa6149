"""The outputs of stacks/training: never a pass without a plain one, and the gate."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stacks.training.capability import GATE
from stacks.training.package.outputs import FIELDS, Outputs, build_outputs, read_summary, summarize
from stacks.training.package.target import targets
from stacks.training.tests.support import cluster, training
from stacks.training.tests.unit.made import first, verdict
from tests.support.verdicts import passing


def outputs(result: dict[str, Any] | None, **config: Any) -> dict[str, Any]:
    configured = training(**config)
    found = targets(cluster(), configured)
    return build_outputs(configured, "site", found, {} if result is None else {"h100": result})


def test_a_pass_is_exported_with_its_numbers() -> None:
    found = outputs(read_summary(json.dumps(summarize(verdict(), verdict_file=".busbar/x/verdict.json"))))
    assert tuple(found) == tuple(Outputs.model_fields)
    assert (found["training_passed"], found["training_reasons"]) == (True, [])
    assert found["training"]["h100"]["busbw_gbps"] == pytest.approx(390.17, abs=0.01)
    assert set(found["training"]["h100"]) <= set(FIELDS)


def test_a_fail_is_exported_with_its_reasons_which_the_gate_names_with_what_to_do() -> None:
    found = outputs(summarize(verdict(first())))
    assert found["training_passed"] is False
    assert any("recovery: a rank was killed" in reason for reason in found["training_reasons"])
    text = GATE.refusal(found, enforce=True)
    assert text is not None
    assert text.startswith("training run failed for cluster site:\n  - ")
    assert "raise proof.run by one" in text and "proof.enforce: false" in text
    for nothing in (outputs(None), build_outputs(training(), "site", {}, {})):
        assert nothing["training_passed"] is False


@pytest.mark.parametrize(
    "printed",
    [
        None,
        "",
        "[]",
        "Traceback",
        '{"passed": true}',
        '{"schema": 2, "passed": true, "verdict": "pass"}',
        '{"schema": 1, "passed": true, "verdict": "pass", "busbw_gbps": 1.0}',
        '{"schema": 2, "passed": "true", "verdict": "pass", "busbw_gbps": 1.0}',
        '{"schema": 2, "passed": true, "verdict": "unknown", "busbw_gbps": 1.0}',
        '{"schema": 2, "passed": true, "verdict": "pass", "busbw_gbps": 1.0, "reasons": ["x"]}',
    ],
)
def test_anything_but_a_plain_pass_is_no_pass_and_has_a_reason(printed: str | None) -> None:
    found = outputs(read_summary(printed))
    assert found["training_passed"] is False
    assert found["training_reasons"]


def test_a_reason_names_its_pool_where_there_are_several() -> None:
    configured = training()
    [target] = targets(cluster(), configured).values()
    results = {
        "a": summarize(verdict()),
        "b": {"schema": 2, "passed": False, "verdict": "fail", "reasons": ["x"]},
    }
    found = build_outputs(configured, "site", {"a": target, "b": target}, results)
    assert (found["training_passed"], found["training_reasons"]) == (False, ["pool b: x"])


def test_what_was_simulated_when_the_fabric_was_measured_is_exported() -> None:
    config = training()
    found = targets(cluster({**passing(), "simulated": "nccl-tests on CPUs"}), config)
    built = build_outputs(config, "site", found, {"h100": summarize(verdict())})
    assert built["training"]["h100"]["simulated"] == "nccl-tests on CPUs"
