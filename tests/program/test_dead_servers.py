"""The end of an update while a server does not serve: an error, also if nothing was to be done."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.kube.batches import Nodes
from tests.program import harness
from tests.program.answers import healthy
from tests.program.harness import Run, run_program
from tests.support.clusters import site


def ended(monkeypatch: pytest.MonkeyPatch, *dead: str, preview: bool = False, **changes: Any) -> Run:
    monkeypatch.setattr(harness, "DEAD_SERVERS", dict.fromkeys(dead, "the Node is not Ready"))
    cluster = site(**changes)
    return run_program(cluster, healthy(cluster), preview=preview)


def test_a_server_that_does_not_serve_fails_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ended(monkeypatch, "server-2", "server-3")
    expected = "server-2: the Node is not Ready; server-3: the Node is not Ready. Fix: see journalctl -u k3s "
    assert str(run.error).startswith(expected)


def test_the_outputs_are_those_of_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(monkeypatch, "server-2").outputs["nccl_passed"] is True


def test_a_server_that_this_configuration_removes_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(monkeypatch, "server-2", "server-3", servers=1).error is None


def test_a_preview_does_not_ask_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(monkeypatch, "server-2", preview=True).error is None


def test_workers_that_are_not_ready_are_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    down = Nodes(names=frozenset(["gpu-1", "gpu-2"]), ready=frozenset(["gpu-1"]))
    monkeypatch.setattr(harness, "AT_THE_END", down)
    server, worker = str(ended(monkeypatch, "server-3").error).splitlines()
    assert (server[:9], worker[:6]) == ("server-3:", "gpu-2:")
