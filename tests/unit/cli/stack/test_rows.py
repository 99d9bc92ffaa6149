"""Rows of an update, from event logs of the real engine (events/README.md)."""

import copy
import io
import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pulumi.automation.events import EngineEvent, ResOpFailedEvent, StepEventMetadata
from rich.console import Console

from busbar.cli.stack.errors import reasons
from busbar.cli.stack.rows import PlannedChanges, Rows

EVENTS = Path(__file__).parent / "events"


def _events(name: str, kind: str = "local") -> list[EngineEvent]:
    """Those of an event log, with Commands of this kind."""
    text = (EVENTS / f"{name}.jsonl").read_text(encoding="utf-8")
    lines = text.replace("command:local:", f"command:{kind}:").splitlines()
    return [EngineEvent.from_json(json.loads(line)) for line in lines]


def _step(event: EngineEvent) -> StepEventMetadata | None:
    """The step that begins with an event."""
    return event.resource_pre_event.metadata if event.resource_pre_event else None


def _begins(event: EngineEvent, name: str, op: str = "") -> bool:
    step = _step(event)
    return bool(step and step.urn.endswith(f"::{name}") and op in ("", step.op))


def _console() -> Console:
    return Console(file=io.StringIO(), width=110, highlight=False)


def _text(console: Console) -> str:
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def _rows(events: list[EngineEvent]) -> Rows:
    rows = Rows(_console())
    for event in events:
        rows.on_event(event)
    return rows


def _printed(rows: Rows) -> list[str]:
    """The printed text, without the times."""
    lines = _text(rows.console).splitlines()
    return [" ".join(re.sub(r"[0-9]+\.[0-9]( s)?", "", line).split()) for line in lines]


def _plan(events: list[EngineEvent]) -> tuple[PlannedChanges, list[str]]:
    """A plan, and the words of its lines."""
    plan, console = PlannedChanges(), _console()
    for event in events:
        plan.on_event(event)
    console.print(plan.render())
    return plan, [" ".join(line.split()) for line in _text(console).splitlines()]


def test_each_finished_step_has_one_row_and_components_and_providers_have_none() -> None:
    done = [line for line in _printed(_rows(_events("created"))) if line.startswith("✓")]
    assert done == ["✓ third created", "✓ first created", "✓ second created"]


def test_progress_of_a_local_command_is_above_its_row_and_where_plugins_come_from_is_left_out() -> None:
    printed = _printed(_rows(_events("created")))
    assert printed.index("begin") < printed.index("one") < printed.index("✓ first created")
    assert not any("pulumi-resource-" in line for line in printed)


def test_a_replacement_is_a_new_resource_and_a_deletion() -> None:
    rows = _rows(_events("replaced"))
    printed = _printed(rows)
    assert "✓ second replaced" in printed and "✓ second deleted" in printed
    assert "no fabric" in printed, "a warning of the program"
    assert rows.counts == {"updated": 1, "replaced": 1, "deleted": 2}
    assert rows.summary().startswith("resources: 2 deleted, 1 replaced, 1 updated; ")


