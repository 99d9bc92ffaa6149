"""`busbar images`: lists the downloads of a stack, for a mirror or an air gap."""

from __future__ import annotations

from typing import Annotated

import typer

from busbar.cli.operation import operations_of
from busbar.cli.output import fail, print_result, print_text, progress
from busbar.cli.stackfile import Project, Stack, find_file


def images(
    stack: Stack,
    project: Project = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """List every container image, archive, binary, chart and package that a stack needs; nothing is fetched.

    One line each: kind and name. Images of NVIDIA's operators are read from their charts, where these are on
    this machine.

    Exit code 0: the list is complete; 1: it is not, and stderr says what is missing; 64: no such stack.
    """
    from busbar.config.stackfile import stack_of

    path = find_file(stack, project)
    found = operations_of(path).needs(path)
    lines = "\n".join(f"{each.kind:<8}{each.name}" for each in found.artifacts)
    print_result({"stack": stack_of(path), **found.data()}, as_json, lambda: print_text(lines))
    for each in found.unknown:
        progress(f"not known: {each}")
    if found.unknown:
        fail("the list is not complete", 1)
