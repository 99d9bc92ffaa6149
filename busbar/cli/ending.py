"""Ends commands: one table has the exit code and prefix of each error that they do not handle themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from busbar.cli.output import error, fail
from busbar.exits import FAILED, INTERRUPTED, NO_VERDICT
from busbar.text import counted

if TYPE_CHECKING:
    from busbar.config.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., Any])


def acts(command: Command) -> Command:
    """Mark a command that changes something: an error there means failure, not a missing verdict."""
    setattr(command, "acts", True)  # noqa: B010
    return command


def guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let the errors of busbar/exits.py and Ctrl-C end a command with their texts and exit codes."""

    @functools.wraps(command)
    def run(*args: Any, **given: Any) -> Any:
        does_act = hasattr(command, "acts")
        try:
            return command(*args, **given)
        except KeyboardInterrupt as interrupt:
            signal = f" by {interrupt}" if str(interrupt) else "" if does_act else "; no changes made"
            text = "".join(getattr(interrupt, "__notes__", [signal]))
            fail(f"interrupted{text}", getattr(interrupt, "exit_code", INTERRUPTED))
        except (typer.Exit, typer.Abort):
            raise
        except Exception as raised:
            each = raised.exceptions if isinstance(raised, ExceptionGroup) else (raised,)
            codes = [getattr(one, "exit_code", None) for one in each]
            if None in codes or isinstance(raised, typer.BadParameter.__base__ or ()):
                raise
            worst = FAILED if does_act and NO_VERDICT in codes else max(map(int, filter(None, codes)))
            for one in each:
                error(f"{'no verdict: ' if worst == NO_VERDICT else ''}{_text(one, given)}")
            raise typer.Exit(worst) from None

    return run


@contextmanager
def when_interrupted(text: str) -> Iterator[None]:
    """Print TEXT after `interrupted` if Ctrl-C ends the block."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(text)
        raise


def _text(error: Exception, given: Mapping[str, Any]) -> str:
    """The text to print for an error. The findings of a stack file are printed on stdout, with their places.

    `given`: the arguments of the command.
    """
    from busbar.config.errors import ConfigError

    if not isinstance(error, ConfigError) or not given.get("stack"):
        fix = getattr(error, "fix", "")
        return f"{error}. Fix: {fix}" if fix and "Fix: " not in str(error) else str(error)
    from busbar.config import stackfile

    return show_findings(stackfile.find(given["stack"], given.get("project"), Path.cwd()), error)


def show_findings(path: Path, error: ConfigError) -> str:
    """Print the findings of a stack file on stdout, with their places; the line for stderr."""
    from busbar.config.places import located

    for finding in located(path, error.findings):
        typer.echo(finding)
    return f"{path.name}: {counted(len(error.findings), 'error')}; no changes made"
