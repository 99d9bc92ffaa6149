"""`busbar nodes`: the current state of the workers of a stack; nothing is changed."""

from __future__ import annotations

import typer

from busbar.cli.stackfile import AsJson, Project, Stack, find_file, load_stack


def nodes(
    stack: Stack,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Check GPUs, PCIe links, HCAs and Nodes of all workers, at any time.

    Exit code 0: no errors, every Node Ready; 1: an error, or a Node that is not Ready or cannot be read;
    64: no such stack.
    """
    import asyncio

    from busbar.capability import node_states
    from busbar.cli.operation import operations_of
    from busbar.cli.output import print_text
    from busbar.cli.preflight import show, spec_of_stack
    from busbar.cli.verify import state_of
    from busbar.config.stackfile import stack_of
    from busbar.hosts.inventory import Inventory
    from busbar.operations.node_check import inspect

    path = find_file(stack, project)
    if own := operations_of(path):
        found = own.nodes(path)
    else:
        file, cluster = load_stack(stack, project)
        spec = spec_of_stack(file, cluster)
        found = asyncio.run(
            inspect(spec, Inventory.of(cluster), lambda: state_of(file, cluster, node_states))
        )
    if as_json:
        print_text(found.as_json(stack_of(path)))
    else:
        show(found.spec, found.outcome, found.nodes)
    if not found.are_well:
        raise typer.Exit(1)
