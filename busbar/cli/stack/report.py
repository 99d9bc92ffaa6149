"""The outputs of a stack: read, kept in its folder, printed; and `busbar status`, which shows its state."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pulumi import automation as auto
from rich.console import Console
from rich.table import Table
from rich.text import Text

from busbar.capability import Gate, capabilities
from busbar.cli.output import print_text
from busbar.cli.stack import Target, rows
from busbar.cli.stack.engine import Snapshot, snapshot
from busbar.config import stackfile
from busbar.exits import DONE, FAILED
from busbar.finding import Fix, shown
from busbar.kube import nodes
from busbar.kube.client import ApiError, RestApi
from busbar.operations import removal
from busbar.operations.verify import drained
from busbar.outputs import CLUSTER_GATE
from busbar.text import ago
from busbar.writing import write_whole

KUBECONFIG = "kubeconfig"
OUTPUTS = "outputs.json"
FAILED_STEPS = "failed-steps.json"
_SHOWN_CHARACTERS = 120
_MODE = 0o600
_HISTORY = 20
_UPDATES = {"update", "destroy"}
_SUCCEEDED = "succeeded"

_API_SECONDS = 5.0


@dataclass(frozen=True)
class Outputs:
    """The outputs of a stack. `values`: by name, secret ones in plain text. `secrets`: names of these."""

    values: Mapping[str, Any]
    secrets: frozenset[str]

    @property
    def plain(self) -> dict[str, Any]:
        """The outputs that may be shown."""
        return {name: value for name, value in self.values.items() if name not in self.secrets}

    @property
    def gate(self) -> Gate | None:
        return gate_of(self.values)

    @property
    def failed_gate(self) -> Gate | None:
        return self.gate if self.gate and self.values.get(self.gate.passed) is False else None


def gate_of(outputs: Mapping[str, Any]) -> Gate | None:
    """The gate of the project to which the outputs belong; None for an unknown project."""
    gates = (CLUSTER_GATE, *(each.gate for each in capabilities() if each.gate))
    return next((gate for gate in gates if gate.version in outputs), None)


def outputs_of(found: auto.OutputMap) -> Outputs:
    """The outputs as the Automation API returns them."""
    return Outputs(
        {name: output.value for name, output in found.items()},
        frozenset(name for name, output in found.items() if output.secret),
    )


def keep_outputs(outputs: Outputs, folder: Path) -> None:
    """Write the kubeconfig, and the outputs that are no secrets, into `folder`; mode 0600."""
    kubeconfig = outputs.values.get(KUBECONFIG)
    if isinstance(kubeconfig, str):
        write_whole(folder / KUBECONFIG, kubeconfig, _MODE)
    plain = {name: value for name, value in outputs.plain.items() if name != KUBECONFIG}
    write_whole(folder / OUTPUTS, json.dumps(plain, indent=2, sort_keys=True) + "\n", _MODE)


def remove_kept(folder: Path) -> None:
    """Remove what `keep_outputs` and `keep_failed_steps` wrote, and copies of the state; reports stay."""
    shutil.rmtree(folder / "state", ignore_errors=True)
    for name in (KUBECONFIG, OUTPUTS, FAILED_STEPS):
        (folder / name).unlink(missing_ok=True)


def failed_steps(folder: Path) -> list[str]:
    """The URNs that `keep_failed_steps` noted; empty without a note."""
    try:
        return [str(urn) for urn in json.loads((folder / FAILED_STEPS).read_text(encoding="utf-8"))]
    except (OSError, ValueError):
        return []


def keep_failed_steps(urns: Collection[str], folder: Path) -> None:
    """Note the steps that the next update has to apply again; without any, remove the note."""
    if urns:
        write_whole(folder / FAILED_STEPS, json.dumps(sorted(urns)), _MODE)
    else:
        (folder / FAILED_STEPS).unlink(missing_ok=True)


def show_outputs(console: Console, outputs: Outputs, target: Target) -> None:
    """Print the summary of a project that has one, else a list of the outputs."""
    if not outputs.values:
        console.print("no outputs")
        return
    if outputs.gate:
        try:
            console.print(outputs.gate.tables(outputs.values, folder=near(target.folder)))
            return
        except ValueError as error:  # a contract version that this busbar does not know
            console.print(Text(f"outputs: {error}", "yellow"))
    table = Table.grid(padding=(0, 2))
    for name, value in sorted(outputs.values.items()):
        table.add_row(name, Text("[secret]", "dim") if name in outputs.secrets else _short(value))
    console.print(table)


def former(outputs: Outputs, folder: Path) -> str:
    """One line on the outputs of an earlier update, by the file that `keep_outputs` wrote then."""
    passed = outputs.values.get(outputs.gate.passed) if outputs.gate else None
    verdict = "" if passed is None else ": PASS" if passed is True else ": FAIL"
    try:
        at = datetime.fromtimestamp((folder / OUTPUTS).stat().st_mtime, UTC)
    except OSError:
        return f"outputs are those of an earlier update{verdict}"
    day = "" if at.date() == datetime.now(UTC).date() else f"{at:%Y-%m-%d} "
    return f"outputs are those of {day}{at:%H:%M} UTC{verdict}"


def near(path: Path) -> Path:
    """`path` as a person types it: relative if it is below the current folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _short(value: Any) -> Text:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    text = " ".join(text.split())
    return Text(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + " ...")


def status(console: Console, stack: auto.Stack, target: Target, *, as_json: bool = False) -> int:
    """Print the state of a stack; returns DONE only if it is good. Raises CommandError."""
    history = stack.history(page_size=_HISTORY, show_secrets=False)
    last = next((entry for entry in history if entry.kind in _UPDATES), None)
    state = snapshot(stack)
    outputs = outputs_of(stack.outputs())
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
    for line in drained_lines(outputs.values.get(KUBECONFIG)):
        console.print(Text(line, "bold yellow"))
    console.print()
    show_outputs(console, outputs, target)
    return DONE if good else FAILED


def show_uncleaned(console: Console, state: Snapshot, target: Target) -> None:
    """Print which hosts could not be cleaned when they were removed."""
    names = {rows.resource_name(urn) for urn in state.resources}
    for record in removal.read_records(target.folder, listed=names):
        console.print(Text(str(record), "bold yellow"))


def has_hosts(gate: Gate) -> bool:
    """True if a project with this gate has hosts of its own."""
    return gate == CLUSTER_GATE or any(each.gate == gate and each.operations for each in capabilities())


def unchanged(gate: Gate, target: Target) -> str:
    """The note on the outputs of an update that changed nothing: they may be older than a fault."""
    verify = f"`busbar verify {shown(target.name)}` asks the hosts; " if has_hosts(gate) else ""
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


def drained_lines(kubeconfig: Any) -> list[str]:
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
    return [f"       drained  {drained(name, why)}" for name, why in names.items()]
