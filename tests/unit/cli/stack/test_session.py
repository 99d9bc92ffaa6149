"""How an update ends, and what `busbar status` makes of the last one. With the engine: tests/engine."""

from __future__ import annotations

import importlib
import io
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pulumi import automation as auto
from pulumi.automation.errors import create_command_error
from rich.console import Console

from busbar.cli import stack as package
from busbar.cli.output import DONE, FAILED
from busbar.cli.stack import keep
from busbar.cli.stack.engine import Snapshot
from busbar.cli.stack.interrupts import Interrupts
from busbar.cli.stack.session import Session
from busbar.cli.stack.target import Target


@pytest.mark.parametrize(
    ("interrupts", "fails", "ends"),
    [
        (0, False, ("made", "")),
        (1, False, ("made", "")),  # the last step ended before the engine stopped
        (0, True, (None, "why")),
        (1, True, "interrupted"),
    ],
)
def test_an_update_was_interrupted_only_if_it_then_failed(
    interrupts: int, fails: bool, ends: object, tmp_path: Path
) -> None:
    signals, engine = Interrupts(print), SimpleNamespace(stderr="why")
    signals.count = interrupts
    session: Any = Session("up", Target(tmp_path, "prod"), Console(file=io.StringIO()), signals, engine)  # type: ignore[arg-type]

    def update(**_: Any) -> str:
        if fails:
            raise create_command_error(auto.CommandResult(stdout="", stderr="why", code=1))
        return "made"

    try:
        ended = session.update(SimpleNamespace(name="prod"), update)[1:]
    except KeyboardInterrupt:
        ended = "interrupted"
    assert ended == ends


HALF_MADE = (("urn:pulumi:prod::busbar::command:local:Command::nodes", "creating"),)


@pytest.mark.parametrize(
    ("history", "pending", "passed", "code"),
    [
        ([("update", "succeeded")], (), True, DONE),
        ([("destroy", "succeeded")], (), True, DONE),
        ([("refresh", "failed"), ("update", "succeeded")], (), True, DONE),
        ([("update", "failed"), ("update", "succeeded")], (), True, FAILED),
        ([("update", "succeeded")], HALF_MADE, True, FAILED),
        ([("update", "succeeded")], (), False, FAILED),
        ([], (), True, FAILED),
    ],
)
def test_a_stack_is_good_if_its_last_update_ended_well_and_its_gate_passed(
    history: list[tuple[str, str]],
    pending: tuple[tuple[str, str], ...],
    passed: bool,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began: dict[str, Any] = {"start_time": datetime(2026, 7, 1), "end_time": None, "resource_changes": {}}
    entries = [SimpleNamespace(kind=kind, result=result, **began) for kind, result in history]
    url = SimpleNamespace(who_am_i=lambda: SimpleNamespace(url="file://state"))
    stack: Any = SimpleNamespace(history=lambda **_: entries, workspace=url)
    outputs = keep.Outputs({"contract_version": 0, "nccl_passed": passed}, frozenset())
    monkeypatch.setattr(package, "status", package.status)  # else the module of this name takes its place
    status = importlib.import_module("busbar.cli.stack.status")
    monkeypatch.setattr(status, "snapshot", lambda _: Snapshot((), pending))
    monkeypatch.setattr(keep, "read", lambda _: outputs)
    assert status.report(Console(file=io.StringIO()), stack, Target(tmp_path, "prod")) == code
