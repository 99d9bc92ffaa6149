"""Functions with which commands print results, errors and progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

import typer

NO_TERMINAL = (
    "the command asks before it changes anything, and there is no terminal to ask on. Fix: pass --yes"
)


def error(message: object) -> None:
    """Print an error on stderr, with the common prefix of all commands."""
    typer.echo(f"error: {message}", err=True)


def fail(message: object, code: int) -> NoReturn:
    """Print an error and end the command with an exit code."""
    error(message)
    raise typer.Exit(code) from None


def progress(text: str) -> None:
    """Print one line of progress on stderr; stdout is for the result."""
    typer.echo(text, err=True)


def print_text(text: str) -> None:
    """Print TEXT on stdout. A reader that has ended (`| head -1`) does not change the exit code."""
    try:
        sys.stdout.write(text.rstrip("\n") + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def discard_stdout() -> None:
    """Discard stdout from now on: Python flushes it again at its end, and would exit with 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def as_yaml(objects: Iterable[dict[str, Any]]) -> str:
    """Kubernetes objects as YAML documents; texts of several lines, such as scripts, as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes texts of several lines as blocks."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    dumped: str = yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, explicit_start=True)
    return dumped
