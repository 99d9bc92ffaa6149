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


def test_a_run_is_shown_with_its_results_beside_what_was_expected() -> None:
    built = outputs()
    text = shown(built)
    assert text.startswith("PASS  h100: all-reduce of the gradients 390.17 GB/s\n")
    for row in (
        "loss 1.7, at the end 0.0153", "gradients 1 GiB", "step 20 ms", "all-reduce 5.16 ms",
        "expected 5.16 ms", "of measured 100.0 % of 390 GB/s", "checkpoint 2 GiB in 1.5 s",
    ):  # fmt: skip
        assert row in rows(text), text
    both = {"a": built["training"]["h100"], "b": {**built["training"]["h100"], "ranks": 4}}
    assert {"a b", "ranks 16 4"} <= {*rows(shown({**built, "training": both}))}, "every pool has a column"


def test_what_was_simulated_where_the_verdict_is_and_what_jobs_refer_to_are_shown(tmp_path: Path) -> None:
    built = outputs(runtimes=["busbar-torch-h100"])
    storage = {"mode": "nfs", "namespace": "team", "claim": "shared-1"}
    run = {**built["training"]["h100"], "simulated": "on CPUs"}
    found = {**built, "training": {"h100": run}, "storage": storage}
    text = rows(shown(found))
    for row in (
        "simulated h100: on CPUs",
        "verdict .busbar/x/h100/verdict.json",
        "claim team/shared-1",
        "runtimes busbar-torch-h100",
    ):
        assert row in text, text
    assert f"{tmp_path}/h100/verdict.json" in shown(found, tmp_path)


def test_a_failed_run_shows_its_reasons_and_no_row_of_what_was_not_measured() -> None:
    text = shown(outputs(verdict(first())))
    assert text.startswith("FAIL  training run failed\n      ")
    assert "a rank was killed" in text
    names = {row.split(" ")[0] for row in rows(text)}
    assert "loss" in names and not {"step", "all-reduce", "busbw"} & names


@pytest.mark.parametrize("why", ["no verdict: nothing was trained", "not trained: proof.enabled is false"])
def test_a_pool_without_a_result_was_not_measured_and_has_no_table(why: str) -> None:
    found = outputs(training={}, training_passed=False, training_reasons=[why])
    assert shown(found).split("\n")[:2] == ["NOT MEASURED  ", f"      {why}"]
    assert "FAIL" not in shown(found)


@pytest.mark.parametrize("is_of_this_run", [True, False])
def test_the_checks_are_shown_where_the_verdict_of_this_run_is_on_this_machine(
    is_of_this_run: bool, tmp_path: Path
) -> None:
    (tmp_path / "h100").mkdir()
    kept = verdict() if is_of_this_run else verdict(first())
    (tmp_path / "h100" / "verdict.json").write_text(json.dumps(kept.model_dump(mode="json")))
    found = outputs()
    found["training"]["h100"]["simulated"] = "known of the fabric, not of the run"
    text = rows(shown(found, tmp_path))
    assert any(row.startswith("h100 recovery pass ") for row in text) is is_of_this_run
