"""The training run: its proof is copied, belongs to this run and is judged again by its own capability."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from busbar.exits import NoVerdict
from stacks.accept.package.evidence import Evidence
from stacks.accept.package.running import Running, run_stage
from stacks.accept.package.subjects import training
from stacks.accept.tests.unit import made

PROOF = "training.h100.proof"


@pytest.fixture
def on(tmp_path: Path) -> Callable[[Path | None], Running]:
    """A run whose proof lies in a folder, or nowhere."""
    return lambda folder: made.running(tmp_path, **({"training": str(folder)} if folder else {}))


def test_the_proof_is_copied_and_judged_again_with_its_time_per_step(
    on: Callable[[Path | None], Running], tmp_path: Path
) -> None:
    running = on(made.training(tmp_path / "proof"))
    run_stage(training.STAGE, running)
    found = made.result(tmp_path / "run", PROOF)
    assert found.result == "pass"
    assert found.reason == "0.02 s per step on 2 nodes, all-reduce of gradients 390.2 GB/s"
    nodes = made.result(tmp_path / "run", "training.h100.nodes")
    assert (nodes.result, nodes.value) == ("pass", 2)


def test_without_a_folder_the_stage_was_not_run(on: Callable[[Path | None], Running], tmp_path: Path) -> None:
    run_stage(training.STAGE, on(None))
    assert made.result(tmp_path / "run", PROOF).result == "not run"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"measured_at": "2026-11-23T00:59:00Z"}, "before this run"),
        ({"measured_at": None}, "no proof of a training run"),
        ({"expectation": {"nodes": ["gpu-77"]}}, "no pool: gpu-77"),
    ],
)
def test_a_proof_that_is_none_of_this_run_ends_the_stage(
    on: Callable[[Path | None], Running], tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    running = on(made.training(tmp_path / "proof", lambda kept: kept.update(change)))
    with pytest.raises(NoVerdict, match=why):
        run_stage(training.STAGE, running)
    assert Evidence(tmp_path / "run").stage("training") is None


def test_an_empty_folder_ends_the_stage(on: Callable[[Path | None], Running], tmp_path: Path) -> None:
    with pytest.raises(NoVerdict, match="has no proof of a training run"):
        run_stage(training.STAGE, on(tmp_path / "nothing"))
