"""`busbar verify`: shows differences on the hosts of a stack and in its cluster; nothing is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from busbar.cli.operation import operations_of
from busbar.cli.output import print_result, print_table
from busbar.cli.stackfile import AsJson, Project, Stack, find_file
from busbar.text import counted

if TYPE_CHECKING:
    from busbar.operations.verify import Verified


def verify(
    stack: Stack,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Compare hosts and cluster with the configuration: files, units, Nodes, labels, taints, charts.

    Exit code 0: nothing differs; 1: something differs, or could not be verified; 64: no such stack, or one
    without hosts.
    """
    from busbar.config.stackfile import stack_of

    path = find_file(stack, project)
    found, name = operations_of(path).verify(path), stack_of(path)
    print_result({"stack": name, **found.data()}, as_json, lambda: show(found, name))
    if found.drift:
        raise typer.Exit(1)


def show(found: Verified, stack: str) -> None:
    """Print a row per host or difference, and the fixes."""
    rows = []
    for name, role in found.hosts:
        differences = [each for each in found.drift if each.host == name]
        rows += [(name, role, each.text) for each in differences] or [(name, role, "as applied")]
    print_table(("host", "role", "state"), rows)
    if found.drift:
        typer.echo(f"{counted(len(found.drift), 'difference')}. Fix: {'; '.join(found.fixes(stack))}")
