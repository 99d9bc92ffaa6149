"""Shared parts of the commands that query or change the hosts of a stack over SSH."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from busbar.cli.output import NO_TERMINAL, fail, progress
from busbar.cli.stackfile import load_stack, login_of
from busbar.exits import USAGE

if TYPE_CHECKING:
    from pathlib import Path

    from busbar.config import Cluster
    from busbar.hosts.login import Login


def cluster_of(stack: str, project: Path | None) -> tuple[Cluster, Login]:
    """The cluster of a stack file and the login of its hosts. Raises SecretError."""
    file, cluster = load_stack(stack, project)
    return cluster, login_of(file, cluster)


def confirm(yes: bool) -> None:
    """Ask whether to go on, unless `yes`; ends the command with 1 on a no, with 64 without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"no changes made: {NO_TERMINAL}", USAGE)
    if not typer.confirm("\nContinue?"):
        progress("no changes made")
        raise typer.Exit(1)
