"""The engine's events as lines: each step with its time, as it happens."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from pulumi.automation.events import EngineEvent
from rich.console import Console

# Component and provider steps take no time of their own.
_QUIET_TYPES = ("pulumi:pulumi:", "pulumi:providers:", "busbar:")
_VERBS = {
    "create": "created",
    "update": "updated",
    "replace": "replaced",
    "create-replacement": "replaced",
    "delete": "deleted",
    "delete-replaced": "deleted",
}
STILL_RUNNING_SECONDS = 20


class Progress:
    """Prints one line a finished step, what long steps say meanwhile, and which steps still run."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.changes: dict[str, int] = {}
        self.errors: list[str] = []
        self._started = time.monotonic()
        self._running: dict[str, float] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._ticker.join()

    def on_event(self, event: EngineEvent) -> None:
        """Take one engine event (see pulumi.automation.events) and print what a person wants of it."""
        if (step := event.resource_pre_event) is not None:
            if step.metadata.op.value in _VERBS and not _quiet(step.metadata.type):
                with self._lock:
                    self._running[step.metadata.urn] = time.monotonic()
        elif (done := event.res_outputs_event) is not None:
            self._finished(done.metadata.urn, done.metadata.op.value, failed=False)
        elif (broken := event.res_op_failed_event) is not None:
            self._finished(broken.metadata.urn, broken.metadata.op.value, failed=True)
        elif (note := event.diagnostic_event) is not None and _is_said_to_people(
            note.urn or "", note.ephemeral
        ):
            self._said(note.urn or "", note.severity, note.message)
        elif (summary := event.summary_event) is not None:
            changes = {
                op.value if hasattr(op, "value") else str(op): n for op, n in summary.resource_changes.items()
            }
            self.changes = {_VERBS.get(op, op): n for op, n in changes.items() if n}

    def print_errors(self, otherwise: str) -> None:
        """Print the engine's errors once more, last, where a person looks; else the whole text."""
        self.console.print("[bold red]pulumi up failed[/]")
        for text in self.errors or [otherwise]:
            self.console.print(text.strip(), markup=False)

    def _finished(self, urn: str, op: str, *, failed: bool) -> None:
        with self._lock:
            began = self._running.pop(urn, None)
        if began is None:
            return
        mark = "[red]✗[/]" if failed else "[green]✓[/]"
        verb = "failed" if failed else _VERBS.get(op, op)
        self.console.print(
            f"{self._clock()} {mark} {_name(urn):<44} {verb:<9} {time.monotonic() - began:6.1f} s"
        )

    def _said(self, urn: str, severity: str, message: str) -> None:
        text = message.rstrip()
        # The engine logs the path of each plugin on PATH; the list of replaced parts names them once.
        if not text or text.startswith("using pulumi-resource-"):
            return
        if severity == "error":
            self.errors.append(f"{_name(urn)}: {text}" if urn else text)
        elif severity == "warning" or urn in self._running:
            for line in text.splitlines():
                self.console.print(f"{self._clock()}     {line}", style="dim", markup=False)

    def _tick(self) -> None:
        while not self._ended.wait(STILL_RUNNING_SECONDS):
            now = time.monotonic()
            with self._lock:
                long = [
                    (urn, now - at) for urn, at in self._running.items() if now - at >= STILL_RUNNING_SECONDS
                ]
            for urn, seconds in long:
                self.console.print(
                    f"{self._clock()} … {_name(urn):<44} running   {seconds:6.1f} s", style="dim"
                )

    def _clock(self) -> str:
        return f"{time.monotonic() - self._started:6.1f}"


def _is_said_to_people(urn: str, ephemeral: bool | None) -> bool:
    """Passing remarks of hosts are noise here; those of busbar's own commands are its progress."""
    return not ephemeral or "command:local:Command::" in urn


def _quiet(kind: str) -> bool:
    return kind.startswith(_QUIET_TYPES)


def _name(urn: str) -> str:
    """`…::command:remote:Command::server-1-k3s` → `server-1-k3s`."""
    return urn.rsplit("::", 1)[-1]
