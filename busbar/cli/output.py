"""Functions with which commands print results, errors and progress."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import typer

NO_TERMINAL = "the command asks before it changes anything, and there is no terminal. Fix: pass --yes"


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


def print_result(found: Mapping[str, Any], as_json: bool, show: Callable[[], None]) -> None:
    """Print a result as one JSON object, or call `show`, which prints it for a terminal."""
    if as_json:
        print_text(json.dumps(found))
    else:
        show()


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with one line per row, which a terminal may wrap."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*titles, box=None, pad_edge=False, show_header=bool(titles))
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, width=1000, markup=False)
    with console.capture() as text:
        console.print(table)
    print_text("\n".join(line.rstrip() for line in text.get().splitlines()))


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
