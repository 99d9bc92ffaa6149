"""The engine's events: the changes of a preview, removals first, and a row per step of an update."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from pulumi.automation.events import DiagnosticEvent, EngineEvent, OpType, StepEventMetadata
from rich.console import Console, Group, RenderableType
from rich.text import Text

from busbar.cli.stack import BEGAN
from busbar.cli.stack.errors import PLUGIN_NOTE
from busbar.cli.stack.recovery import interrupted_steps
from busbar.text import listed

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


def resource_name(urn: str) -> str:
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


# Verbs in the order of the table. The parts of a replacement are not listed separately.
VERBS = {
    OpType.REPLACE: "replace",
    OpType.DELETE: "delete",
    OpType.UPDATE: "update",
    OpType.CREATE: "create",
    OpType.READ: "read",
    OpType.IMPORT: "import",
    OpType.REFRESH: "refresh",
}
# The verb in place of "replace" where nothing is removed.
_APPLY = "apply"
# The verb in place of "update" where an earlier step may return the same result as before.
_MAYBE = "maybe"
_VERBS = (*VERBS.values(), _APPLY, _MAYBE)
_STYLES = {"replace": "bold yellow", "delete": "bold red", "update": "yellow", "create": "green"}
_ONE_ROW_EACH = {"replace", "delete"}
_NAMES_IN_A_ROW = 8
_LEFT_OVER = ("an earlier update that replaced it and did not finish",)


@dataclass(frozen=True)
class Change:
    """One step. `keys`: the properties whose change causes it."""

    verb: str
    name: str
    keys: tuple[str, ...] = ()


@dataclass
class PlannedChanges:
    """The changes of a preview, collected from its events, with the engine's and the program's messages."""

    changes: list[Change] = field(default_factory=list)
    unchanged: int = 0
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    _replaced: set[str] = field(default_factory=set)

    def on_event(self, event: EngineEvent) -> None:
        """Take one engine event of a preview."""
        if (step := event.resource_pre_event) is not None:
            self._planned(step.metadata)
        elif (note := event.diagnostic_event) is not None and is_progress(note):
            text = note.message.strip()
            if note.severity == "error":
                self.errors.append(f"{resource_name(note.urn)}: {text}" if note.urn else text)
            elif note.severity == "warning":
                self.warnings.append(text)
            elif is_printed(note):
                self.printed.append(text)

    def render(self) -> RenderableType:
        """Rows for what is replaced or deleted, one row per other verb, and the counts."""
        lines = [Text(f"warning: {warning}", "yellow") for warning in self.warnings]
        for verb in _VERBS:
            changes = [change for change in self.changes if change.verb == verb]
            if verb in _ONE_ROW_EACH:
                lines += [_line(verb, change.name, change.keys) for change in changes]
            elif changes:
                why = ("what earlier steps return",) if verb == _MAYBE else ()
                lines.append(_line(verb, _names(changes), why))
        return Group(*lines, Text(f"changes: {self.counts()}", "bold"))

    def counts(self) -> str:
        """The counts as text: `1 to replace, 2 to create, 30 unchanged`."""
        found = Counter(change.verb for change in self.changes)
        words = {verb: f"to {verb}" for verb in _VERBS} | {_MAYBE: "that may change"}
        parts = [f"{found[verb]} {text}" for verb, text in words.items() if found[verb]]
        return ", ".join([*(parts or ["none"]), f"{self.unchanged} unchanged"])

    def _planned(self, step: StepEventMetadata) -> None:
        if not is_shown(step):
            return
        if step.op == OpType.DELETE_REPLACED and step.old and step.old.delete:
            # The step is part of a replacement in this plan, or of one that an earlier update did not finish.
            if step.urn in self._replaced:
                self._replaced.discard(step.urn)
            else:
                self.changes.append(Change(VERBS[OpType.DELETE], resource_name(step.urn), _LEFT_OVER))
        elif step.op in VERBS:
            keys = tuple(step.keys or step.diffs or ())  # `keys` are those that force a replacement
            self.changes.append(Change(self._verb(step), resource_name(step.urn), keys))
            if step.op == OpType.REPLACE:
                self._replaced.add(step.urn)
        elif step.op == OpType.SAME:
            self.unchanged += 1

    def _verb(self, step: StepEventMetadata) -> str:
        if step.op == OpType.REPLACE and only_runs_again(step):
            return _APPLY
        # If no earlier step runs, a secret input has changed.
        if step.op == OpType.UPDATE and self.changes and may_change(step):
            return _MAYBE
        return VERBS[step.op]


def _line(verb: str, names: str, keys: Iterable[str] = ()) -> Text:
    line = Text(f"{verb:<8} ", _STYLES.get(verb, ""))
    line.append(names, "not bold default")
    if because := ", ".join(keys):
        line.append(f"  because of {because}", "not bold default dim")
    return line


def _names(changes: Iterable[Change]) -> str:
    return listed([change.name for change in changes], _NAMES_IN_A_ROW)


STILL_RUNNING_SECONDS = 20
# Time in seconds. After a failed step, while others continue, the engine waits forever for a replacement
# whose deletion has failed (pulumi/pulumi pkg/resource/deploy/step_executor.go).
STUCK_SECONDS = 30
_TICK_SECONDS = 1


class Rows:
    """Prints one row per finished step, the progress of long steps, and the steps that still run.

    Afterwards: `counts` of finished steps by verb; the `errors`; what the program `printed`;
    `outputs_written`: whether the engine stored the program's outputs; `resumes`: (URN, kind) of the steps at
    which an earlier update was interrupted. on_event is called from any thread. `end` ends a stuck engine.
    """

    def __init__(self, console: Console, end: Callable[[], None] = lambda: None) -> None:
        self.console = console
        self._end = end
        self._failed_deletion = ""
        self._heard = time.monotonic()
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.printed: list[str] = []
        self.outputs_written = False
        self.resumes: tuple[tuple[str, str], ...] = ()
        self._finished_urns: set[str] = set()
        self._failed_urns: set[str] = set()
        self._started = time.monotonic()
        self._running: dict[tuple[str, OpType], float] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="rows", daemon=True)

    def __enter__(self) -> Rows:
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._ticker.join()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def running(self) -> list[str]:
        """Names of the steps that began and have not ended."""
        with self._lock:
            return [resource_name(urn) for urn, _ in self._running]

    @property
    def not_repeated(self) -> list[str]:
        """URNs of changes and deletions that were interrupted earlier and had no step this time.

        The engine compares the configuration with the state from before such a step: after a return to the
        former configuration it finds nothing to do, although the step may have changed something.
        """
        return [
            urn
            for urn, kind in self.resumes
            if kind in {"updating", "deleting"} and urn not in self._finished_urns
        ]

    def unfinished(self, earlier: Collection[str]) -> set[str]:
        """URNs of steps that failed or were interrupted, now or `earlier`, and have not ended since."""
        running = {urn for urn, _ in self._running}
        return {*earlier, *self.not_repeated, *self._failed_urns, *running} - self._finished_urns

    def summary(self, *, failed: bool = False) -> str:
        """The summary: `resources: 22 created, 1 updated; 103 s in all, 85 s without the preview`."""
        nothing = "none changed" if failed else "nothing to do"
        changed = ", ".join(f"{count} {verb}" for verb, count in sorted(self.counts.items()))
        times = f"{time.monotonic() - BEGAN:.0f} s in all, {self.seconds:.0f} s without the preview"
        return f"resources: {changed or nothing}; {times}"

    def say(self, text: str) -> None:
        self._line(f"    {text}", "dim")

    def on_event(self, event: EngineEvent) -> None:
        """Take one engine event (pulumi.automation.events) and print the part for users."""
        self._heard = time.monotonic()
        if (began := event.resource_pre_event) is not None:
            step = began.metadata
            if step.op in DONE and is_shown(step):
                with self._lock:
                    self._running[step.urn, step.op] = time.monotonic()
        elif (done := event.res_outputs_event) is not None:
            if done.metadata.type == ROOT_TYPE and not done.planning:
                self.outputs_written = True
            self._finished(done.metadata, failed=False)
        elif (broken := event.res_op_failed_event) is not None:
            self._finished(broken.metadata, failed=True)
        elif (note := event.diagnostic_event) is not None and is_progress(note):
            self._noted(note)

    def _finished(self, step: StepEventMetadata, *, failed: bool) -> None:
        with self._lock:
            began = self._running.pop((step.urn, step.op), None)
        if began is None:
            return
        (self._failed_urns if failed else self._finished_urns).add(step.urn)
        if failed and step.op == OpType.DELETE_REPLACED:
            self._failed_deletion = resource_name(step.urn)
        applied = step.op == OpType.CREATE_REPLACEMENT and only_runs_again(step)
        verb = "failed" if failed else "applied" if applied else DONE[step.op]
        self.counts[verb] += 1
        mark = Text("✗ ", "red") if failed else Text("✓ ", "green")
        row = Text(f"{self.seconds:6.1f} ") + mark
        row.append(f"{resource_name(step.urn):<44} {verb:<9} {time.monotonic() - began:6.1f} s")
        self.console.print(row)

    def _noted(self, note: DiagnosticEvent) -> None:
        text, urn = note.message.rstrip(), note.urn or ""
        if note.severity == "error":
            self.errors.append(f"{resource_name(urn)}: {text}" if urn else text)
        elif resumed := interrupted_steps(text):
            self.resumes = resumed
            names = ", ".join(resource_name(urn) for urn, _ in resumed)
            self.say(f"an earlier update was interrupted at {names}; this one continues")
        elif is_printed(note) or note.severity == "warning" or self._runs(urn):
            if is_printed(note):
                self.printed.append(text)
            for line in text.splitlines():
                self.say(line)

    def _runs(self, urn: str) -> bool:
        with self._lock:
            return any(urn == running for running, _ in self._running)

    def _tick(self) -> None:
        shown = time.monotonic()
        while not self._ended.wait(_TICK_SECONDS):
            now = time.monotonic()
            if self._failed_deletion and not self.running and now - self._heard >= STUCK_SECONDS:
                self.say(f"{self._failed_deletion} could not be deleted, and the engine waits: ending it")
                self._failed_deletion = ""
                self._end()
            if now - shown >= STILL_RUNNING_SECONDS:
                shown = now
                self._still_running(now)

    def _still_running(self, now: float) -> None:
        with self._lock:
            ages = [(urn, op, now - began) for (urn, op), began in self._running.items()]
        for urn, op, seconds in ages:
            if seconds >= STILL_RUNNING_SECONDS:
                doing = "deleting" if DONE[op] == "deleted" else "running"
                self._line(f"… {resource_name(urn):<44} {doing:<9} {seconds:6.1f} s", "dim")

    def _line(self, text: str, style: str) -> None:
        self.console.print(Text(f"{self.seconds:6.1f} {text}", style))
