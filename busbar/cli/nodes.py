"""`busbar nodes`: the current state of the workers of a stack; nothing is changed."""

from __future__ import annotations

import typer

from busbar.cli.operation import operations_of
from busbar.cli.output import print_result
from busbar.cli.stackfile import AsJson, Project, Stack, find_file


def nodes(
    stack: Stack,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Check GPUs, PCIe links, HCAs and Nodes of all workers, at any time.

    Exit code 0: no errors, every Node Ready; 1: an error, or a Node that is not Ready or cannot be read;
    64: no such stack.
    """
    from busbar.cli.preflight import show
    from busbar.config.stackfile import stack_of

    path = find_file(stack, project)
    found = operations_of(path).nodes(path)
    result = {"stack": stack_of(path), **found.data()}
    print_result(result, as_json, lambda: show(found.spec, found.outcome, found.nodes))
    if not found.are_well:
        raise typer.Exit(1)
