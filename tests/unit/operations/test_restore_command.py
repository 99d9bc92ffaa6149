"""`busbar restore` and `busbar snapshots` as a person calls them; for the hosts see test_restore.py."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from busbar.exits import USAGE, Failed
from busbar.operations import lock, restore
from busbar.operations.restore import RestorePlan, ServerState, Snapshot
from tests.support.cli import busbar
from tests.support.clusters import stack_file
from tests.support.ssh_hosts import at

SNAPSHOT = Snapshot("nightly", "server-2", "/x/nightly", 3 << 20, "2026-11-22T04:00:00Z")
SERVERS = tuple(at(1, name, "server") for name in ("server-2", "server-1"))
PLAN = RestorePlan(SNAPSHOT, SERVERS[0], SERVERS[1:], (at(1, "gpu-1", "worker"),), "1")
Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """The command line beside the file of the stack `prod`."""
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nowhere")
    monkeypatch.chdir(tmp_path)
    stack_file(tmp_path)
    return busbar


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> list[RestorePlan]:
    """The restores that were done; all of them succeed, and nothing differs afterwards."""
    done: list[RestorePlan] = []

    async def plan(*_: Any, **__: Any) -> RestorePlan:
        return PLAN

    async def run(plan: RestorePlan, *_: Any) -> restore.Restored:
        done.append(plan)
        return restore.Restored({"server-1": "/db/old"}, ())

    async def nothing(*_: Any) -> list[Any]:
        return []

    monkeypatch.setattr("busbar.cli.running.install_id", lambda _: "1")
    monkeypatch.setattr(restore, "plan", plan)
    monkeypatch.setattr(lock, "held", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(restore, "restore", run)
    monkeypatch.setattr("busbar.operations.verify.verify", nothing)
    return done


def test_without_yes_the_steps_are_only_printed(call: Call, restored: list[RestorePlan]) -> None:
    done = call("restore", "prod", "--snapshot", "nightly")
    assert (done.exit_code, restored) == (USAGE, [])
    assert "nightly (server-2, 3.0 MiB, 2026-11-22T04:00:00Z)" in done.stdout
    assert "rejoin    server-1, one at a time" in done.stdout
    assert done.stderr.startswith("error: no changes made:") and "Fix: pass --yes" in done.stderr


def test_with_yes_it_is_restored_and_verified(call: Call, restored: list[RestorePlan]) -> None:
    done = call("restore", "prod", "--snapshot", "nightly", "--yes")
    assert (done.exit_code, restored) == (0, [PLAN]), done.output
    assert "old data: server-1:/db/old" in done.stdout
    assert "as applied" in done.stdout


@pytest.mark.parametrize(("of_stack", "code"), [(None, 0), ("2", 1), ("", 1)])
def test_the_cluster_of_another_stack_is_not_restored(
    call: Call, restored: list[RestorePlan], monkeypatch: pytest.MonkeyPatch, of_stack: str | None, code: int
) -> None:
    """Such as of the stack whose file was copied; "": the new stack has installed nothing, None: unknown."""
    monkeypatch.setattr("busbar.cli.running.install_id", lambda _: of_stack)
    done = call("restore", "prod", "--snapshot", "nightly", "--yes")
    assert (done.exit_code, restored) == (code, [] if code else [PLAN]), done.output
    said = "error: the servers belong to another cluster than the stack; no changes made. Fix: correct their"
    assert (said in done.stderr, "busbar recover prod" in done.stderr) == (bool(code), bool(code))


INTERRUPTED = "interrupted; K3s may be stopped on servers. Fix: run the same command again"
NO_SNAPSHOT = "no snapshot x; no changes made"


@pytest.mark.parametrize(
    ("step", "outcome", "code", "said"),
    [
        ("restore", restore.Restored({}, ("gpu-1",)), 1, "Nodes that are not Ready: gpu-1"),
        ("restore", KeyboardInterrupt(), 130, INTERRUPTED),
        ("plan", Failed(NO_SNAPSHOT), 1, f"error: {NO_SNAPSHOT}"),
        ("held", Failed("`busbar up prod` changes it"), 1, "error: `busbar up prod` changes it\n"),
    ],
)
def test_a_restore_that_does_not_end_well_says_so(
    call: Call, restored: list[RestorePlan], monkeypatch: pytest.MonkeyPatch, step: str, outcome: Any,
    code: int, said: str,
) -> None:  # fmt: skip
    async def ends(*_: Any, **__: Any) -> Any:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def held(_: Any, servers: Any, command: str, *, on_all: bool) -> contextlib.AbstractContextManager[None]:
        assert (servers, command, on_all) == (PLAN.servers, "busbar restore prod", True)
        if step == "held":
            raise outcome
        return contextlib.nullcontext()

    monkeypatch.setattr(lock, "held", held)
    if step != "held":
        monkeypatch.setattr(restore, step, ends)
    done = call("restore", "prod", "--snapshot", "nightly", "--yes")
    assert (done.exit_code, restored) == (code, [])
    assert said in done.stderr


def _state(*found: Snapshot) -> ServerState:
    return ServerState(SERVERS[0], "1", False, False, "", found, None)


def _answering(monkeypatch: pytest.MonkeyPatch, *answers: ServerState | str) -> None:
    async def ask(*_: Any) -> list[ServerState | str]:
        return [*answers]

    monkeypatch.setattr(restore, "ask", ask)
    monkeypatch.setattr("busbar.hosts.ssh.check_agent", lambda _: None)
    monkeypatch.setattr("busbar.hosts.ssh.load_keys", lambda _: None)


def test_a_cluster_without_snapshots_says_so(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    _answering(monkeypatch, _state())
    done = call("snapshots", "prod")
    assert (done.exit_code, done.stdout.partition(";")[0]) == (0, "none")


def test_snapshots_are_listed_and_a_silent_server_named(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    _answering(monkeypatch, _state(SNAPSHOT), "server-1: no route")
    done = call("snapshots", "prod")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[1].split() == ["nightly", "server-2", "3.0", "2026-11-22T04:00:00Z"]
    assert "error: server-1: no route" in done.stderr
    found = json.loads(call("snapshots", "prod", "--json").stdout)
    assert [each["name"] for each in found["snapshots"]] == ["nightly"]
    assert found["errors"] == ["server-1: no route"]


@pytest.mark.parametrize(("later", "code"), [(PLAN, 0), (replace(PLAN, others=()), 1)])
def test_what_changed_while_the_question_was_open_is_not_restored(
    call: Call, restored: list[RestorePlan], monkeypatch: pytest.MonkeyPatch, later: RestorePlan, code: int
) -> None:
    plans = iter([PLAN, later])

    async def plan(*_: Any, **__: Any) -> RestorePlan:
        return next(plans)

    monkeypatch.setattr(restore, "plan", plan)
    monkeypatch.setattr("busbar.cli.running.confirm", lambda _: None)
    done = call("restore", "prod", "--snapshot", "nightly")
    assert (done.exit_code, restored) == (code, [] if code else [PLAN]), done.output
    assert ("have changed since they were shown; no changes made. Fix: run" in done.stderr) is bool(code)
