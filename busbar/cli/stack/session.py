"""One command on one stack: its console, its engine, and its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import typer
from pulumi import automation as auto
from rich.console import Console
from rich.text import Text

from busbar.cli.output import NO_TERMINAL, discard_stdout
from busbar.cli.stack import Target
from busbar.cli.stack.engine import Engine, Interrupts
from busbar.cli.stack.errors import UNREADABLE_STATE, fixes, reasons
from busbar.cli.stack.recovery import StateFiles, without_stale_lock
from busbar.cli.stack.report import failed_steps, keep_failed_steps
from busbar.cli.stack.rows import Rows
from busbar.cli.stackfile import login_of
from busbar.config import ConfigError, stackfile
from busbar.exits import FAILED, INTERRUPTED, Misuse
from busbar.finding import filled, shown
from busbar.hosts.inventory import Inventory
from busbar.operations.lock import held

Result = TypeVar("Result")


@dataclass
class Session:
    """`verb` is the command's name; `changing` is True once resources may have been changed."""

    verb: str
    target: Target
    console: Console
    interrupts: Interrupts
    engine: Engine
    changing: bool = False

    @property
    def command(self) -> str:
        """The command as a person types it."""
        return f"busbar {self.verb} {shown(self.target.name)}"

    def title(self, text: str, style: str = "bold") -> None:
        """Print a line that begins a part of the output."""
        self.console.print(Text(f"\n{text}" if text else "", style))

    def say(self, text: str) -> None:
        self.console.print(Text(text))

    def fail(self, errors: Sequence[str], *, title: str | None = None) -> int:
        """Print as the last lines why the command failed, and the fix; returns the exit code."""
        self.title(f"error: {title or f'{self.command} failed'}", "bold red")
        for text in errors:
            self.say(text)
        for fix in [*fixes(errors), *self._repairs(errors)]:
            self.say(f"Fix: {filled(fix)}")
        return FAILED

    def fail_half_way(self, rows: Rows, stderr: str) -> int:
        """Print as `fail` does why an update ended, and that the next one continues."""
        self.fail(reasons(rows.errors, stderr, printed=rows.printed))
        self.say(f"Next: after the repair `{self.command}` again; it continues where this one stopped.")
        return FAILED

    def _repairs(self, errors: Sequence[str]) -> list[str]:
        if not any(map(UNREADABLE_STATE.search, errors)):
            return []
        workspace = auto.LocalWorkspace(work_dir=str(self.target.project), pulumi_command=self.engine)
        files = StateFiles.of(workspace, self.target.name)
        repair = files.repair() if files else None
        return [repair] if repair else []

    def update(
        self, stack: auto.Stack, operation: Callable[..., Result], **options: Any
    ) -> tuple[Rows, Result | None, str]:
        """Run stack.up or stack.destroy with rows.

        Returns the rows, the result of the operation (None if it failed), and the engine's stderr or "". The
        lock of a killed update is removed. Raises KeyboardInterrupt, and Failed if a restore is running.
        """
        result, failure = None, ""
        with operation_lock(self.target, f"busbar {self.verb} {self.target.name}"):
            self.changing = True
            with Rows(self.console, self.interrupts.end_child) as rows:

                def act() -> Result:
                    return operation(
                        on_event=rows.on_event,
                        show_secrets=False,
                        suppress_outputs=True,
                        suppress_progress=True,
                        color="never",
                        **options,
                    )

                try:
                    result = without_stale_lock(stack, rows.say, act)
                except auto.CommandError as error:
                    failure = self.engine.stderr or str(error)
        unfinished = rows.unfinished(failed_steps(self.target.folder))
        keep_failed_steps(unfinished, self.target.folder)
        if failure and self.interrupts.count:
            self._explain_interruption(rows)
            raise KeyboardInterrupt
        return rows, result, failure

    def _explain_interruption(self, rows: Rows) -> None:
        self.title(f"interrupted; {rows.summary()}", "bold yellow")
        if rows.running:
            self.say(f"stopped in the middle of: {', '.join(rows.running)}")
        else:
            self.say("every step that began has ended, and the state is complete")
        self.say(f"Next: `{self.command}` continues; `busbar status {shown(self.target.name)}` says more.")


def run(verb: str, target: Target, command: Callable[[Session], int], *, asks: bool = False) -> int:
    """Run a command, which may ask (`asks`), with an engine. Raises Misuse if nothing was started."""
    if asks and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misuse(NO_TERMINAL)
    console = LastingConsole(highlight=False, soft_wrap=True)
    with Interrupts(lambda text: console.print(Text(text, "bold yellow"))) as interrupts:
        session: Session | None = None
        try:
            session = Session(verb, target, console, interrupts, Engine(interrupts))
            return command(session)
        except auto.CommandError:
            if session and not interrupts.count:
                return session.fail(reasons([], session.engine.stderr))
        except (KeyboardInterrupt, typer.Abort):
            pass
        if session is None or not session.changing:
            console.print(Text("\ninterrupted; no changes made", "bold yellow"))
        return INTERRUPTED


class LastingConsole(Console):
    """A console without errors once nobody reads it: they would leave the engine alone."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, or discard the output if there is no reader."""
        try:
            super().print(*objects, **options)
        except OSError:
            discard_stdout()

    def on_broken_pipe(self) -> None:
        """Do nothing, where rich would end the process."""
        discard_stdout()


@contextmanager
def operation_lock(target: Target, command: str) -> Iterator[None]:
    """Lock all servers that answer, if there are any (busbar.operations.lock). Raises Failed."""
    try:
        file = stackfile.read(target.project / target.file)
        cluster = file.cluster()
        login = login_of(file, cluster.ssh)
    except ConfigError:
        yield
        return
    with held(login, Inventory.of(cluster).servers, command, on_all=False):
        yield
