"""How an update begins and ends, and what `busbar status` makes of it. With the engine: tests/engine."""

import contextlib
import io
import os
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pulumi import automation as auto
from pulumi.automation.errors import create_command_error
from rich.console import Console

from busbar.cli.stack import Options, Target, commands, engine, report, session
from busbar.cli.stack.engine import Interrupts, Snapshot
from busbar.cli.stack.guard import Guard
from busbar.cli.stack.rows import Rows
from busbar.cli.stack.session import Session
from busbar.config.stackfile import LISTED, kept_in
from busbar.exits import DONE, FAILED, Failed
from busbar.manifests.names import sha256
from busbar.names import removal_of
from busbar.operations import removal
from tests.support.clusters import stack_file
from tests.support.ssh_hosts import at


def begun(folder: Path, stderr: str, interrupts: int = 0, console: Console | None = None) -> Any:
    """A session of an update whose engine has printed this, after so many interrupts."""
    signals, engine = Interrupts(print), SimpleNamespace(stderr=stderr)
    signals.count = interrupts
    return Session("up", Target(folder, "prod"), console or Console(file=io.StringIO()), signals, engine)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("interrupts", "fails", "ends"),
    [
        (0, False, ("made", "")),
        (1, False, ("made", "")),  # the last step ended before the engine stopped
        (0, True, (None, "gone")),
        (1, True, "interrupted"),
    ],
)
def test_an_update_that_ended_well_was_not_interrupted(
    interrupts: int, fails: bool, ends: object, tmp_path: Path
) -> None:
    made = begun(tmp_path, "gone", interrupts)
    try:
        ended = made.update(SimpleNamespace(name="prod"), gone if fails else lambda **_: "made")[1:]
    except KeyboardInterrupt:
        ended = "interrupted"
    assert (ended, made.changing) == (ends, True)


@pytest.mark.parametrize(("interrupts", "ends"), [(0, "gone"), (1, "interrupted")])
def test_a_preview_that_was_interrupted_has_not_failed(interrupts: int, ends: str, tmp_path: Path) -> None:
    stack: Any = SimpleNamespace(preview=gone)
    try:
        ended: Any = commands._preview(begun(tmp_path, "gone", interrupts), stack, Options(), None)[1]
    except auto.CommandError:
        ended = "interrupted"
    assert ended == ends


STACK = "urn:pulumi:prod::busbar::pulumi:pulumi:Stack::busbar-prod"
MADE = "urn:pulumi:prod::busbar::command:local:Command::nodes"
HALF_MADE = ((MADE, "creating"),)


def gone(**_: Any) -> None:
    raise create_command_error(auto.CommandResult(stdout="", stderr="gone", code=1))


@pytest.mark.parametrize(
    ("failure", "resources", "refresh", "asked", "says"),
    [
        ("", (STACK, MADE), None, 1, ""),
        ("exit status 1", (STACK, MADE), None, 0, ""),
        ("", (STACK, MADE), gone, 1, "warning: the records of interrupted steps remain: gone"),
        ("", (STACK,), None, 0, "warning: an earlier update was interrupted while it created nodes, "),
    ],
    ids=["made", "failed again", "the state cannot be written", "not made"],
)
def test_the_record_of_an_interrupted_step_is_dropped_after_an_update_that_succeeded_and_made_it(
    failure: str, resources: Any, refresh: Any, asked: int, says: str, tmp_path: Path, monkeypatch: Any
) -> None:
    calls: list[Any] = []

    def refreshed(**options: Any) -> None:
        calls.append(options["target"])
        if refresh:
            refresh()

    monkeypatch.setattr(commands, "snapshot", lambda _: Snapshot(resources, HALF_MADE))
    code, printed = after_up(tmp_path, failure, HALF_MADE, refreshed)
    assert (code, calls) == (FAILED if failure else DONE, [[STACK]] * asked)
    assert ("warning" in printed, says in printed) == (says != "", True)


def test_a_step_that_broke_off_is_applied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, worker = begun(tmp_path, ""), "urn:pulumi:prod::busbar::x::busbar-worker@w-1"
    report.keep_failed_steps([worker], made.target.folder)
    asked: list[Any] = []

    def preview(**options: Any) -> None:
        asked.append((options["refresh"], options["parallel"], options["replace"]))

    def update(*_: Any, **options: Any) -> Any:
        asked.append(options)
        return Rows(made.console), SimpleNamespace(outputs={}), ""

    made.update = update
    monkeypatch.setattr(commands, "open_stack", lambda *_, **__: SimpleNamespace(preview=preview, up=None))
    monkeypatch.setattr(commands, "snapshot", lambda _: Snapshot((worker, removal_of(worker)), ()))
    monkeypatch.setattr("busbar.cli.stack.session.run", lambda verb, target, run, **_: run(made))
    assert commands.up(made.target, Options(yes=True, refresh=True, parallel=7)) == DONE
    same = {"refresh": True, "parallel": 7, "replace": [worker]}
    assert asked == [tuple(same.values()), {**same, "continue_on_error": True}]


@pytest.mark.parametrize("only_preview", [False, True])
def test_an_upgrade_over_a_release_is_refused_before_the_engine_plans_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_preview: bool
) -> None:
    def refuse(target: Target, state: Snapshot) -> None:
        raise Failed(f"{target.name} {state.resources}")

    stack = SimpleNamespace(name="prod")
    session: Any = SimpleNamespace(target=Target(tmp_path, "prod"), engine=None, say=print)
    monkeypatch.setattr(commands, "open_stack", lambda *_, **__: stack)
    monkeypatch.setattr(commands, "snapshot", lambda _: Snapshot(("urn",), ()))
    monkeypatch.setattr(commands, "check_upgrades", refuse)
    monkeypatch.setattr("busbar.cli.stack.session.run", lambda verb, target, run, **_: run(session))
    with pytest.raises(Failed, match=r"prod \('urn',\)"):
        commands.up(session.target, Options(yes=True, only_preview=only_preview))


