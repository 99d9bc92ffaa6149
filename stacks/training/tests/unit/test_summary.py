"""What the terminal shows of a training run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stacks.training.package.outputs import build_outputs, summarize, summary
from stacks.training.package.target import targets
from stacks.training.package.verdict import Verdict
from stacks.training.tests.support import cluster, training
from stacks.training.tests.unit.made import first, verdict


def outputs(found: Verdict | None = None, **change: Any) -> dict[str, Any]:
    configured = training()
    result = summarize(found or verdict(), verdict_file=".busbar/x/h100/verdict.json")
    built = build_outputs(configured, "site", targets(cluster(), configured), {"h100": result})
    return {**built, **change}


def shown(found: dict[str, Any], folder: Path | None = None) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(summary(found, folder=folder))
    return capture.get()


def rows(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_pass_begins_with_the_bandwidth_of_the_gradients() -> None:
    assert shown(outputs()).startswith("PASS  h100: all-reduce of the gradients 390.17 GB/s\n")


def test_a_run_is_shown_with_its_results_beside_what_was_expected() -> None:
    text = rows(shown(outputs()))
    for row in (
        "verdict pass",
        "workers 2",
        "ranks 16",
        "starts 2",
        "loss 1.7, at the end 0.0153",
        "gradients 1 GiB",
        "step 20 ms",
        "all-reduce 5.16 ms",
        "expected 5.16 ms",
        "busbw 390.17 GB/s",
        "of measured 100.0 % of 390 GB/s",
        "checkpoint 2 GiB in 1.5 s",
        "torch 2.13.0",
    ):
        assert row in text, text


def test_what_was_not_measured_has_no_row() -> None:
    names = [row.split(" ")[0] for row in rows(shown(outputs(verdict(first()))))]
    assert "loss" in names and not {"step", "all-reduce", "busbw"} & set(names)


def test_what_was_simulated_and_where_the_verdict_is_are_shown(tmp_path: Path) -> None:
    built = outputs()
    found = {**built, "training": {"h100": {**built["training"]["h100"], "simulated": "on CPUs"}}}
    text = rows(shown(found))
    for row in ("simulated h100: on CPUs", "verdict .busbar/x/h100/verdict.json"):
        assert row in text, text
    assert f"{tmp_path}/h100/verdict.json" in shown(found, tmp_path)


def test_what_jobs_refer_to_is_shown() -> None:
    storage = {"mode": "nfs", "namespace": "team", "claim": "shared-1"}
    text = rows(shown({**outputs(runtimes=["busbar-torch-h100"]), "storage": storage}))
    for row in ("claim team/shared-1", "runtimes busbar-torch-h100"):
        assert row in text, text


def test_every_pool_has_a_column() -> None:
    built = outputs()
    both = {"a": built["training"]["h100"], "b": {**built["training"]["h100"], "ranks": 4}}
    text = rows(shown({**built, "training": both}))
    assert "a b" in text and "ranks 16 4" in text


def test_no_line_of_a_run_on_one_pool_is_wider_than_80_characters() -> None:
    assert max(map(len, shown(outputs()).splitlines())) <= 80


def test_a_failed_run_shows_its_reasons() -> None:
    text = shown(outputs(verdict(first())))
    assert text.startswith("FAIL  training run failed\n      ")
    assert "a rank was killed" in text


@pytest.mark.parametrize("why", ["no verdict: nothing was trained", "not trained: proof.enabled is false"])
def test_a_pool_without_a_result_was_not_measured_and_has_no_table(why: str) -> None:
    found = outputs(training={}, training_passed=False, training_reasons=[why])
    assert shown(found).split("\n")[:2] == ["NOT MEASURED  ", f"      {why}"]
    assert "FAIL" not in shown(found)


def kept(folder: Path, found: Verdict) -> None:
    (folder / "h100").mkdir()
    (folder / "h100" / "verdict.json").write_text(json.dumps(found.model_dump(mode="json")))


def test_the_checks_are_shown_where_the_verdict_of_this_run_is_on_this_machine(tmp_path: Path) -> None:
    kept(tmp_path, verdict())
    found = outputs()
    found["training"]["h100"]["simulated"] = "known of the fabric, not of the run"
    assert any(row.startswith("h100 recovery pass ") for row in rows(shown(found, tmp_path)))


def test_the_checks_of_another_run_are_not_shown(tmp_path: Path) -> None:
    kept(tmp_path, verdict(first()))
    assert "recovery" not in shown(outputs(), tmp_path)


def test_outputs_of_another_contract_are_refused() -> None:
    with pytest.raises(ValueError, match="unsupported training_contract_version 2"):
        summary(outputs(training_contract_version=2))