def _without_delete(name: str) -> list[EngineEvent]:
    """The events of a log in which every Command is one without a `delete`, as the steps of hosts are."""
    changed = []
    for line in (EVENTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        for kind in ("resourcePreEvent", "resOutputsEvent"):
            if old := event.get(kind, {}).get("metadata", {}).get("old"):
                old["inputs"] = {"create": "true"}
        changed.append(EngineEvent.from_json(event))
    return changed


def test_a_command_that_only_runs_again_is_applied_and_nothing_is_deleted() -> None:
    rows = _rows(_without_delete("replaced"))
    plan, _ = _plan(_without_delete("preview_of_changes"))
    assert rows.counts == {"updated": 1, "applied": 1, "deleted": 1}, "the deletion is that of a removed one"
    assert [(change.verb, change.name) for change in plan.changes][1] == ("apply", "second")
    assert plan.counts() == "1 to delete, 1 to update, 1 to apply, 0 unchanged"


def test_an_update_that_ran_to_its_end_has_written_its_outputs_also_when_the_program_then_failed() -> None:
    assert _rows(_events("program_failed")).outputs_written
    assert not _rows(_events("step_failed")).outputs_written


def test_a_failed_step_has_a_row_and_one_reason_that_names_it() -> None:
    rows = _rows(_events("step_failed"))
    assert "✗ second failed" in _printed(rows)
    assert rows.running == []
    (reason,) = reasons(rows.errors, "")
    assert reason.startswith("second: exit status 3") and reason.endswith("the switch is off")


def test_the_reason_of_a_failed_program_is_its_own_message() -> None:
    rows = _rows(_events("program_failed"))
    assert reasons(rows.errors, "") == ["NCCL validation failed for cluster dev:\n  - busbw: 1 GB/s"]


POOL = "urn:pulumi:dev::tiny::busbar:index:Pool$command:local:Command"


def _until(name: str, last: str, op: str = "", kind: str = "local") -> tuple[Rows, list[EngineEvent]]:
    """The rows of an event log until the step `last` has begun, and the other events."""
    found = _events(name, kind)
    begun = next(index for index, event in enumerate(found, 1) if _begins(event, last, op))
    return _rows(found[:begun]), found[begun:]


def _saying(event: EngineEvent, text: str) -> EngineEvent:
    """A copy of an event of what a step said, with another text."""
    found = copy.deepcopy(event)
    assert found.diagnostic_event
    found.diagnostic_event.message = f"{text}\n"
    return found


def test_what_a_step_says_is_a_row_at_once_and_its_error_ends_with_all_of_it() -> None:
    rows, (said, failed, *_) = _until("step_failed", "second")
    rows.on_event(_saying(said, "waits for the switch"))
    assert "waits for the switch" in _text(rows.console)
    rows.on_event(_saying(failed, 'exit status 3: running "x":\nwaits for the switch\nthe switch is off'))
    (reason,) = reasons(rows.errors, "")
    assert reason == "second: exit status 3:\nwaits for the switch\nthe switch is off"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("busbar: gpu-1: draining; remaining pods: default/app (ending)", True), ("Reading lists", False)],
)
def test_a_note_of_a_host_script_is_a_row_and_no_other_output_there_is(text: str, shown: bool) -> None:
    rows, (said, *_) = _until("step_failed", "second", kind="remote")
    with rows:
        rows.on_event(_saying(said, text))
    assert (text in _text(rows.console)) is shown


def test_a_step_is_unfinished_from_its_failure_until_it_has_ended() -> None:
    failed, ended = _rows(_events("step_failed")), _rows(_events("created"))
    assert failed.unfinished([f"{POOL}::ninth"]) == {f"{POOL}::second", f"{POOL}::ninth"}
    assert ended.unfinished([f"{POOL}::second"]) == set()


def test_an_update_after_a_kill_says_in_one_line_where_it_continues() -> None:
    rows = _rows(_events("resumed"))
    printed = _printed(rows)
    assert "an earlier update was interrupted at second; this one continues" in printed
    assert not any("AWS" in line for line in printed)
    assert rows.resumes == ((f"{POOL}::second", "creating"),)
    assert rows.not_repeated == []


@pytest.mark.parametrize(
    ("interrupted", "kind", "names"),
    [
        *((name, kind, []) for name, kind in (("first", "updating"), ("fourth", "creating"))),
        *(("fourth", kind, ["fourth"]) for kind in ("updating", "deleting")),
    ],
)
def test_interrupted_changes_not_repeated_are_named(interrupted: str, kind: str, names: list[str]) -> None:
    rows = _rows(_events("created"))
    rows.resumes = ((f"{POOL}::{interrupted}", kind),)
    assert rows.not_repeated == [f"{POOL}::{name}" for name in names]


