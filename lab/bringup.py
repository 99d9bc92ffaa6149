"""`make up`: the lab's hosts, then `pulumi up` on stack dev, then what was measured.

The order is the one a real site follows, with the lab's machines in place of the site's:
tools, hosts, `pulumi up`, the outputs. A second run changes nothing.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from pulumi import automation as auto

from busbar.outputs.summary import summary
from lab import simulated
from lab.engine.environment import environment
from lab.progress import Progress
from lab.recover import with_stale_lock_removed
from lab.steps import CONSOLE
from lab.topology import PROJECT, STACK, hosts
from lab.up import up


def bring_up() -> int:
    """Bring the whole lab up; returns the exit code (0 only where the fabric passed).

    Raises nothing for a failed update: the engine's reasons are printed and the code is 1.
    """
    started = time.monotonic()
    up(hosts())
    os.environ.update(environment())
    stack = auto.create_or_select_stack(STACK, work_dir=str(PROJECT))
    progress = Progress(CONSOLE)
    failure: auto.errors.CommandError | None = None
    CONSOLE.print(f"\n[bold]pulumi up[/] --stack {STACK}")
    with progress:
        try:
            with_stale_lock_removed(
                stack, lambda: stack.up(on_event=progress.on_event, suppress_progress=True, color="never")
            )
        except auto.errors.CommandError as error:
            failure = error
    outputs = {name: output.value for name, output in stack.outputs().items()}
    folder = PROJECT / ".busbar" / STACK
    _keep_outputs(folder, outputs)
    if failure is not None and outputs.get("nccl_passed") is True:
        # The gate did not fail, so the update ended before it and the engine kept what it had.
        CONSOLE.print("\n[bold red]this update failed before it measured; an earlier one had found:[/]")
    _report(outputs, folder, time.monotonic() - started, progress)
    if failure is not None:
        progress.print_errors(str(failure))
        return 1
    return 0


def _keep_outputs(folder: Path, outputs: dict[str, object]) -> None:
    """Write the kubeconfig (0600) and the plain outputs beside the reports."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = dict(outputs)
    kubeconfig = plain.pop("kubeconfig", None)
    if isinstance(kubeconfig, str):
        path = folder / "kubeconfig"
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(kubeconfig)
    (folder / "outputs.json").write_text(json.dumps(plain, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _report(outputs: dict[str, object], folder: Path, seconds: float, progress: Progress) -> None:
    CONSOLE.print()
    CONSOLE.print(summary(outputs, folder=folder.relative_to(PROJECT)))
    if names := simulated.parts():
        CONSOLE.print("[bold]simulated or replaced in this lab[/] (what they are faithful to: lab/README.md)")
        for name, reason in names.items():
            CONSOLE.print(f"  {name}: {reason}", style="dim")
    changed = ", ".join(f"{count} {what}" for what, count in progress.changes.items()) or "nothing to do"
    CONSOLE.print(f"\nresources: {changed}; {seconds:.0f} s in all")
