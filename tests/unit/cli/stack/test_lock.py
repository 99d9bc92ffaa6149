"""`busbar up` and `destroy` beside a restore."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from busbar.cli.stack import Target, session
from busbar.exits import FAILED
from busbar.operations.lock import LockedError
from tests.support.clusters import stack_file

COMMAND = "busbar up prod"


@pytest.fixture
def target(tmp_path: Path) -> Target:
    stack_file(tmp_path)
    return Target(tmp_path, "organization/busbar/prod")


def test_all_servers_are_locked_while_an_update_runs(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Any] = []

    @contextlib.contextmanager
    def held(_: Any, servers: Any, command: str, *, on_all: bool) -> Any:
        steps.append(([each.name for each in servers], command, on_all))
        yield
        steps.append("released")

    monkeypatch.setattr(session, "held", held)
    with session.operation_lock(target, COMMAND):
        steps.append("updated")
    assert steps == [(["server-1", "server-2", "server-3"], COMMAND, False), "updated", "released"]


def test_an_update_beside_a_restore_does_not_start(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def held(*_: Any, **__: Any) -> None:
        raise LockedError("`busbar restore prod` changes the cluster")

    monkeypatch.setattr(session, "held", held)
    with (
        pytest.raises(LockedError, match=r"^`busbar restore prod`") as refused,
        session.operation_lock(target, COMMAND),
    ):
        pytest.fail("it ran")
    assert refused.value.exit_code == FAILED


def test_of_another_project_no_servers_are_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "held", lambda *_, **__: pytest.fail("locked"))
    (tmp_path / "Pulumi.prod.yaml").write_text("config: {tiny:word: two}\n")
    with session.operation_lock(Target(tmp_path, "prod"), COMMAND):
        pass
