"""The changes of an update, from the steps of a preview; removals come first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pulumi.automation.events import EngineEvent, OpType, StepEventMetadata, StepEventStateMetadata
from rich.console import Group, RenderableType
from rich.text import Text

from busbar.cli.stack import rows
from busbar.hosts.scripts import values_of
from busbar.text import listed

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
    upgrades: dict[str, list[Change]] = field(default_factory=dict)
    """`OLD to NEW` release of K3s -> the steps on its hosts."""
    _replaced: set[str] = field(default_factory=set)

    def on_event(self, event: EngineEvent) -> None:
        """Take one engine event of a preview."""
        if (step := event.resource_pre_event) is not None:
            self._planned(step.metadata)
        elif (note := event.diagnostic_event) is not None and rows.is_progress(note):
            text = note.message.strip()
            if note.severity == "error":
                self.errors.append(f"{rows.resource_name(note.urn)}: {text}" if note.urn else text)
            elif note.severity == "warning":
                self.warnings.append(text)
            elif rows.is_printed(note):
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
        for upgrade, hosts in self.upgrades.items():
            text = f"K3s     {upgrade} on {_names(hosts)}: one server at a time, then workers in batches, "
            lines.append(Text(f"{text}each drained first (pools.NAME.drain, max_unavailable, running_jobs)"))
        return Group(*lines, Text(f"changes: {self.counts()}", "bold"))

    def counts(self) -> str:
        """The counts as text: `1 to replace, 2 to create, 30 unchanged`."""
        found = Counter(change.verb for change in self.changes)
        parts = [_count(found[verb], verb) for verb in _VERBS if found[verb]]
        return ", ".join([*(parts or ["none"]), f"{self.unchanged} unchanged"])

    def _planned(self, step: StepEventMetadata) -> None:
        if not rows.is_shown(step):
            return
        if step.op == OpType.DELETE_REPLACED and step.old and step.old.delete:
            # The step is part of a replacement in this plan, or of one that an earlier update did not finish.
            if step.urn in self._replaced:
                self._replaced.discard(step.urn)
            else:
                self.changes.append(Change(VERBS[OpType.DELETE], rows.resource_name(step.urn), _LEFT_OVER))
        elif step.op in VERBS:
            keys = tuple(step.keys or step.diffs or ())  # `keys` are those that force a replacement
            self.changes.append(Change(self._verb(step), rows.resource_name(step.urn), keys))
            if step.op == OpType.REPLACE:
                self._replaced.add(step.urn)
            if step.op == OpType.UPDATE:
                self._upgraded(_release(step.old), _release(step.new))
        elif step.op == OpType.SAME:
            self.unchanged += 1

    def _verb(self, step: StepEventMetadata) -> str:
        if step.op == OpType.REPLACE and rows.only_runs_again(step):
            return _APPLY
        # If no earlier step runs, a secret input has changed.
        if step.op == OpType.UPDATE and self.changes and rows.may_change(step):
            return _MAYBE
        return VERBS[step.op]

    def _upgraded(self, old: str, new: str) -> None:
        """Record another release of K3s on the host of the last change."""
        if old and new and old != new:
            self.upgrades.setdefault(f"{old} to {new}", []).append(self.changes[-1])


def _release(state: StepEventStateMetadata | None) -> str:
    """The release of K3s that a step installs on its host; empty for other steps."""
    command = str((state.inputs or {}).get("create", "")) if state else ""
    return values_of(command).get("VERSION", "")


def _line(verb: str, names: str, keys: Iterable[str] = ()) -> Text:
    line = Text(f"{verb:<8} ", _STYLES.get(verb, ""))
    line.append(names, "not bold default")
    if because := ", ".join(keys):
        line.append(f"  because of {because}", "not bold default dim")
    return line


def _count(number: int, verb: str) -> str:
    return f"{number} that may change" if verb == _MAYBE else f"{number} to {verb}"


def _names(changes: Iterable[Change]) -> str:
    return listed([change.name for change in changes], _NAMES_IN_A_ROW)
