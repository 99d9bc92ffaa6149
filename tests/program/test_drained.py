"""The end of an update while workers are not Ready: an error, unless `busbar drain` has taken them out."""

from __future__ import annotations

import pytest

from busbar.kube.batches import Nodes
from tests.program import harness
from tests.program.answers import healthy
from tests.program.harness import Run, run_program
from tests.support.clusters import site


def ended(
    monkeypatch: pytest.MonkeyPatch,
    *,
    quarantined: bool = False,
    preview: bool = False,
    missing: str = "",
    **drained: str,
) -> Run:
    """An update of three workers, of which only gpu-1 is Ready; `quarantined`: gpu-3; `missing`: no Node."""
    names = [name for name in ("gpu-1", "gpu-2", "gpu-3") if name != missing]
    known = {name.replace("_", "-"): reason for name, reason in drained.items()}
    state = Nodes(names=frozenset(names), ready=frozenset(["gpu-1"]), drained=known)
    monkeypatch.setattr(harness, "AT_THE_END", state)
    cluster = site(workers={"h100": 3})
    if quarantined:
        cluster["hosts"]["workers"][2]["quarantine"] = "RMA"
    return run_program(cluster, healthy(cluster), preview=preview)


def test_a_worker_that_was_drained_is_named_and_may_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ended(monkeypatch, gpu_2="fan (by anna@ops)", gpu_3="driver 580")
    assert run.error is None
    assert [text for text in run.messages if "stays cordoned" in text] == [
        "gpu-2 stays cordoned, it was drained: fan (by anna@ops)",
        "gpu-3 stays cordoned, it was drained: driver 580",
    ]


def test_another_one_that_is_not_ready_fails_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ended(monkeypatch, gpu_2="fan")
    assert str(run.error).startswith("gpu-3: the Node is missing or not Ready. Fix: ")


def test_one_without_a_node_fails_the_update_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ended(monkeypatch, missing="gpu-3", gpu_2="fan")
    assert str(run.error).startswith("gpu-3: the Node is missing or not Ready. Fix: ")


def test_a_preview_does_not_ask_whether_workers_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(monkeypatch, preview=True).error is None


def test_a_worker_in_quarantine_may_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(monkeypatch, quarantined=True, gpu_2="fan").error is None
