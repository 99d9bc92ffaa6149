"""`busbar show`: the outputs of a stack as tables."""

from __future__ import annotations

import typer


def show() -> None:
    """Show what a stack measured: `pulumi stack output --json | busbar show`.

    It also shows the outputs of a capability.

    Exit code 0: the NCCL validation, or that of the capability, passed; 1: it did not; 64: stdin has no such
    outputs.
    """
    import json
    import sys

    from rich.console import Console

    from busbar.cli.gates import gate_of
    from busbar.cli.output import fail, print_text
    from busbar.exits import USAGE
    from busbar.outputs import CLUSTER

    fix = "Fix: pulumi stack output --json | busbar show"
    if sys.stdin.isatty():
        fail(f"stdin is a terminal. {fix}", USAGE)
    try:
        outputs = json.load(sys.stdin)
        if not isinstance(outputs, dict):
            raise ValueError(f"an object of outputs is expected, not {type(outputs).__name__}")
    except ValueError as error:
        fail(f"stdin is not the output of a busbar stack: {error}. {fix}", USAGE)
    gate = gate_of(outputs) or CLUSTER
    try:
        tables = gate.tables(outputs)
    except ValueError as error:
        fail(error, USAGE)
    console = Console(highlight=False)
    with console.capture() as text:
        console.print(tables)
    print_text(text.get())
    if outputs.get(gate.passed) is not True:
        raise typer.Exit(1)
