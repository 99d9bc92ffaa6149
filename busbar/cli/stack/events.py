"""Interprets engine events: names, kinds of steps, and which resources are shown."""

from __future__ import annotations

from typing import Any

from pulumi.automation.events import DiagnosticEvent, OpType, StepEventMetadata

from busbar.cli.stack.engine_texts import PLUGIN_NOTE

ROOT_TYPE = "pulumi:pulumi:Stack"
_PROVIDER_TYPE = "pulumi:providers:"
_COMMAND_TYPE = "command:"
# Placeholder of an input that is unknown before the update, and the key that marks a secret input
# (pulumi sdk/go/common/resource/plugin/rpc.go UnknownStringValue, resource/properties.go SigKey).
_UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
_SECRET = "4dabf18193072939515e22adb298388d"

# The steps that get a row. `replace` is left out: its parts, a deletion and a creation, have rows.
DONE = {
    OpType.CREATE: "created",
    OpType.UPDATE: "updated",
    OpType.DELETE: "deleted",
    OpType.CREATE_REPLACEMENT: "replaced",
    OpType.DELETE_REPLACED: "deleted",
    OpType.READ: "read",
    OpType.IMPORT: "imported",
    OpType.IMPORT_REPLACEMENT: "imported",
}


def verb(step: StepEventMetadata) -> str:
    """The verb for a finished step, such as `created`."""
    if step.op == OpType.CREATE_REPLACEMENT and only_runs_again(step):
        return "applied"
    return DONE[step.op]


def name(urn: str) -> str:
    """The name in a URN: `urn:pulumi:dev::busbar::command:remote:Command::server-1-k3s` -> `server-1-k3s`."""
    return urn.rsplit("::", 1)[-1]


def is_shown(step: StepEventMetadata) -> bool:
    """Whether a step is shown. Providers and components are not: their steps do nothing by themselves.

    The deletion of a Command that was only run again is not shown either.
    """
    state = step.new or step.old
    if step.op == OpType.DELETE_REPLACED and only_runs_again(step):
        return False
    return bool(state and state.custom) and not step.type.startswith(_PROVIDER_TYPE)


def only_runs_again(step: StepEventMetadata) -> bool:
    """Whether a replacement (`--converge`) removes nothing, because its Command has no `delete`."""
    inputs = step.old.inputs if step.old else None
    return step.type.startswith(_COMMAND_TYPE) and inputs is not None and not inputs.get("delete")


def may_change(step: StepEventMetadata) -> bool:
    """Whether all inputs that differ in a planned update are unknown or secret."""
    old, new = (state.inputs or {} if state else {} for state in (step.old, step.new))
    return not _differ(old, new)


def _differ(old: Any, new: Any) -> bool:
    if new == _UNKNOWN or any(isinstance(each, dict) and _SECRET in each for each in (old, new)):
        return False
    if isinstance(old, dict) and isinstance(new, dict):
        return any(_differ(old.get(key), new.get(key)) for key in {*old, *new})
    return bool(old != new)


def is_printed(note: DiagnosticEvent) -> bool:
    """Whether the program itself printed this, to stdout or stderr."""
    return not note.urn and note.severity.startswith("info")


def is_progress(note: DiagnosticEvent) -> bool:
    """Whether a message is progress: not debug output, notes on plugins, or other programs' output on hosts.

    Ephemeral messages are the progress of busbar's own steps: of local commands, and notes of host/lib.sh.
    """
    if note.severity == "debug" or not note.message.strip() or PLUGIN_NOTE.match(note.message):
        return False
    is_own = "command:local:Command::" in (note.urn or "") or note.message.startswith("busbar: ")
    return is_own or not note.ephemeral