@pytest.mark.parametrize(("op", "ends"), [("delete-replaced", 1), ("create", 0)])
def test_an_engine_that_hangs_after_a_failed_deletion_is_ended(op: str, ends: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("busbar.cli.stack.rows._TICK_SECONDS", 0.01)
    monkeypatch.setattr("busbar.cli.stack.rows.STUCK_SECONDS", 0)
    ended: list[str] = []
    first = threading.Event()

    def end() -> None:
        ended.append("")
        first.set()

    with Rows(_console(), end) as rows:
        rows.on_event(_planned(op))
        failed = _planned(op).resource_pre_event
        assert failed
        event = EngineEvent.from_json({"sequence": 2, "timestamp": 2})
        event.res_op_failed_event = ResOpFailedEvent(failed.metadata, 1, 1)
        time.sleep(0.1)
        assert not ended, "it runs"
        rows.on_event(event)
        assert not ends or first.wait(30)
        time.sleep(0.1)
    assert len(ended) == ends


@pytest.mark.parametrize(
    ("log", "op", "doing"), [("created", "create", "running"), ("replaced", "delete-replaced", "deleting")]
)
def test_a_long_step_is_named_with_what_it_does(log: str, op: str, doing: str, monkeypatch: Any) -> None:
    rows, _ = _until(log, "second", op)
    monkeypatch.setattr("busbar.cli.stack.rows._TICK_SECONDS", 0.01)
    monkeypatch.setattr("busbar.cli.stack.rows.STILL_RUNNING_SECONDS", 0)
    with rows:
        deadline = time.monotonic() + 60
        while "…" not in (printed := _text(rows.console)):
            assert time.monotonic() < deadline, printed
    assert re.search(rf"… second +{doing} +[0-9.]+ s", printed)


def test_a_plan_lists_what_is_replaced_and_deleted_first_with_the_reason() -> None:
    plan, printed = _plan(_events("preview_of_changes"))
    changes = [f"{change.verb} {change.name}" for change in plan.changes]
    assert changes == ["update first", "replace second", "delete third"]
    assert printed == [
        "warning: no fabric",
        "replace second because of triggers[0]",
        "delete third",
        "update first",
        "changes: 1 to replace, 1 to delete, 1 to update, 0 unchanged",
    ]


def test_a_plan_tells_what_changes_from_what_only_an_earlier_step_may_change() -> None:
    assert _plan(_events("preview_of_unknown"))[1] == [
        "update first, fourth",
        "maybe third, second because of what earlier steps return",
        "changes: 2 to update, 2 that may change, 0 unchanged",
    ]


def _planned(op: str, *, deleted: bool = False) -> EngineEvent:
    """A step of a preview; `deleted`: the state has the resource as one that is only to be deleted."""
    urn, kind = "urn:pulumi:dev::tiny::kubernetes:core/v1:Namespace::gpus", "kubernetes:core/v1:Namespace"
    old = {"type": kind, "urn": urn, "id": "gpus", "parent": "", "provider": "", "custom": True}
    step = {"op": op, "urn": urn, "type": kind, "provider": "", "old": {**old, "delete": deleted}}
    metadata = {**step, "new": None, "keys": None, "logical": True, "diffs": None, "detailedDiff": None}
    event = {"metadata": metadata, "planning": True}
    return EngineEvent.from_json({"sequence": 1, "timestamp": 1, "resourcePreEvent": event})


@pytest.mark.parametrize(
    ("steps", "counts"),
    [
        (["left"], "1 to delete, 1 unchanged"),
        (["replace", "left"], "1 to replace, 1 unchanged"),
        (["delete", "replace"], "1 to replace, 1 unchanged"),
        (["replace", "left", "left"], "1 to replace, 1 to delete, 1 unchanged"),
    ],
)
def test_a_deletion_that_an_earlier_update_left_is_a_change_of_its_own(steps: list[str], counts: str) -> None:
    left = _planned("delete-replaced", deleted=True)
    made = {"left": left, "delete": _planned("delete-replaced"), "replace": _planned("replace")}
    plan, _ = _plan([_planned("same"), *(made[step] for step in steps)])
    assert plan.counts() == counts


def test_an_input_that_was_not_there_before_is_a_change() -> None:
    events = _events("preview_of_unknown")
    for event in events:
        step = _step(event)
        if step and step.new and _begins(event, "second"):
            step.new.inputs = {**(step.new.inputs or {}), "environment": {"A": "1"}}
    assert _plan(events)[0].counts() == "3 to update, 1 that may change, 0 unchanged"


def test_a_secret_that_changed_before_anything_else_is_a_change() -> None:
    third = [event for event in _events("preview_of_unknown") if _begins(event, "third")]
    assert _plan(third)[0].counts() == "1 to update, 0 unchanged"
