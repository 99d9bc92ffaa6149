"""Rows of an update, from event logs of the real engine (events/README.md)."""

from __future__ import annotations

import copy
import io
import json
import re
import time
from pathlib import Path

import pytest
from pulumi.automation.events import EngineEvent, ResOpFailedEvent
from rich.console import Console

from busbar.cli.stack.errors import reasons
from busbar.cli.stack.rows import PlannedChanges, Rows

EVENTS = Path(__file__).parent / "events"


def _events(name: str, kind: str = "local") -> list[EngineEvent]:
    """Those of an event log, with Commands of this kind."""
    text = (EVENTS / f"{name}.jsonl").read_text(encoding="utf-8")
    lines = text.replace("command:local:", f"command:{kind}:").splitlines()
    return [EngineEvent.from_json(json.loads(line)) for line in lines]


def _rows(name: str) -> tuple[Rows, list[str]]:
    """The rows of an event log, and what they printed without the times."""
    rows = Rows(Console(file=io.StringIO(), width=110, highlight=False))
    for event in _events(name):
        rows.on_event(event)
    printed = rows.console.file.getvalue()  # type: ignore[attr-defined]
    return rows, [" ".join(re.sub(r"[0-9]+\.[0-9]( s)?", "", line).split()) for line in printed.splitlines()]


def _plan(name: str) -> tuple[PlannedChanges, str]:
    plan = PlannedChanges()
    for event in _events(name):
        plan.on_event(event)
    console = Console(file=io.StringIO(), width=110, highlight=False)
    console.print(plan.render())
    return plan, console.file.getvalue()  # type: ignore[attr-defined]


def test_each_finished_step_has_one_row_and_components_and_providers_have_none() -> None:
    _, printed = _rows("created")
    assert [line for line in printed if line.startswith("✓")] == [
        "✓ third created",
        "✓ first created",
        "✓ second created",
    ]


def test_progress_of_a_local_command_is_printed_above_its_row() -> None:
    _, printed = _rows("created")
    assert printed.index("begin") < printed.index("one") < printed.index("✓ first created")


def test_notes_on_where_plugins_come_from_are_left_out() -> None:
    _, printed = _rows("created")
    assert not any("pulumi-resource-" in line for line in printed)


def test_a_replacement_is_a_new_resource_and_a_deletion() -> None:
    rows, printed = _rows("replaced")
    assert "✓ second replaced" in printed and "✓ second deleted" in printed
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
    rows, plan = Rows(Console(file=io.StringIO(), width=110, highlight=False)), PlannedChanges()
    for event in _without_delete("replaced"):
        rows.on_event(event)
    for event in _without_delete("preview_of_changes"):
        plan.on_event(event)
    assert rows.counts == {"updated": 1, "applied": 1, "deleted": 1}, "the deletion is that of a removed one"
    assert [(change.verb, change.name) for change in plan.changes][1] == ("apply", "second")
    assert plan.counts() == "1 to delete, 1 to update, 1 to apply, 0 unchanged"


def test_a_warning_of_the_program_is_printed() -> None:
    _, printed = _rows("replaced")
    assert "no fabric" in printed


def test_an_update_that_ran_to_its_end_has_written_its_outputs_also_when_the_program_then_failed() -> None:
    assert _rows("program_failed")[0].outputs_written
    assert not _rows("step_failed")[0].outputs_written


def test_a_failed_step_has_a_row_and_is_no_longer_running() -> None:
    rows, printed = _rows("step_failed")
    assert "✗ second failed" in printed
    assert rows.running == []


def test_the_reason_of_a_failed_step_names_the_step_and_follow_up_errors_are_left_out() -> None:
    rows, _ = _rows("step_failed")
    (reason,) = reasons(rows.errors, "")
    assert reason.startswith("second: exit status 3") and reason.endswith("the switch is off")


def test_the_reason_of_a_failed_program_is_its_own_message() -> None:
    rows, _ = _rows("program_failed")
    assert reasons(rows.errors, "") == ["NCCL validation failed for cluster dev:\n  - busbw: 1 GB/s"]


