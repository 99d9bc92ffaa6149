"""`busbar show`: the outputs of a stack as tables for a person."""

from __future__ import annotations

import typer


def register(group: typer.Typer) -> None:
    """Add `show` to the top level."""
    group.command("show")(show)


def show() -> None:
    """What a stack measured: `pulumi stack output --json | busbar show`. Exit code 1 unless it passed."""
    import json
    import sys

    from rich.console import Console

    from busbar.cli import EX_USAGE
    from busbar.outputs.summary import summary

    try:
        outputs = json.load(sys.stdin)
        if not isinstance(outputs, dict):
            raise ValueError(f"an object of outputs is expected, not {type(outputs).__name__}")
    except ValueError as error:
        typer.echo(
            f"stdin is no stack output: {error}. Try: pulumi stack output --json | busbar show", err=True
        )
        raise typer.Exit(EX_USAGE) from None
    Console(highlight=False).print(summary(outputs))
    if outputs.get("nccl_passed") is not True:
        raise typer.Exit(1)
