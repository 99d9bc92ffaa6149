"""The end of a command by an error: its text and its exit code, as in the table of docs/operations.md."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from busbar.cli.output import discard_stdout, print_text
from busbar.cli.output import error as print_error
from busbar.cli.stackfile import OPENED
from busbar.exits import FAILED, INTERRUPTED, NO_VERDICT, SOFTWARE, USAGE, Misuse
from busbar.finding import Fix, with_fix
from busbar.text import counted

# The class that typer raises on bad usage is public only as BadParameter's base.
USAGE_ERROR: Any = typer.BadParameter.__base__

# The import names of the distributions of the extra `stack`.
STACK_MODULES = (
    *("asyncssh", "bcrypt", "packaging", "ruamel", "urllib3"),
    *("pulumi", "pulumi_command", "pulumi_kubernetes", "pulumi_random"),
)

ENVIRONMENT = Fix("`make venv`, or for a site", ("docs", "sites", "'A site without a checkout'"))

# Errors of files that are not defects of busbar, with the fix.
FIXES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "give your user access to it"),
}


@contextmanager
def when_interrupted(text: str) -> Iterator[None]:
    """Print TEXT after `interrupted` if Ctrl-C ends the block."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(text)
        raise


def end(error: BaseException, *, changes: bool = False) -> int:
    """Print why a command has ended; returns the exit code. `changes`: it changes something."""
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, typer.Abort):  # the end of input at a question
        print_error("interrupted; no changes made")
        return INTERRUPTED
    if isinstance(error, KeyboardInterrupt):
        signal = f" by {error}" if str(error) else "" if changes else "; no changes made"
        print_error(f"interrupted{''.join(getattr(error, '__notes__', [signal]))}")
        return getattr(error, "exit_code", INTERRUPTED)
    if isinstance(error, BrokenPipeError):
        discard_stdout()
        return FAILED
    every: Sequence[BaseException] = error.exceptions if isinstance(error, BaseExceptionGroup) else [error]
    known = [(text, code) for each in every for text, code in _known(each)]
    if len(known) < len(every):
        traceback.print_exception(error)
        print_error(
            "internal: a defect of busbar, no result. Fix: open an issue in its repository with the "
            "traceback above, and with what `busbar --version` prints"
        )
        return SOFTWARE
    codes = [code for _, code in known]
    worst = FAILED if changes and NO_VERDICT in codes else max(codes)
    for text, _ in known:
        if text:
            print_error(f"{'no verdict: ' if worst == NO_VERDICT else ''}{text}")
    return worst


def _known(error: BaseException) -> Iterator[tuple[str, int]]:
    """The text and the exit code of an error that is not a defect of busbar; nothing for a defect."""
    if isinstance(error, USAGE_ERROR):
        yield _usage(error), USAGE
    elif isinstance(error, Misuse) and hasattr(error, "findings") and OPENED:
        yield show_findings(OPENED[0], error.findings, OPENED[0].name), USAGE
    elif (code := getattr(error, "exit_code", None)) is not None:
        text, fix = str(error), getattr(error, "fix", "")
        yield text if str(fix) in text else with_fix(text, fix), code
    elif isinstance(error, ModuleNotFoundError):
        module = (error.name or "").partition(".")[0]
        if module in STACK_MODULES:
            package = module.replace("_", "-")
            what = f"this command needs the Python package {package}, which is not installed"
            yield with_fix(what, ENVIRONMENT), USAGE
    elif isinstance(error, OSError) and (fix := FIXES.get(error.errno or 0)):
        yield f"{error.filename or 'a file'}: {error.strerror}. Fix: {fix}, then retry.", FAILED


def _usage(error: Any) -> str:
    """The text to print for bad usage; empty where typer has printed the help."""
    text = " ".join(error.format_message().split()).replace("Value error, ", "").rstrip(".")
    if not text or error.ctx is None:
        return text
    return f"{text}{'' if text.endswith('?') else '.'} Fix: see {error.ctx.command_path} --help"


def show_findings(path: Path, findings: Sequence[Any], file: str) -> str:
    """Print the findings of a stack file, shown as `file`, on stdout; returns the line for stderr."""
    from busbar.config.engine_yaml import located

    print_text("\n".join(located(path, findings, file)))
    return f"{file}: {counted(len(findings), 'error')}; no changes made"
