"""The STACK argument of every command that reads a stack file, and what happens if the file is not usable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from busbar.config import Cluster
    from busbar.config.stackfile import StackFile

SECRET_SECONDS = 60
STACK_HELP = "Name of a stack, or a path of its file (Pulumi.STACK.yaml)."


def load_stack(stack: str) -> tuple[StackFile, Cluster]:
    """The stack file and its validated configuration.

    Ends the command with 64 if there is no such file, and with 1 and all findings on stdout if the
    configuration is invalid.
    """
    from busbar.config import stackfile

    path = find_file(stack)
    with findings_end_the_command(path):
        file = stackfile.read(path)
        return file, file.cluster()


def find_file(stack: str) -> Path:
    """The stack's file. Ends the command with 64 if there is none."""
    from busbar.cli import EX_USAGE
    from busbar.config import stackfile

    try:
        return stackfile.find(stack, Path.cwd())
    except stackfile.NoStackFileError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EX_USAGE) from None


@contextmanager
def findings_end_the_command(path: Path) -> Iterator[None]:
    """End the command with 1, and all findings on stdout, if the block raises ConfigError."""
    from busbar.config import ConfigError
    from busbar.config.places import located

    try:
        yield
    except ConfigError as error:
        for finding in located(path, error.findings):
            typer.echo(finding)
        count = len(error.findings)
        errors = "1 error" if count == 1 else f"{count} errors"
        typer.echo(f"\n{path.name}: {errors}; no changes made", err=True)
        raise typer.Exit(1) from None


class SecretError(Exception):
    """Pulumi does not give a secret of the stack; the text says why, and what to do."""


def read_secret(stack: str, project: Path, key: str) -> str:
    """The value of a secret key of the stack, from `pulumi config get`. Raises SecretError."""
    text = _ask_pulumi(stack, project, f"the secret busbar:{key}", "config", "get", f"busbar:{key}")
    return text.removesuffix("\n") if key.endswith("Password") else text


def read_output(stack: str, project: Path, name: str) -> str:
    """A stack output, also a secret one, from `pulumi stack output`. Raises SecretError."""
    return _ask_pulumi(stack, project, f"the output {name}", "stack", "output", name, "--show-secrets")


def read_state(stack: str, project: Path) -> str:
    """The state of the stack as JSON, secrets encrypted. Raises SecretError."""
    return _ask_pulumi(stack, project, "the state", "stack", "export")


def _ask_pulumi(stack: str, project: Path, what: str, *question: str) -> str:
    import subprocess

    words = ["pulumi", *question, "--stack", stack, "--cwd", str(project)]
    try:
        done = subprocess.run(
            [*words, "--non-interactive"], capture_output=True, text=True, timeout=SECRET_SECONDS, check=False
        )
        problem = done.stderr.strip() if done.returncode else ""
    except FileNotFoundError:
        problem = "pulumi is not on PATH"
    except subprocess.TimeoutExpired:
        problem = f"timed out after {SECRET_SECONDS} s"
    if problem:
        raise SecretError(
            f"{what} of stack {stack} cannot be read: {problem}. "
            f"Fix: make `{' '.join(words)}` work (pulumi login, PULUMI_CONFIG_PASSPHRASE)"
        )
    return done.stdout
