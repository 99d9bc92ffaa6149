"""The outputs, the gate, and what the terminal shows."""

import json
from typing import Any

import pytest

from stacks.watch.capability import GATE
from stacks.watch.package.outputs import build_outputs, summary
from stacks.watch.tests.support import watch
from tests.support.cli import shown

PASS = {"passed": True, "reasons": [], "nodes": 2}
FAIL = {"passed": False, "reasons": ["gpu-2 1/2"], "nodes": 1}


def outputs(printed: Any = PASS, **config: Any) -> dict[str, Any]:
    text = printed if isinstance(printed, str | None) else json.dumps(printed)
    return build_outputs(watch(**config), "site", text)


def test_a_check_that_passed_is_a_pass() -> None:
    found = outputs()
    assert (found["watch_passed"], found["watch_reasons"], found["nodes_read"]) == (True, [], 2)
    assert GATE.refusal(found, enforce=True) is None
    assert shown(summary(found)).startswith("PASS  all rails of 2 nodes are read\n")


def test_a_check_that_did_not_pass_fails_the_update_and_shows_its_reasons() -> None:
    found = outputs(FAIL)
    text = GATE.refusal(found, enforce=True)
    assert text and text.startswith("monitoring is not complete for cluster site:\n  - gpu-2 1/2\n")
    assert shown(summary(found)).startswith("FAIL  monitoring is not complete\n      gpu-2 1/2\n")


@pytest.mark.parametrize(
    "printed", [None, "Traceback", {**PASS, "nodes": "all"}, {**PASS, "reasons": ["but"]}]
)
def test_anything_else_that_was_printed_is_no_pass(printed: Any) -> None:
    found = outputs(printed)
    assert found["watch_passed"] is False
    assert GATE.refusal(found, enforce=True)


def test_an_installed_grafana_names_its_secret_and_dcgm_what_to_set_in_the_cluster_s_stack() -> None:
    found = outputs(stack={"mode": "install"})
    assert found["grafana_secret"] == "kube-prometheus-stack/busbar-grafana-admin"
    said = 'gpu_operator.values: {"dcgmExporter": {"config": {"name": "busbar-dcgm-counters"}}}'
    assert said in shown(summary(found))
    plain = outputs(dcgm=False)
    assert plain["grafana_secret"] is plain["gpu_operator_values"] is None
    assert "gpu_operator" not in shown(summary(plain))
