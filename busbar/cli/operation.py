"""What the commands that change a running cluster over SSH have in common (`busbar restore`, `rotate`)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.stackfile import STACK_HELP, SecretError, load_stack

if TYPE_CHECKING:
    from busbar.config import Cluster
    from busbar.hosts.login import Login

Stack = Annotated[str, typer.Argument(metavar="STACK", help=STACK_HELP)]


def cluster_of(stack: str, command: str) -> tuple[Cluster, Login]:
    """The cluster of a stack file and the login of its hosts; ends the command where it has no secrets."""
    from busbar.cli.preflight import login_of

    file, cluster = load_stack(stack)
    try:
        return cluster, login_of(file, cluster)
    except SecretError as error:
        typer.echo(f"busbar {command}: {error}", err=True)
        raise typer.Exit(1) from None


def confirm(command: str, yes: bool) -> None:
    """Ask whether to go on, unless `yes`; ends the command with 64 on a no, or where nobody can be asked."""
    from busbar.cli import EX_USAGE

    if yes or (sys.stdin.isatty() and typer.confirm("\nContinue?")):
        return
    typer.echo(f"busbar {command}: no changes made. Fix: add --yes to {command}", err=True)
    raise typer.Exit(EX_USAGE)


def say(text: str) -> None:
    """Print a note of a host or of the operation on stderr."""
    typer.echo(text if text.startswith("busbar: ") else f"busbar: {text}", err=True)