def test_a_host_that_was_not_cleaned_is_named_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, worker = Target(tmp_path, "prod").folder, at(22, "gpu-1", "worker")
    removal.write_record(folder, "busbar-worker@gpu-1", worker, "no route")
    monkeypatch.setattr(commands, "snapshot", lambda _: Snapshot((STACK,), ()))
    assert "could not be cleaned: gpu-1 (no route" in after_up(tmp_path)[1]


def after_up(folder: Path, failure: str = "", resumes: Any = (), refresh: Any = None) -> tuple[int, str]:
    """How `busbar up` ends after an update without finished steps, and what it prints."""
    console, stack = Console(file=io.StringIO(), width=300), SimpleNamespace(refresh=refresh)
    rows, outputs = Rows(console), report.Outputs({}, frozenset())
    rows.resumes = resumes
    made = begun(folder, "gone", console=console)
    code = commands._after_up(made, stack, rows, outputs, failure, Snapshot((), ()))  # type: ignore[arg-type]
    return code, console.file.getvalue()  # type: ignore[attr-defined]


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
    history: Any, pending: Any, passed: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: dict[str, Any] = {"start_time": datetime(2026, 7, 1), "end_time": None, "resource_changes": {}}
    entries = [SimpleNamespace(kind=kind, result=result, **began) for kind, result in history]
    url = SimpleNamespace(who_am_i=lambda: SimpleNamespace(url="file://state"))
    outputs = {"contract_version": 0, "nccl_passed": passed}
    found = {name: auto.OutputValue(value, secret=False) for name, value in outputs.items()}
    stack: Any = SimpleNamespace(history=lambda **_: entries, workspace=url, outputs=lambda: found)
    monkeypatch.setattr(report, "snapshot", lambda _: Snapshot((), pending))
    assert report.status(Console(file=io.StringIO()), stack, Target(tmp_path, "prod")) == code


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


def test_of_another_project_no_servers_are_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "held", lambda *_, **__: pytest.fail("locked"))
    (tmp_path / "Pulumi.prod.yaml").write_text("config: {tiny:word: two}\n")
    with session.operation_lock(Target(tmp_path, "prod"), COMMAND):
        pass


@pytest.mark.parametrize("command", ["up", "destroy", "destroy of a cluster that is gone"])
def test_a_state_that_others_change_while_the_question_is_open_is_left_alone(
    command: str, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, texts = begun(target.project, ""), iter(['{"deployment": {}}', "changed"])
    guard = Guard(
        target, lambda ends: pytest.fail("ended jobs") if ends else (), may_end=True, gone=command[12:]
    )
    made.update = lambda *_, **__: pytest.fail("updated")
    stack = SimpleNamespace(name="prod", preview_destroy=lambda **_: None)
    monkeypatch.setattr(commands, "open_stack", lambda *_, **__: stack)
    monkeypatch.setattr(commands, "guard_of", lambda *_: guard)
    monkeypatch.setattr(commands, "import_state", lambda *_: pytest.fail("imported"))
    for module in (commands, engine):
        monkeypatch.setattr(module, "snapshot", lambda _: Snapshot((STACK,), (), next(texts)))
    monkeypatch.setattr("typer.confirm", lambda _: True)
    monkeypatch.setattr("typer.prompt", lambda _: target.name)
    monkeypatch.setattr("busbar.cli.stack.session.run", lambda verb, target, run, **_: run(made))
    with pytest.raises(Failed, match="state or file of stack prod have changed since"):
        getattr(commands, command.split()[0])(target, Options(skip_preview=True))


@pytest.fixture
def asking(target: Target, monkeypatch: pytest.MonkeyPatch) -> Session:
    """The session of an update of a stack without resources."""
    made = begun(target.project, "")
    monkeypatch.setattr(commands, "open_stack", lambda *_, **__: SimpleNamespace(name="prod", up=None))
    for module in (commands, engine):
        monkeypatch.setattr(module, "snapshot", lambda _: Snapshot((STACK,), ()))
    monkeypatch.setattr("busbar.cli.stack.session.run", lambda verb, target, run, **_: run(made))
    return made


def test_a_stack_file_that_changes_while_the_question_is_open_is_not_applied(
    target: Target, asking: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = target.project / target.file
    monkeypatch.setattr(asking, "update", lambda *_, **__: pytest.fail("updated"))
    monkeypatch.setattr("typer.confirm", lambda _: path.write_text(f"{path.read_text()}\n# of others\n"))
    with pytest.raises(Failed, match="state or file of stack prod have changed since"):
        commands.up(target, Options(skip_preview=True))


@pytest.mark.parametrize("skips", [True, False])
def test_an_update_names_to_its_program_the_list_of_hosts_that_its_preview_has_shown(
    skips: bool, target: Target, asking: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = kept_in(target.project, "prod")
    listed.parent.mkdir(parents=True)
    listed.write_text("of an earlier update")

    def preview(*_: Any) -> tuple[Any, str]:
        listed.write_text("shown")
        return SimpleNamespace(changes=[SimpleNamespace(name="x", verb="create")]), ""

    def update(*_: Any, **__: Any) -> Any:
        raise Failed(os.environ[LISTED])

    monkeypatch.setenv(LISTED, "none")
    monkeypatch.setattr(asking, "update", update)
    monkeypatch.setattr(commands, "_preview", preview)
    monkeypatch.setattr("typer.confirm", lambda _: listed.write_text("of another preview"))
    with pytest.raises(Failed, match="none" if skips else sha256("shown")):
        commands.up(target, Options(skip_preview=skips))
