"""`busbar images`: lists the downloads of a stack, for a mirror or an air gap."""

from __future__ import annotations

from typing import Annotated

import typer

from busbar.cli.output import fail, print_text, progress
from busbar.cli.stackfile import Project, Stack, find_file, load_stack


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
    import json
    from pathlib import Path

    import busbar
    from busbar.cli.operation import operations_of
    from busbar.config.stackfile import stack_of
    from busbar.manifests.artifacts import needs

    path = find_file(stack, project)
    if own := operations_of(path):
        found = own.needs(path)
    else:
        file, cluster = load_stack(stack, project)
        found = needs(cluster, file.project, Path(busbar.__file__).parent / "helm_values")
    if as_json:
        print_text(json.dumps({"stack": stack_of(path), **found.data()}, indent=2))
    else:
        print_text("\n".join(f"{each.kind:<8}{each.name}" for each in found.artifacts))
    for each in found.unknown:
        progress(f"not known: {each}")
    if found.unknown:
        fail("the list is not complete", 1)
