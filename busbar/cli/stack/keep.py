"""The outputs of a stack: read, kept in its folder, printed."""

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
from busbar.cli.stack.target import Target
from busbar.outputs import CLUSTER
from busbar.writing import write_whole

KUBECONFIG = "kubeconfig"
OUTPUTS = "outputs.json"
FAILED_STEPS = "failed-steps.json"
_SHOWN_CHARACTERS = 120
_MODE = 0o600


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
    gates = (CLUSTER, *(each.gate for each in capabilities() if each.gate))
    return next((gate for gate in gates if gate.version in outputs), None)


def of(found: auto.OutputMap) -> Outputs:
    """The outputs as the Automation API returns them."""
    return Outputs(
        {name: output.value for name, output in found.items()},
        frozenset(name for name, output in found.items() if output.secret),
    )


def keep(outputs: Outputs, folder: Path) -> None:
    """Write the kubeconfig, and the outputs that are no secrets, into `folder`; mode 0600."""
    kubeconfig = outputs.values.get(KUBECONFIG)
    if isinstance(kubeconfig, str):
        write_whole(folder / KUBECONFIG, kubeconfig, _MODE)
    plain = {name: value for name, value in outputs.plain.items() if name != KUBECONFIG}
    write_whole(folder / OUTPUTS, json.dumps(plain, indent=2, sort_keys=True) + "\n", _MODE)


def remove(folder: Path) -> None:
    """Remove what `keep` and `keep_failed_steps` wrote, and copies of the state; reports stay."""
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


def show(console: Console, outputs: Outputs, target: Target) -> None:
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
    """One line on the outputs of an earlier update, by the file that `keep` wrote then."""
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