def _until(name: str, last: str, kind: str = "local") -> tuple[Rows, list[EngineEvent]]:
    """The rows of an event log until the step `last` has begun, and the other events."""
    found = _events(name, kind)
    begun = next(
        index
        for index, event in enumerate(found)
        if event.resource_pre_event and event.resource_pre_event.metadata.urn.endswith(f"::{last}")
    )
    rows = Rows(Console(file=io.StringIO(), width=110, highlight=False))
    for event in found[: begun + 1]:
        rows.on_event(event)
    return rows, found[begun + 1 :]


def _saying(event: EngineEvent, text: str) -> EngineEvent:
    """A copy of an event of what a step said, with another text."""
    found = copy.deepcopy(event)
    assert found.diagnostic_event
    found.diagnostic_event.message = f"{text}\n"
    return found


def _printed(rows: Rows) -> str:
    return str(rows.console.file.getvalue())  # type: ignore[attr-defined]


def test_what_a_step_says_is_a_row_at_once_and_its_error_ends_with_all_of_it() -> None:
    rows, (said, failed, *_) = _until("step_failed", "second")
    rows.on_event(_saying(said, "waits for the switch"))
    assert "waits for the switch" in _printed(rows)
    rows.on_event(_saying(failed, 'exit status 3: running "x":\nwaits for the switch\nthe switch is off'))
    (reason,) = reasons(rows.errors, "")
    assert reason == "second: exit status 3:\nwaits for the switch\nthe switch is off"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("busbar: gpu-1: draining; remaining pods: default/app (ending)", True),
        ("Reading package lists", False),
    ],
)
def test_a_note_of_a_script_on_a_host_is_a_row_and_what_other_programs_print_there_is_none(
    text: str, shown: bool
) -> None:
    rows, (said, *_) = _until("step_failed", "second", kind="remote")
    with rows:
        rows.on_event(_saying(said, text))
    assert (text in _printed(rows)) is shown


def test_the_summary_has_the_time_of_the_whole_command_and_that_of_the_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("busbar.cli.stack.rows.BEGAN", time.monotonic() - 37)
    assert _rows("created")[0].summary() == "resources: 3 created; 37 s in all, 0 s without the preview"


def test_a_step_is_unfinished_from_its_failure_until_it_has_ended() -> None:
    pool = "urn:pulumi:dev::tiny::busbar:index:Pool$command:local:Command"
    assert _rows("step_failed")[0].unfinished([f"{pool}::ninth"]) == {f"{pool}::second", f"{pool}::ninth"}
    assert _rows("created")[0].unfinished([f"{pool}::second"]) == set()


def test_an_update_after_a_kill_says_in_one_line_where_it_continues() -> None:
    rows, printed = _rows("resumed")
    assert "an earlier update was interrupted at second; this one continues" in printed
    assert not any("AWS" in line for line in printed)
    second = "urn:pulumi:dev::tiny::busbar:index:Pool$command:local:Command::second"
    assert rows.resumes == ((second, "creating"),)
    assert rows.not_repeated == []


@pytest.mark.parametrize(
    ("interrupted", "kind", "names"),
    [
        ("first", "updating", []),
        ("fourth", "updating", ["fourth"]),
        ("fourth", "deleting", ["fourth"]),
        ("fourth", "creating", []),
    ],
)
def test_an_interrupted_change_without_a_step_in_this_update_is_named(
    interrupted: str, kind: str, names: list[str]
) -> None:
    rows, _ = _rows("created")
    pool = "urn:pulumi:dev::tiny::busbar:index:Pool$command:local:Command"
    rows.resumes = ((f"{pool}::{interrupted}", kind),)
    assert rows.not_repeated == [f"{pool}::{name}" for name in names]


def test_steps_that_began_and_have_not_ended_are_running() -> None:
    rows = Rows(Console(file=io.StringIO()))
    for event in _events("created"):
        rows.on_event(event)
        if (began := event.resource_pre_event) and began.metadata.urn.endswith("::second"):
            break
    assert rows.running == ["second"]


