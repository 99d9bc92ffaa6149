"""The outputs of stacks/training: never a pass without a plain one, the gate, and what the terminal shows."""

import json
from pathlib import Path
from typing import Any

import pytest

from stacks.training.capability import GATE
from stacks.training.package.outputs import FIELDS, Outputs, build_outputs, read_summary, summarize, summary
from stacks.training.package.target import targets
from stacks.training.package.verdict import Verdict
from stacks.training.tests.support import cluster, target, training
from stacks.training.tests.unit.made import first, verdict
from tests.support import cli
from tests.support.verdicts import passing


def outputs(result: dict[str, Any] | None, **change: Any) -> dict[str, Any]:
    """The outputs of a run on one pool, with these changes."""
    config = training()
    results = {} if result is None else {"h100": result}
    return {**build_outputs(config, "site", targets(cluster(), config), results), **change}


def of_run(found: Verdict | None = None, **change: Any) -> dict[str, Any]:
    return outputs(summarize(found or verdict(), verdict_file=".busbar/x/h100/verdict.json"), **change)


def shown(found: dict[str, Any], folder: Path | None = None) -> str:
    return cli.shown(summary(found, folder=folder))


def rows(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_run_is_exported_and_shown_with_its_results_beside_what_was_expected() -> None:
    printed = json.dumps(summarize(verdict(), verdict_file=".busbar/x/verdict.json"))
    built = outputs(read_summary(printed))
    assert tuple(built) == tuple(Outputs.model_fields)
    assert (built["training_passed"], built["training_reasons"]) == (True, [])
    assert built["training"]["h100"]["busbw_gbps"] == pytest.approx(390.17, abs=0.01)
    assert set(built["training"]["h100"]) <= set(FIELDS)
    text = shown(built)
    assert text.startswith("PASS  h100: all-reduce of the gradients 390.17 GB/s\n")
    for row in (
        "loss 1.7, at the end 0.0153", "gradients 1 GiB", "step 20 ms", "all-reduce 5.16 ms",
        "expected 5.16 ms", "of measured 100.0 % of 390 GB/s", "checkpoint 2 GiB in 1.5 s",
    ):  # fmt: skip
        assert row in rows(text), text
    both = {"a": built["training"]["h100"], "b": {**built["training"]["h100"], "ranks": 4}}
    assert {"a b", "ranks 16 4"} <= {*rows(shown({**built, "training": both}))}, "every pool has a column"


def test_a_fail_is_exported_with_its_reasons_which_the_gate_names_and_the_terminal_shows() -> None:
    found = of_run(verdict(first()))
    assert found["training_passed"] is False
    assert any("recovery: a rank was killed" in reason for reason in found["training_reasons"])
    refusal = GATE.refusal(found, enforce=True)
    assert refusal and "raise proof.run by one" in refusal and "proof.enforce: false" in refusal
    text = shown(found)
    assert text.startswith("FAIL  training run failed\n      ") and "a rank was killed" in text
    names = {row.split(" ")[0] for row in rows(text)}
    assert "loss" in names and not {"step", "all-reduce", "busbw"} & names, "no row of what was not measured"
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
    failed = {"schema": 2, "passed": False, "verdict": "fail", "reasons": ["x"]}
    pools = dict.fromkeys("ab", target(training()))
    found = build_outputs(training(), "site", pools, {"a": summarize(verdict()), "b": failed})
    assert (found["training_passed"], found["training_reasons"]) == (False, ["pool b: x"])


def test_what_was_simulated_where_the_verdict_is_and_what_jobs_refer_to_are_shown(tmp_path: Path) -> None:
    config, storage = training(), {"mode": "nfs", "namespace": "team", "claim": "shared-1"}
    pools = targets(cluster({**passing(), "simulated": "on CPUs"}), config)
    result = summarize(verdict(), verdict_file=".busbar/x/h100/verdict.json")
    built = build_outputs(config, "site", pools, {"h100": result}, runtimes=["busbar-torch-h100"])
    found = {**built, "storage": storage}
    for row in (
        "simulated h100: on CPUs", "verdict .busbar/x/h100/verdict.json", "claim team/shared-1",
        "runtimes busbar-torch-h100",
    ):  # fmt: skip
        assert row in rows(shown(found))
    assert f"{tmp_path}/h100/verdict.json" in shown(found, tmp_path)


@pytest.mark.parametrize("why", ["no verdict: nothing was trained", "not trained: proof.enabled is false"])
def test_a_pool_without_a_result_was_not_measured_and_has_no_table(why: str) -> None:
    found = of_run(training={}, training_passed=False, training_reasons=[why])
    assert shown(found).split("\n")[:2] == ["NOT MEASURED  ", f"      {why}"]
    assert "FAIL" not in shown(found)


@pytest.mark.parametrize("is_of_this_run", [True, False])
def test_the_checks_are_shown_where_the_verdict_of_this_run_is_on_this_machine(
    is_of_this_run: bool, tmp_path: Path
) -> None:
    (tmp_path / "h100").mkdir()
    kept = verdict() if is_of_this_run else verdict(first())
    (tmp_path / "h100" / "verdict.json").write_text(json.dumps(kept.model_dump(mode="json")))
    found = of_run()
    found["training"]["h100"]["simulated"] = "known of the fabric, not of the run"
    text = rows(shown(found, tmp_path))
    assert any(row.startswith("h100 recovery pass ") for row in text) is is_of_this_run
