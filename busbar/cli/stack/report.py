"""`busbar status`: the last update, interrupted steps, and the outputs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from pulumi import automation as auto
from rich.console import Console
from rich.text import Text

from busbar.capability import Gate, capabilities
from busbar.cli.output import print_text
from busbar.cli.stack import keep, rows
from busbar.cli.stack.engine import Snapshot, snapshot
from busbar.cli.stack.target import Target
from busbar.config import stackfile
from busbar.exits import DONE, FAILED
from busbar.finding import Fix
from busbar.kube import nodes
from busbar.kube.client import ApiError, RestApi
from busbar.operations import removal
from busbar.operations.verify import drained
from busbar.outputs import CLUSTER
from busbar.text import ago

_HISTORY = 20
_UPDATES = {"update", "destroy"}
_SUCCEEDED = "succeeded"

_API_SECONDS = 5.0


def report(console: Console, stack: auto.Stack, target: Target, *, as_json: bool = False) -> int:
    """Print the state of a stack; returns DONE only if it is good. Raises CommandError."""
    history = stack.history(page_size=_HISTORY, show_secrets=False)
    last = next((entry for entry in history if entry.kind in _UPDATES), None)
    state = snapshot(stack)
    outputs = keep.of(stack.outputs())
    good = last is not None and last.result == _SUCCEEDED and not state.pending and not outputs.failed_gate
    if as_json:
        update = last and {"kind": last.kind, "result": last.result, "began": f"{last.start_time:%FT%TZ}"}
        pending = [{"operation": kind, "resource": rows.resource_name(urn)} for urn, kind in state.pending]
        found = {"good": good, "last_update": update, "pending": pending, "outputs": outputs.plain}
        print_text(json.dumps({"stack": target.name, "resources": len(state.resources), **found}))
        return DONE if good else FAILED
    console.print(Text(f"stack {target.name} in {stack.workspace.who_am_i().url}", "bold"))
    console.print(Text(f"  last update  {_describe(last)}"))
    console.print(Text(f"    resources  {len(state.resources)}"))
    for line in _pending(state, target):
        console.print(Text(line, "bold yellow"))
    show_uncleaned(console, state, target)
    for line in drained_lines(outputs.values.get(keep.KUBECONFIG), target):
        console.print(Text(line, "bold yellow"))
    console.print()
    keep.show(console, outputs, target)
    return DONE if good else FAILED


def show_uncleaned(console: Console, state: Snapshot, target: Target) -> None:
    """Print which hosts could not be cleaned when they were removed."""
    names = {rows.resource_name(urn) for urn in state.resources}
    for record in removal.read_records(target.folder, listed=names):
        console.print(Text(str(record), "bold yellow"))


def unchanged(gate: Gate, target: Target) -> str:
    """The note on the outputs of an update that changed nothing: they may be older than a fault."""
    has_hosts = gate == CLUSTER or any(each.gate == gate and each.operations for each in capabilities())
    verify = f"`busbar verify {target.name}` asks the hosts; " if has_hosts else ""
    return (
        "no changes, so no host was asked and nothing was measured: the outputs are those of an earlier "
        f"update. {verify}to measure again, {next_run(gate, target)}."
    )


def next_run(gate: Gate, target: Target) -> str:
    """Name the value with which the next update measures again."""
    section, _, key = gate.raised.partition(".")
    parts = [each.get(section) or {} for each in stackfile.sections(target.project / target.file)]
    number = next((part[key] for part in parts if key in part), 1)
    return f"set {gate.raised}: {number + 1} in {target.file}"


def _describe(last: auto.UpdateSummary | None) -> str:
    if last is None:
        return "none has ended yet"
    changes = ", ".join(f"{count} {verb}" for verb, count in (last.resource_changes or {}).items())
    seconds = f" in {(last.end_time - last.start_time).total_seconds():.0f} s" if last.end_time else ""
    began = last.start_time.replace(tzinfo=UTC)
    age = datetime.now(UTC) - began
    return (
        f"{last.kind} {last.result}, {began:%Y-%m-%d %H:%M:%S} UTC ({ago(age.total_seconds())} ago){seconds}"
        + (f": {changes}" if changes else "")
    )


def _pending(state: Snapshot, target: Target) -> list[str]:
    if not state.pending:
        return []
    steps = ", ".join(f"{kind} {rows.resource_name(urn)}" for urn, kind in state.pending)
    again = Fix(command=("up", target.name))
    return [
        f"      pending  {steps}",
        f"               An update is running, or was interrupted. To continue: {again}",
    ]


def drained_lines(kubeconfig: Any, target: Target) -> list[str]:
    """Lines about the workers that `busbar drain` has taken out, or one line if that is not known."""
    try:
        api = RestApi(str(kubeconfig))
    except ValueError:  # a project without a cluster
        return []
    api.timeout_seconds = _API_SECONDS
    try:
        names = {node.name: node.drained for node in nodes.read(api) if node.drained}
    except ApiError as error:
        return [f"       drained  unknown: {error}"]
    return [f"       drained  {drained(name, why).on(target.name)}" for name, why in names.items()]