@pytest.mark.parametrize(("op", "ends"), [("delete-replaced", 1), ("create", 0)])
def test_an_engine_that_does_not_go_on_after_a_failed_deletion_is_ended_once(
    op: str, ends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("busbar.cli.stack.rows._TICK_SECONDS", 0.01)
    monkeypatch.setattr("busbar.cli.stack.rows.STUCK_SECONDS", 0)
    ended: list[str] = []
    with Rows(Console(file=io.StringIO()), lambda: ended.append("")) as rows:
        rows.on_event(_planned(op))
        failed = _planned(op).resource_pre_event
        assert failed
        event = EngineEvent.from_json({"sequence": 2, "timestamp": 2})
        event.res_op_failed_event = ResOpFailedEvent(failed.metadata, 1, 1)
        time.sleep(0.1)
        assert not ended, "it runs"
        rows.on_event(event)
        time.sleep(0.5)
    assert len(ended) == ends


@pytest.mark.parametrize(
    ("log", "op", "name", "doing"),
    [("created", "create", "second", "running"), ("replaced", "delete-replaced", "second", "deleting")],
)
def test_a_long_step_is_named_with_what_it_does_and_how_long(
    log: str, op: str, name: str, doing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows(Console(file=io.StringIO(), width=110))
    for event in _events(log):
        rows.on_event(event)
        step = event.resource_pre_event and event.resource_pre_event.metadata
        if step and step.op == op and step.urn.endswith(f"::{name}"):
            break
    monkeypatch.setattr("busbar.cli.stack.rows._TICK_SECONDS", 0.01)
    monkeypatch.setattr("busbar.cli.stack.rows.STILL_RUNNING_SECONDS", 0)
    with rows:
        deadline = time.monotonic() + 60
        while "…" not in (printed := rows.console.file.getvalue()):  # type: ignore[attr-defined]
            assert time.monotonic() < deadline, printed
    assert re.search(rf"… {name} +{doing} +[0-9.]+ s", printed)


def test_a_plan_lists_what_is_replaced_and_deleted_first_with_the_reason() -> None:
    plan, printed = _plan("preview_of_changes")
    assert [(change.verb, change.name) for change in plan.changes] == [
        ("update", "first"),
        ("replace", "second"),
        ("delete", "third"),
    ]
    lines = [line.split() for line in printed.splitlines()]
    assert lines[1:] == [
        ["replace", "second", "because", "of", "triggers[0]"],
        ["delete", "third"],
        ["update", "first"],
        ["changes:", "1", "to", "replace,", "1", "to", "delete,", "1", "to", "update,", "0", "unchanged"],
    ]
    assert lines[0] == ["warning:", "no", "fabric"]


def test_a_plan_tells_what_changes_from_what_only_an_earlier_step_may_change() -> None:
    _, printed = _plan("preview_of_unknown")
    assert [" ".join(line.split()) for line in printed.splitlines()] == [
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
    return EngineEvent.from_json(
        {"sequence": 1, "timestamp": 1, "resourcePreEvent": {"metadata": metadata, "planning": True}}
    )


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
    made = {
        "left": _planned("delete-replaced", deleted=True),
        "delete": _planned("delete-replaced"),
        "replace": _planned("replace"),
    }
    plan = PlannedChanges()
    for event in [_planned("same"), *(made[step] for step in steps)]:
        plan.on_event(event)
    assert plan.counts() == counts


def test_an_input_that_was_not_there_before_is_a_change() -> None:
    plan = PlannedChanges()
    for event in _events("preview_of_unknown"):
        step = event.resource_pre_event and event.resource_pre_event.metadata
        if step and step.new and step.urn.endswith("::second"):
            step.new.inputs = {**(step.new.inputs or {}), "environment": {"A": "1"}}
        plan.on_event(event)
    assert plan.counts() == "3 to update, 1 that may change, 0 unchanged"


def test_a_secret_that_changed_before_anything_else_is_a_change() -> None:
    plan = PlannedChanges()
    for event in _events("preview_of_unknown"):
        step = event.resource_pre_event
        if step and step.metadata.urn.endswith("::third"):
            plan.on_event(event)
    assert plan.counts() == "1 to update, 0 unchanged"


@pytest.mark.parametrize("count", [8, 9])
def test_a_long_list_of_new_resources_is_cut_and_says_how_many_follow(count: int) -> None:
    event, metadata = next(
        (event, pre.metadata)
        for event in _events("created")
        if (pre := event.resource_pre_event) and pre.metadata.new and pre.metadata.new.custom
    )
    plan = PlannedChanges()
    for number in range(count):
        metadata.urn = f"urn:x::host-{number}"
        metadata.type = "command:local:Command"
        plan.on_event(event)
    console = Console(file=io.StringIO(), width=200)
    console.print(plan.render())
    assert ("and 1 more" in console.file.getvalue()) == (count == 9)  # type: ignore[attr-defined]
